"""``rljob plan rljob/NAME`` against a server that speaks as the API server does, over real HTTP with the real client."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from rljob_operator.cli import app
from tests.operator.objects import SPLIT, job_dict, node, pod, quota

JOBS = "/apis/rljob.dev/v1alpha1/namespaces/rl/rljobs"
ACCELERATED = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


class Api:
    """What the server answers: objects by path; a path that is missing is not found, one with None is forbidden."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.asked: list[str] = []

    def holds(
        self, job: dict[str, Any], nodes: list[Any], pods: Sequence[Any] = (), quotas: Sequence[Any] = ()
    ) -> None:
        self.objects |= {
            f"{JOBS}/mine": job,
            "/api/v1/nodes": {"items": nodes},
            "/api/v1/pods": {"items": list(pods)},
            "/api/v1/namespaces/rl/resourcequotas": {"items": list(quotas)},
            "/apis/rljob.dev/v1alpha1/rljobs": {"items": [job]},
        }


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    found = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            found.asked.append(path)
            if path in found.objects:
                answer = found.objects[path]
                status = 200 if answer is not None else 403
                answer = answer or {"kind": "Status", "reason": "Forbidden", "message": "no"}
            else:
                status, answer = 404, {"kind": "Status", "reason": "NotFound", "message": "not found"}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "rl"}},
            {"name": "elsewhere", "context": {"cluster": "here", "user": "me"}},
        ],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(file))
    # The client reads the variable when it is imported, which another test may have caused.
    from kubernetes.aio.config import kube_config

    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def planned(*arguments: str) -> dict[str, Any]:
    result = run("plan", *arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_live_job_is_planned_on_the_nodes_that_are_free(api: Api) -> None:
    nodes = [node(f"n{i}", labels=ACCELERATED) for i in range(3)]
    api.holds(job_dict(), nodes, [pod("theirs", 8, node="n2", uid="another")])
    result = run("plan", "rljob/mine")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0].startswith("mine: Qwen/")
    assert " on 32 GPUs (h100-sxm-80gb), 2 nodes of 8 GPUs, 100 steps" in " ".join(result.stdout.split())
    split = planned("--live", "mine", "-n", "rl")["split"]
    used = sum(split[side]["replicas"] * split[side]["gpusPerReplica"] for side in ("samplers", "trainers"))
    assert used <= 16


