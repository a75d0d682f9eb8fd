"""The samples of the frameworks, as a real API server takes them: the RLJob, and everything that the operator would make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.controlplane import ControlPlane
from rljob_operator import children, companions, planning
from rljob_planner.api.spec import RLJob
from tests.cluster.rig import install

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "crds/samples/frameworks").glob("*.yaml"))
PLURALS = {
    "Deployment": "apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "apis/apps/v1/namespaces/{}/statefulsets",
    "Service": "api/v1/namespaces/{}/services",
    "ConfigMap": "api/v1/namespaces/{}/configmaps",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Pod": "api/v1/namespaces/{}/pods",
}

pytestmark = pytest.mark.cluster


def tried(plane: ControlPlane, namespace: str, obj: dict[str, Any]) -> dict[str, Any]:
    """What the API server would make of an object; strict about fields that it does not know."""
    meta = {key: value for key, value in obj["metadata"].items() if key != "ownerReferences"}
    path = f"/{PLURALS[obj['kind']].format(namespace)}?dryRun=All&fieldValidation=Strict"
    return plane.api.request("POST", path, {**obj, "metadata": {**meta, "namespace": namespace}})


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_and_all_that_is_made_of_it_pass_a_server_side_dry_run(
    plane: ControlPlane, namespace: str, path: Path
) -> None:
    install(plane)
    plane.kubectl("apply", "--server-side", "--dry-run=server", "-n", namespace, "-f", str(path))
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    jobs = f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs?dryRun=All&fieldValidation=Strict"
    taken = plane.api.request("POST", jobs, raw)
    job = RLJob.model_validate({key: taken[key] for key in ("apiVersion", "kind", "metadata", "spec")})
    split = planning.smallest_split(job.spec)
    for pod in children.trial_pods(job, split):
        admitted = tried(plane, namespace, pod)
        assert admitted["spec"]["containers"]
    for obj in (
        *children.services(job),
        children.layout_config_map(job, "{}"),
        children.sampler_workload(job, split, 1),
        children.trainer_workload(job, split, 1),
        *companions.companions(job, drivers=1, sandboxes=1),
    ):
        tried(plane, namespace, obj)
