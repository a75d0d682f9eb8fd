"""A real Prometheus finds the jobs' pods and scrapes the process that stands in for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dev.controlplane import ControlPlane, Prometheus, pods_scrape_config, prometheus_token_file
from tests.cluster.conftest import TEST_LABEL, GpuNodes


class Exporter(BaseHTTPRequestHandler):
    """Serves one metric whose value says which path was asked for."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(f'probe{{path="{self.path}"}} 1\n'.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def exporter_address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def prometheus(plane: ControlPlane, exporter_address: str) -> Iterator[Prometheus]:
    config = pods_scrape_config(
        server=plane.server,
        ca_file=plane.ca_file,
        token_file=prometheus_token_file(plane),
        exporter_address=exporter_address,
    )
    with Prometheus.start(plane, config=config, scrape_interval_s=0.5) as running:
        yield running


def manifests(namespace: str) -> str:
    head = f"""
apiVersion: v1
kind: Pod
metadata:
  namespace: {namespace}
  name: NAME
  labels: {{LABELS}}
spec:
  nodeSelector: {{{TEST_LABEL}: {namespace}}}
  GATES
  initContainers: [{{name: init, image: none}}]
  containers:
  - {{name: main, image: none, ports: [{{containerPort: 8000}}, {{containerPort: 8001}}]}}
  - {{name: side, image: none}}
"""
    ours = "rljob.dev/name: job, rljob.dev/role: sampler, rljob.dev/uid: u-1"
    gates = "schedulingGates: [{name: example.com/wait}]"
    return "---".join(
        [
            head.replace("NAME", "ours").replace("LABELS", ours).replace("GATES", ""),
            head.replace("NAME", "gated").replace("LABELS", ours).replace("GATES", gates),
            head.replace("NAME", "theirs").replace("LABELS", "app: other").replace("GATES", ""),
        ]
    )


def test_pods_are_scraped_and_an_outage_passes(
    plane: ControlPlane, namespace: str, gpu_nodes: GpuNodes, prometheus: Prometheus
) -> None:
    gpu_nodes(1)
    plane.apply(manifests(namespace))
    selector = f'probe{{namespace="{namespace}"}}'
    plane.wait_until("a scrape", lambda: bool(prometheus.query(selector)))
    (series,) = prometheus.query(selector)
    assert series["metric"] == {
        "__name__": "probe",
        "job": "rljob-pods",
        "instance": f"{namespace}/ours",
        "namespace": namespace,
        "pod": "ours",
        "path": f"/pods/{namespace}/ours/metrics",
        "rljob_dev_name": "job",
        "rljob_dev_role": "sampler",
        "rljob_dev_uid": "u-1",
    }
    plane.wait_until("the other pod to run", lambda: _phase(plane, namespace, "theirs") == "Running")
    assert len(prometheus.query(f'up{{namespace="{namespace}"}}')) == 1, "neither the gated nor the foreign pod"

    url = prometheus.url
    prometheus.stop()
    with pytest.raises(OSError, match="refused"):
        prometheus.query("up")
    prometheus.start_again()
    assert prometheus.url == url
    plane.wait_until(
        "samples from before and after",
        lambda: float(prometheus.query(f"count_over_time({selector}[5m])")[0]["value"][1]) > 2,
    )

    plane.kubectl("delete", "pod", "ours", "-n", namespace)
    plane.wait_until("the series of the deleted pod to end", lambda: not prometheus.query(selector))


def test_prometheus_may_list_pods_and_nothing_else(plane: ControlPlane) -> None:
    prometheus_token_file(plane)
    kubeconfig = plane.service_account_kubeconfig("rljob-dev-monitoring", "prometheus")
    plane.kubectl("get", "pods", "-A", kubeconfig=kubeconfig)
    for resource in ("nodes", "secrets", "services"):
        assert "forbidden" in plane.kubectl("get", resource, "-A", kubeconfig=kubeconfig, check=False).stderr


def test_a_bad_expression_is_an_error_that_shows_it(prometheus: Prometheus) -> None:
    with pytest.raises(ValueError, match="parse error"):
        prometheus.query("up{")


def _phase(plane: ControlPlane, namespace: str, name: str) -> str:
    phase: str = plane.api.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]["phase"]
    return phase