def test_a_bare_name_is_a_live_job_unless_a_file_is_there(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.holds(job_dict(), [node(f"n{i}", labels=ACCELERATED) for i in range(4)])
    monkeypatch.chdir(tmp_path)
    assert planned("mine")["split"] == planned("rljob/mine")["split"]
    result = run("report", "mine", "-o", "-")
    assert result.exit_code == 0, result.stderr
    assert "mine: Qwen/" in result.stdout
    missing = run("plan", "other")
    assert missing.exit_code == 2
    assert "there is no such RLJob in namespace rl" in missing.stderr
    assert "nor is there a file other" in missing.stderr
    # What looks like a file is one, and a file that is there is read.
    assert "no such file" in run("plan", "mine.yaml").stderr
    (tmp_path / "mine").write_text("kind: RLJob")
    assert "spec" in run("plan", "mine").stderr


def test_a_quota_lowers_the_budget(api: Api) -> None:
    nodes = [node(f"n{i}", labels=ACCELERATED) for i in range(4)]
    api.holds(job_dict(), nodes, quotas=[quota("gpus", 16)])
    text = " ".join(run("plan", "rljobs.rljob.dev/mine").stdout.split())
    assert "on 16 GPUs" in text
    assert "quota gpus leaves 16 GPUs of the budget of 32" in text


def test_what_a_run_has_shown_enters_its_plan(api: Api) -> None:
    status = {
        "observed": {"at": "2026-01-02T00:00:00Z", "policyVersion": 60, "responseTokensMean": 2000},
        "calibration": {"samplerFactor": 0.5, "trainerFactor": 0.9, "residual": 0.03, "observations": 9},
    }
    nodes = [node(f"n{i}", labels=ACCELERATED) for i in range(4)]
    api.holds(job_dict(), nodes)
    fresh = planned("rljob/mine")
    api.holds(job_dict(status=status), nodes)
    found = planned("rljob/mine")
    assert found["confidence"] == pytest.approx(0.03)
    assert found["period"]["mean"] > 1.5 * fresh["period"]["mean"]
    assert found["runTime"]["p50"] == pytest.approx(40 * found["period"]["mean"], rel=0.01)
    text = " ".join(run("plan", "rljob/mine").stdout.split())
    assert "40 steps to go" in text
    assert "60 of 100 steps are done" in text
    assert "responses have 2,000 tokens in the mean now" in text


def test_nodes_that_are_described_are_not_asked_for(api: Api) -> None:
    api.holds(job_dict(accelerator="H100"), [])
    assert planned("rljob/mine", "--nodes", "2x8")["split"]
    assert api.asked == [f"{JOBS}/mine"]


def test_a_budget_and_a_gpu_may_replace_those_of_a_live_job(api: Api) -> None:
    api.holds(job_dict(), [node(f"n{i}") for i in range(4)])
    result = run("plan", "rljob/mine", "--budget", "16", "--accelerator", "H200")
    assert " on 16 GPUs (h200" in result.stdout.splitlines()[0], result.output


def test_a_job_that_is_not_there_is_an_error(api: Api) -> None:
    result = run("plan", "rljob/other")
    assert result.exit_code == 2
    assert "rljob/other: there is no such RLJob in namespace rl: kubectl get rljobs -A lists all" in result.stderr


def test_another_context_brings_its_own_namespace(api: Api) -> None:
    result = run("plan", "rljob/mine", "--context", "elsewhere")
    assert "there is no such RLJob in namespace default" in result.stderr
    assert "no cluster to connect to" in run("plan", "rljob/mine", "--context", "nowhere").stderr


def test_a_job_of_a_file_is_no_live_job(api: Api) -> None:
    assert "--job: is of files" in run("plan", "rljob/mine", "--job", "mine").stderr


def test_nodes_that_one_may_not_list_are_named(api: Api) -> None:
    api.holds(job_dict(), [])
    api.objects["/api/v1/nodes"] = None
    result = run("plan", "rljob/mine")
    assert result.exit_code == 2
    assert "you may not list nodes, so free GPUs are unknown: describe nodes with --nodes" in result.stderr


def test_a_cluster_without_free_gpus_says_why(api: Api) -> None:
    api.holds(job_dict(), [node("n1", 0, labels=ACCELERATED)])
    result = run("plan", "rljob/mine")
    assert result.exit_code == 2
    assert "describe nodes with --nodes to plan for them all the same" in result.stderr


def test_without_a_cluster_a_live_job_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.aio.config import kube_config

    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    result = run("plan", "rljob/mine", "-n", "rl")
    assert result.exit_code == 2
    assert "rljob/mine: no cluster to connect to" in result.stderr


def test_a_live_job_without_the_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rljob_operator.cluster", raising=False)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setitem(sys.modules, "kubernetes.aio", None)
    result = run("plan", "rljob/mine")
    assert result.exit_code == 2
    assert "pip install 'rljob-operator[operator]'" in result.stderr
    assert "kubectl get rljob mine -o yaml | rljob plan -" in result.stderr


def test_a_live_job_is_explained_from_its_own_status(api: Api) -> None:
    status = {
        "phase": "Running",
        "split": SPLIT.model_dump(mode="json", by_alias=True),
        "decisions": [{"at": "2026-01-02T00:00:00Z", "code": "AtOptimum", "message": "the split is the best"}],
    }
    api.holds(job_dict(status=status), [])
    result = run("explain", "mine", "-n", "rl", "-o", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["limits"][0] == {"limit": "Balance", "binds": True, "why": "the split is the best", "unblock": None}
    assert api.asked == [f"{JOBS}/mine"], "nodes, pods and Prometheus are not asked"
    assert run("explain", "rljob/other").exit_code == 2


def test_an_adopted_job_is_planned_on_what_its_workloads_hold(api: Api) -> None:
    def workload(app: str, replicas: int, gpus: int) -> dict[str, Any]:
        container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
        template = {"spec": {"containers": [container]}}
        return {"spec": {"replicas": replicas, "selector": {"matchLabels": {"app": app}}, "template": template}}

    job = job_dict(gpus=16)
    job["spec"] |= {
        "sampler": {"targetRef": {"kind": "Deployment", "name": "rollout"}},
        "trainer": {"targetRef": {"kind": "StatefulSet", "name": "learner"}},
        "rebalance": {"mode": "Recommend"},
    }
    theirs = [pod(f"learner-{i}", 8, node=f"n{i}") for i in range(2)]
    for each in theirs:
        each["metadata"]["uid"] = f"uid-{each['metadata']['name']}"
    api.holds(job, [node(f"n{i}", labels=ACCELERATED) for i in range(2)], theirs)
    workloads, pods = "/apis/apps/v1/namespaces/rl", "/api/v1/namespaces/rl/pods"
    api.objects |= {f"{workloads}/deployments/rollout": workload("rollout", 0, 4), pods: {"items": []}}
    missing = run("plan", "rljob/mine")
    assert missing.exit_code == 2
    assert "StatefulSet learner, the trainers' targetRef, is not there" in missing.stderr
    api.objects |= {f"{workloads}/statefulsets/learner": workload("learner", 2, 8), pods: {"items": theirs}}
    split = planned("rljob/mine")["split"]
    assert split["samplers"]["gpusPerReplica"] == 4
    assert split["trainers"] | {"replicas": 1, "gpusPerReplica": 8} == split["trainers"]
