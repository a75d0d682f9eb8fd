"""The monitors of the chart: what they scrape, by which labels, and that they ask for nothing unless wished."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.chart import CHART, ROOT, ChartError, render
from dev.controlplane.build import FAMILIES, binary, ensure_built
from dev.controlplane.prometheus import pods_scrape_config
from rljob_operator.metrics import JOB

KINDS = ("PodMonitor", "ServiceMonitor", "PrometheusRule")

MONITOR_FIELDS = {"namespaceSelector", "selector", "podMetricsEndpoints", "endpoints"}
ENDPOINT_FIELDS = {"port", "path", "interval", "scrapeTimeout", "honorLabels", "relabelings", "metricRelabelings"}
RELABELING_FIELDS = {"sourceLabels", "targetLabel", "regex", "action", "replacement", "separator", "modulus"}
"""Fields of monitoring.coreos.com/v1 that are used here; the API server of a cluster drops what it does not know."""

Json = dict[str, Any]


def objects(*wishes: Mapping[str, Any], namespace: str = "rljob-system") -> list[Json]:
    """The chart's objects; each wish is a map of values by their dotted path."""
    values: Json = {"crds": {"install": False}}
    for path, value in (each for wish in wishes for each in wish.items()):
        *parents, last = path.split(".")
        node = values
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return render(values, namespace=namespace)


def monitors(*wishes: Mapping[str, Any], namespace: str = "rljob-system") -> dict[tuple[str, str], Json]:
    found = objects(*wishes, namespace=namespace)
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in found if obj["kind"] in KINDS}


OPERATOR = {"monitoring.podMonitor.enabled": True}
SERVICE = {"monitoring.serviceMonitor.enabled": True}
JOBS = {"monitoring.jobs.enabled": True}
OF_JOBS = ("PodMonitor", "rljob-operator-jobs")


def test_nothing_of_the_prometheus_operator_is_asked_for_by_default() -> None:
    assert monitors() == {}


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_the_operator_is_scraped_where_it_listens(kind: str) -> None:
    wish = OPERATOR if kind == "PodMonitor" else SERVICE
    found = objects(wish, {"metrics.port": 9191}, namespace="ml-infra")
    monitor = next(obj for obj in found if obj["kind"] == kind)
    spec = monitor["spec"]
    assert spec["namespaceSelector"] == {"matchNames": ["ml-infra"]}
    (endpoint,) = spec["podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"]
    wished = spec["selector"]["matchLabels"].items()
    pod = next(obj for obj in found if obj["kind"] == "Deployment")["spec"]["template"]
    target: Any
    if kind == "PodMonitor":
        assert wished <= pod["metadata"]["labels"].items()
        target = next(p for p in pod["spec"]["containers"][0]["ports"] if p["name"] == endpoint["port"])[
            "containerPort"
        ]
    else:
        services = [obj for obj in found if obj["kind"] == "Service" and wished <= obj["metadata"]["labels"].items()]
        assert len(services) == 1
        target = next(p for p in services[0]["spec"]["ports"] if p["name"] == endpoint["port"])["port"]
    assert target == 9191


def test_the_namespace_of_a_job_survives_the_scrape() -> None:
    """The target's labels win, and none of them has the name of one that tells the job."""
    for found in (*monitors(OPERATOR, JOBS).values(), *monitors(SERVICE).values()):
        for endpoint in found["spec"].get("podMetricsEndpoints") or found["spec"]["endpoints"]:
            assert endpoint["honorLabels"] is False
            targets = {each.get("targetLabel") for each in endpoint.get("relabelings", ())}
            assert not targets & {*JOB}
    assert not {*JOB} & {"namespace", "pod", "container", "job", "instance", "endpoint", "service"}


def test_the_operator_has_one_monitor_and_not_two() -> None:
    with pytest.raises(ChartError, match="enable one of them"):
        monitors(OPERATOR, SERVICE)


def test_pods_of_jobs_get_the_labels_that_the_operator_asks_by() -> None:
    """What the local plane's own Prometheus does, which the cluster tests and the demo run on."""
    plane = pods_scrape_config(server="https://api", ca_file=Path("ca"), token_file=Path("t"), exporter_address="e")
    of_plane = {
        (*each["source_labels"], each["target_label"])
        for each in yaml.safe_load(plane)[0]["relabel_configs"]
        if str(each.get("target_label", "")).startswith("rljob_")
    }
    kept = [each for each in yaml.safe_load(plane)[0]["relabel_configs"] if each.get("action") in ("keep", "drop")]
    assert len(of_plane) == 3
    for endpoint in monitors(JOBS)[OF_JOBS]["spec"]["podMetricsEndpoints"]:
        relabelings = endpoint["relabelings"]
        found = {(*e["sourceLabels"], e["targetLabel"]) for e in relabelings if "targetLabel" in e}
        assert found == of_plane
        filters = {(*e["sourceLabels"], e["regex"], e["action"]) for e in relabelings if e["action"] != "replace"}
        assert {(*e["source_labels"], e["regex"], e["action"]) for e in kept} <= filters


