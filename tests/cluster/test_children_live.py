"""Children as a real API server takes and returns them: nothing of what it adds may look like somebody's edit."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dev.controlplane import ApiError, ControlPlane
from rljob_operator.children import (
    edited_fields,
    sampler_workload,
    services,
    trainer_workload,
    trial_pods,
    workload_differs,
)
from rljob_operator.gate import is_gated, is_held, lift_patch
from rljob_operator.upgrade import DIGEST_ANNOTATION, RECORD_ANNOTATION, change
from rljob_planner.api.spec import RLJob
from tests.operator.objects import SPLIT, job, template

APPLY = "application/apply-patch+yaml"
PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "Service": "/api/v1/namespaces/{}/services",
    "Pod": "/api/v1/namespaces/{}/pods",
}

RICH = template(
    containers=[
        {
            "name": "engine",
            "image": "registry.example/engine:1",
            "command": ["serve"],
            "args": ["--max=$(RLJOB_MAX_RUNNING)"],
            "stdin": False,
            "env": [
                {"name": "A", "value": ""},
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
            "ports": [{"containerPort": 8000, "name": "http"}, {"containerPort": 8000, "protocol": "UDP"}],
            "resources": {"requests": {"cpu": "1500m", "memory": "1024Mi"}, "limits": {"memory": "2048Mi"}},
            "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
            "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        },
        {"name": "side", "image": "registry.example/side:1", "env": []},
    ],
    initContainers=[{"name": "log", "image": "registry.example/log:1", "restartPolicy": "Always"}],
    volumes=[
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2048Mi"}},
        {"name": "tokens", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
        {"name": "cache", "emptyDir": {}},
    ],
    nodeSelector={"pool": "rl"},
    tolerations=[{"key": "x", "operator": "Exists"}],
    hostIPC=False,
    topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
)


def job_in(namespace: str, kind: str = "Deployment") -> RLJob:
    made = job(sampler={"template": RICH}, trainer={"template": RICH, "kind": kind})
    return made.model_copy(update={"metadata": {**made.metadata, "namespace": namespace}})


def path_of(desired: dict[str, Any]) -> str:
    return PATHS[desired["kind"]].format(desired["metadata"]["namespace"])


def apply(plane: ControlPlane, desired: dict[str, Any]) -> dict[str, Any]:
    # Its owner is not there, and the garbage collector would not leave it in peace.
    alone = {**desired, "metadata": {k: v for k, v in desired["metadata"].items() if k != "ownerReferences"}}
    path = f"{path_of(desired)}/{desired['metadata']['name']}?fieldManager=rljob-operator&force=true&fieldValidation=Strict"
    return plane.api.request("PATCH", path, alone, content_type=APPLY)


def differs(live: dict[str, Any], desired: dict[str, Any]) -> tuple[str, ...]:
    return tuple(field for field in workload_differs(live, desired) if not field.startswith("metadata.ownerReferences"))


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_what_was_applied_is_what_is_wished_until_somebody_edits_it(
    plane: ControlPlane, namespace: str, kind: str
) -> None:
    of = job_in(namespace, kind)
    wished = [sampler_workload(of, SPLIT, 0), trainer_workload(of, SPLIT, 0), *services(of)]
    for desired in wished:
        assert differs(apply(plane, desired), desired) == ()
    trainer = wished[1]
    edited = plane.api.request(
        "PATCH",
        f"{path_of(trainer)}/{trainer['metadata']['name']}",
        {"spec": {"replicas": 1}},
        content_type="application/merge-patch+json",
    )
    assert differs(edited, trainer) == ("spec.replicas",)
    assert "spec.replicas" in edited_fields(edited, trainer)
    assert differs(apply(plane, trainer), trainer) == ()


SERVERS = [
    ("vllm", {"name": "v", "image": "vllm/vllm-openai:v0.33.0", "args": ["--model=m"]}),
    ("vllm", {"name": "v", "image": "x", "command": ["sh", "-c", "exec vllm serve m --port 9000"]}),
    ("sglang", {"name": "s", "image": "lmsysorg/sglang:latest", "command": ["python3", "-m", "sglang.launch_server"]}),
]


@pytest.mark.parametrize(("engine", "container"), SERVERS)
def test_what_an_engine_needs_is_taken_and_looks_like_nobodys_edit(
    plane: ControlPlane, namespace: str, engine: str, container: dict[str, Any]
) -> None:
    """Probes, ports, hooks and annotations come back with the API server's own defaults among them."""
    made = job(sampler={"template": template(containers=[container]), "engine": engine})
    of = made.model_copy(update={"metadata": {**made.metadata, "namespace": namespace}})
    desired = sampler_workload(of, SPLIT, 0)
    assert desired["spec"]["template"]["spec"]["containers"][0]["lifecycle"]
    assert differs(apply(plane, desired), desired) == ()
    pod = trial_pods(of, SPLIT)[0]
    plane.api.request("POST", f"{PATHS['Pod'].format(namespace)}?dryRun=All&fieldValidation=Strict", pod)


def test_a_version_with_engines_finds_nothing_to_roll_in_children_from_before(
    plane: ControlPlane, namespace: str
) -> None:
    made = job(sampler={"template": template(containers=[SERVERS[0][1]])})
    of = made.model_copy(update={"metadata": {**made.metadata, "namespace": namespace}})
    before = sampler_workload(of, SPLIT, 0, bare=True)
    for annotated in (True, False):
        older = copy.deepcopy(before)
        if not annotated:
            for own in (DIGEST_ANNOTATION, RECORD_ANNOTATION):
                del older["metadata"]["annotations"][own]
        live = apply(plane, older)
        # A workload without pods takes the newer template, so the number is not part of this.
        live["spec"]["replicas"] = 3
        found = change(live, sampler_workload(of, SPLIT, 3), lambda: sampler_workload(of, SPLIT, 3, bare=True))
        assert not found.rolls, annotated
        assert found.edited == ()
        assert found.desired["spec"]["template"] == before["spec"]["template"]
        plane.api.request("DELETE", f"{path_of(before)}/{before['metadata']['name']}")


def test_trial_pods_pass_a_strict_dry_run_and_a_typing_error_does_not(plane: ControlPlane, namespace: str) -> None:
    path = f"{PATHS['Pod'].format(namespace)}?dryRun=All&fieldValidation=Strict"
    sampler, trainer = trial_pods(job_in(namespace), SPLIT)
    for pod in (sampler, trainer):
        plane.api.request("POST", path, pod)
    sampler["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(ApiError, match="imagee"):
        plane.api.request("POST", path, sampler)


def test_a_gate_is_lifted_once_and_never_from_an_old_reading(plane: ControlPlane, namespace: str) -> None:
    path = PATHS["Pod"].format(namespace)
    wanted = trial_pods(job_in(namespace), SPLIT)[0]
    wanted["metadata"].pop("ownerReferences")
    wanted["spec"]["schedulingGates"].insert(0, {"name": "example.com/other"})
    seen = plane.api.request("POST", path, wanted)
    assert is_gated(seen)
    assert not is_held(seen)

    def lift() -> dict[str, Any]:
        return plane.api.request(
            "PATCH",
            f"{path}/{seen['metadata']['name']}",
            lift_patch(seen),
            content_type="application/merge-patch+json",
        )

    lifted = lift()
    assert lifted["spec"]["schedulingGates"] == [{"name": "example.com/other"}]
    assert not is_gated(lifted)
    assert is_held(lifted)
    with pytest.raises(ApiError) as refusal:
        lift()
    assert refusal.value.status == 409