def test_each_role_is_scraped_on_its_ports() -> None:
    endpoints = monitors(JOBS)[OF_JOBS]["spec"]["podMetricsEndpoints"]
    roles = [
        (next(e["regex"] for e in each["relabelings"] if "role" in e["sourceLabels"][0]), each["port"])
        for each in endpoints
    ]
    assert roles == [("sampler", "http"), ("sampler", "metrics"), ("trainer", "metrics"), ("driver", "metrics")]
    found = monitors(JOBS, {"monitoring.jobs.ports.sampler": ["vllm"], "monitoring.jobs.ports.driver": []})
    assert [each["port"] for each in found[OF_JOBS]["spec"]["podMetricsEndpoints"]] == ["vllm", "metrics"]


def test_samples_have_the_ports_that_are_scraped() -> None:
    ports = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["monitoring"]["jobs"]["ports"]
    seen = 0
    for path in sorted((ROOT / "crds" / "samples").rglob("*.yaml")):
        for job in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if not job or job["kind"] != "RLJob":
                continue
            for role in ("sampler", "trainer"):
                template_of = job["spec"][role].get("template")
                if template_of is None:
                    continue
                declared = {p.get("name") for c in template_of["spec"]["containers"] for p in c.get("ports", ())}
                # Workers of a Ray cluster declare none: nothing of theirs is read, and their split is fixed.
                if not declared and path.parent.name == "frameworks":
                    continue
                assert declared & set(ports[role]), f"{path.name}: a PodMonitor finds no port of the {role}"
                seen += 1
    assert seen >= 10


def test_jobs_are_looked_for_where_they_are_watched() -> None:
    assert monitors(JOBS)[OF_JOBS]["spec"]["namespaceSelector"] == {"any": True}
    found = monitors(JOBS, {"watchNamespaces": ["team-a", "team-b"]})
    assert found[OF_JOBS]["spec"]["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}
    selector = found[OF_JOBS]["spec"]["selector"]["matchExpressions"]
    assert {each["key"] for each in selector} == {"rljob.dev/name", "rljob.dev/uid"}
    assert {each["operator"] for each in selector} == {"Exists"}


def test_times_follow_those_that_the_operator_is_told() -> None:
    def times(values: Mapping[str, Any]) -> set[tuple[str, str | None]]:
        return {
            (endpoint["interval"], endpoint.get("scrapeTimeout"))
            for found in monitors(OPERATOR, JOBS, values).values()
            for endpoint in found["spec"]["podMetricsEndpoints"]
        }

    assert times({}) == {("15s", None)}
    assert times({"prometheus.scrapeInterval": "30s"}) == {("30s", None)}
    assert times({"monitoring.interval": "20s", "monitoring.scrapeTimeout": "10s"}) == {("20s", "10s")}


def test_labels_and_relabelings_of_the_values_are_added() -> None:
    extra = {"action": "labeldrop", "regex": "node"}
    drop = {"action": "drop", "sourceLabels": ["__name__"], "regex": "vllm:.*_bucket"}
    found = monitors(
        OPERATOR,
        JOBS,
        {
            "monitoring.additionalLabels": {"release": "kps"},
            "monitoring.relabelings": [extra],
            "monitoring.jobs.relabelings": [extra],
            "monitoring.jobs.metricRelabelings": [drop],
        },
    )
    for monitor in found.values():
        assert monitor["metadata"]["labels"]["release"] == "kps"
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert endpoint["relabelings"][-1] == extra
    for endpoint in found[OF_JOBS]["spec"]["podMetricsEndpoints"]:
        assert endpoint["metricRelabelings"] == [drop]


def test_only_fields_of_the_api_are_used() -> None:
    everything = {**monitors(OPERATOR, JOBS, {"monitoring.scrapeTimeout": "5s"}), **monitors(SERVICE)}
    assert len(everything) == 3
    for monitor in everything.values():
        assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
        spec = monitor["spec"]
        assert set(spec) <= MONITOR_FIELDS
        for endpoint in spec.get("podMetricsEndpoints") or spec["endpoints"]:
            assert set(endpoint) <= ENDPOINT_FIELDS
            for relabeling in endpoint.get("relabelings", ()):
                assert set(relabeling) <= RELABELING_FIELDS


def test_prometheus_takes_the_relabelings(tmp_path: Path) -> None:
    """As the Prometheus operator hands them on: the same, in the names of Prometheus's own configuration."""
    ensure_built([family for family in FAMILIES if family.name == "prometheus"])
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    jobs = [
        {
            "job_name": f"jobs/{i}",
            "honor_labels": endpoint["honorLabels"],
            "scrape_interval": endpoint["interval"],
            "kubernetes_sd_configs": [{"role": "pod"}],
            "relabel_configs": [{names.get(k, k): v for k, v in each.items()} for each in endpoint["relabelings"]],
        }
        for i, endpoint in enumerate(monitors(JOBS)[OF_JOBS]["spec"]["podMetricsEndpoints"])
    ]
    path = tmp_path / "prometheus.yaml"
    path.write_text(yaml.safe_dump({"scrape_configs": jobs}), encoding="utf-8")
    done = subprocess.run([binary("promtool"), "check", "config", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
