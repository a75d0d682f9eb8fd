"""The objects that a job is made of, and what counts as somebody else's edit of them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from rljob_operator.children import (
    TemplateError,
    another_autoscaler,
    edited_fields,
    layout_config_map,
    layout_name,
    rendezvous,
    sampler_workload,
    samplers_name,
    services,
    template_notes,
    trainer_workload,
    trainers_name,
    trial_pods,
    workload_differs,
)
from rljob_operator.gate import is_gated, pod_gpus
from rljob_operator.template import pod_template
from rljob_planner.api.spec import RLJob
from tests.operator.objects import GPU, SPLIT, UID, job, template


def sampler_of(**pod_spec: Any) -> RLJob:
    return job(sampler={"template": template(**pod_spec)})


def test_the_names_and_owners_of_all_children() -> None:
    made = [
        sampler_workload(job(), SPLIT, 3),
        trainer_workload(job(), SPLIT, 1),
        layout_config_map(job(), "{}"),
        *services(job()),
    ]
    assert [(o["apiVersion"], o["kind"], o["metadata"]["name"]) for o in made] == [
        ("apps/v1", "Deployment", "mine-samplers"),
        ("apps/v1", "Deployment", "mine-trainers"),
        ("v1", "ConfigMap", "mine-layout"),
        ("v1", "Service", "mine-samplers"),
        ("v1", "Service", "mine-trainers"),
    ]
    assert (samplers_name(job()), trainers_name(job()), layout_name(job())) == (
        "mine-samplers",
        "mine-trainers",
        "mine-layout",
    )
    for child in made:
        metadata = child["metadata"]
        assert metadata["namespace"] == "rl"
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "rljob.dev/v1alpha1",
                "kind": "RLJob",
                "name": "mine",
                "uid": UID,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
        assert metadata["labels"]["rljob.dev/name"] == "mine"
        assert metadata["labels"]["rljob.dev/uid"] == UID
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "rljob-operator"
    assert [o["metadata"]["labels"].get("rljob.dev/role") for o in made] == [
        "sampler",
        "trainer",
        None,
        "sampler",
        "trainer",
    ]


def test_workloads_never_surge_and_select_their_own_pods() -> None:
    spec = sampler_workload(job(), SPLIT, 3)["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}}
    assert spec["selector"]["matchLabels"] == {"rljob.dev/uid": UID, "rljob.dev/role": "sampler"}
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_a_stateful_set_runs_its_pods_in_parallel_behind_its_service() -> None:
    of = job(trainer={"template": template(), "kind": "StatefulSet"})
    made = trainer_workload(of, SPLIT, 2)
    assert made["kind"] == "StatefulSet"
    assert made["spec"]["podManagementPolicy"] == "Parallel"
    assert made["spec"]["serviceName"] == services(of)[1]["metadata"]["name"]
    assert rendezvous(of) == "mine-trainers-0.mine-trainers.rl.svc:29500"


def test_services_are_headless_and_trainers_meet_before_they_are_ready() -> None:
    ports = {"containers": [{"name": "main", "image": "x", "ports": [{"containerPort": 1234}]}]}
    of = job(sampler={"template": template(**ports)}, trainer={"template": template(**ports)})
    samplers, trainers = services(of)
    assert samplers["spec"]["clusterIP"] == trainers["spec"]["clusterIP"] == "None"
    assert samplers["spec"]["ports"] == [{"name": "http", "port": 1234, "targetPort": 1234, "protocol": "TCP"}]
    assert trainers["spec"]["publishNotReadyAddresses"] is True
    assert rendezvous(of) == "mine-trainers.rl.svc:1234"
    assert "publishNotReadyAddresses" not in samplers["spec"]


def test_the_layout_config_map_holds_the_file() -> None:
    assert layout_config_map(job(), "text")["data"] == {"layout.json": "text"}


def test_pods_get_gate_gpus_environment_and_layout() -> None:
    user = {
        "containers": [
            {
                "name": "engine",
                "image": "x",
                "args": ["--tp=$(RLJOB_TENSOR_PARALLEL)"],
                "env": [{"name": "MINE", "value": "$(RLJOB_NAME)"}],
                "resources": {"requests": {"cpu": "4"}, "limits": {"memory": "8Gi"}},
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
            },
            {"name": "sidecar", "image": "y"},
        ],
        "initContainers": [{"name": "fetch", "image": "z"}],
        "volumes": [{"name": "cache", "emptyDir": {}}],
        "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
    }
    made = pod_template(sampler_of(**user), "sampler", SPLIT)
    assert is_gated(made)
    assert made["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}, {"name": "rljob.dev/budget"}]
    assert pod_gpus(made, GPU) == 2
    engine, sidecar = made["spec"]["containers"]
    assert engine["resources"] == {"requests": {"cpu": "4", GPU: "2"}, "limits": {"memory": "8Gi", GPU: "2"}}
    assert "resources" not in sidecar
    assert engine["env"] == [
        {"name": "RLJOB_NAME", "value": "mine"},
        {"name": "RLJOB_NAMESPACE", "value": "rl"},
        {"name": "RLJOB_ROLE", "value": "sampler"},
        {"name": "RLJOB_UID", "value": UID},
        {"name": "RLJOB_TENSOR_PARALLEL", "value": "2"},
        {"name": "RLJOB_MAX_RUNNING", "value": "64"},
        {"name": "MINE", "value": "$(RLJOB_NAME)"},
    ]
    mount = {"name": "rljob-layout", "mountPath": "/etc/rljob", "readOnly": True}
    for container in [engine, sidecar, *made["spec"]["initContainers"]]:
        assert container["volumeMounts"][-1] == mount
        assert container["env"][0]["name"] == "RLJOB_NAME"
    assert made["spec"]["volumes"] == [
        {"name": "cache", "emptyDir": {}},
        {"name": "rljob-layout", "configMap": {"name": "mine-layout", "optional": False}},
    ]
    assert engine["args"] == ["--tp=$(RLJOB_TENSOR_PARALLEL)"]


def test_trainers_know_nothing_of_the_samplers_engine() -> None:
    env = pod_template(job(), "trainer", SPLIT)["spec"]["containers"][0]["env"]
    assert [v["name"] for v in env] == ["RLJOB_NAME", "RLJOB_NAMESPACE", "RLJOB_ROLE", "RLJOB_UID"]


def test_what_the_user_wrote_is_kept_and_not_changed() -> None:
    user = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}, "finalizers": ["x/y"], "name": "ignored"},
        **template(priorityClassName="high", terminationGracePeriodSeconds=5),
    }
    of = job(sampler={"template": user})
    before = copy.deepcopy(of.spec.sampler.template)
    made = pod_template(of, "sampler", SPLIT)
    assert made["metadata"]["labels"]["team"] == "a"
    assert made["metadata"]["annotations"] == {"note": "b"}
    assert made["metadata"]["finalizers"] == ["x/y"]
    assert "name" not in made["metadata"]
    assert made["spec"]["priorityClassName"] == "high"
    assert made["spec"]["terminationGracePeriodSeconds"] == 5
    assert of.spec.sampler.template == before


def test_samplers_may_finish_their_samples_and_trainers_keep_the_default() -> None:
    of = job(sampler={"template": template(), "drainTimeout": "90s"})
    assert pod_template(of, "sampler", SPLIT)["spec"]["terminationGracePeriodSeconds"] == 120
    assert "terminationGracePeriodSeconds" not in pod_template(of, "trainer", SPLIT)["spec"]


def test_selectors_and_tolerations_of_the_nodes_are_merged() -> None:
    of = job(
        nodes={"selector": {"pool": "rl"}, "tolerations": [{"key": "team", "operator": "Exists"}]},
        sampler={"template": template(nodeSelector={"zone": "a", "pool": "rl"}, tolerations=[{"key": "mine"}])},
        trainer={"template": template(), "nodes": {"selector": {"pool": "train"}, "gpuResource": "amd.com/gpu"}},
    )
    sampler, trainer = pod_template(of, "sampler", SPLIT)["spec"], pod_template(of, "trainer", SPLIT)["spec"]
    gpu_nodes = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
    assert sampler["nodeSelector"] == {"zone": "a", "pool": "rl"}
    assert sampler["tolerations"] == [{"key": "mine"}, {"key": "team", "operator": "Exists"}, gpu_nodes]
    assert trainer["nodeSelector"] == {"pool": "train"}
    assert trainer["tolerations"] == [{**gpu_nodes, "key": "amd.com/gpu"}]
    assert trainer["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "8"}
    assert "nodeSelector" not in pod_template(job(), "sampler", SPLIT)["spec"]


def test_nothing_that_moves_is_in_a_template() -> None:
    moved = SPLIT.model_copy(
        update={
            "samplers": SPLIT.samplers.model_copy(update={"replicas": 4}),
            "trainers": SPLIT.trainers.model_copy(update={"replicas": 3, "dp": 24}),
            "in_flight": 99,
        }
    )
    for build in (sampler_workload, trainer_workload):
        assert build(job(), SPLIT, 1)["spec"] == build(job(), moved, 1)["spec"]
        assert build(job(), SPLIT, 1)["spec"]["template"] == build(job(), SPLIT, 2)["spec"]["template"]


def with_env(*names: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "x", "env": [{"name": n, "value": "v"} for n in names]}]}


@pytest.mark.parametrize(
    ("pod_spec", "words"),
    [
        ({"nodeName": "n1"}, "spec.sampler.template.spec.nodeName pins the pods"),
        ({"resourceClaims": [{"name": "gpu"}]}, "can't be counted against spec.gpus"),
        ({"activeDeadlineSeconds": 9}, "activeDeadlineSeconds is not allowed"),
        ({"restartPolicy": "Never"}, "restartPolicy is Never"),
        ({"volumes": [{"name": "rljob-layout"}]}, "has a volume rljob-layout"),
        (with_env("RLJOB_ROLE"), "container main sets RLJOB_ROLE, which the operator sets by itself: remove it"),
        (with_env("A", "B", "A"), "sets A more than once: keep one"),
        (
            {"containers": [{"name": "m", "volumeMounts": [{"name": "v", "mountPath": "/etc/rljob/"}]}]},
            "mounts something at /etc/rljob",
        ),
        (
            {"initContainers": [{"name": "i", "resources": {"limits": {GPU: 4}}}]},
            "the pod would hold 4 GPUs instead of the 2 of a sampler replica",
        ),
        ({"nodeSelector": {"pool": "b"}}, "sets pool to 'b', but the selector of the role's nodes to 'a'"),
        ({"volumes": "none"}, "can't be read as a PodTemplateSpec"),
        ({"containers": [{"name": "m", "env": ["A=b"]}]}, "can't be read as a PodTemplateSpec"),
    ],
)
def test_a_template_that_cant_work_is_refused_with_a_remedy(pod_spec: dict[str, Any], words: str) -> None:
    of = job(nodes={"selector": {"pool": "a"}}, sampler={"template": template(**pod_spec)})
    for build in (lambda: sampler_workload(of, SPLIT, 1), lambda: trial_pods(of, SPLIT)):
        with pytest.raises(TemplateError) as refusal:
            build()
        assert words in str(refusal.value)


def test_labels_of_the_operator_cant_be_taken() -> None:
    of = job(sampler={"template": {"metadata": {"labels": {"rljob.dev/role": "boss"}}, **template()}})
    with pytest.raises(TemplateError, match=r"sets rljob\.dev/role to 'boss'"):
        sampler_workload(of, SPLIT, 1)


@pytest.mark.parametrize(
    ("name", "kind", "fine"),
    [
        ("a" * 50, "Deployment", True),
        ("a" * 51, "Deployment", False),
        ("a" * 43, "StatefulSet", True),
        ("a" * 44, "StatefulSet", False),
        ("7b", "Deployment", False),
        ("a.b", "Deployment", False),
    ],
)
def test_a_name_that_children_cant_bear_is_refused(name: str, kind: str, fine: bool) -> None:
    # The API refuses such names too; the operator also meets objects that were stored before a rule was.
    of = job(trainer={"template": template(), "kind": kind}).model_copy(
        update={"metadata": {"name": name, "namespace": "rl", "uid": UID}}
    )
    if fine:
        assert trainer_workload(of, SPLIT, 1)["metadata"]["name"] == f"{name}-trainers"
    else:
        with pytest.raises(TemplateError, match="a letter first"):
            trainer_workload(of, SPLIT, 1)


def test_gpus_that_the_user_wrote_are_replaced_with_a_note() -> None:
    asks = {"containers": [{"name": "m", "resources": {"limits": {GPU: 4}}}]}
    # Stored before the API refused GPUs in templates.
    side = job().spec.sampler.model_copy(update={"template": template(**asks)})
    of = job().model_copy(update={"spec": job().spec.model_copy(update={"sampler": side})})
    assert pod_gpus(pod_template(of, "sampler", SPLIT), GPU) == 2
    (note,) = template_notes(of, SPLIT)
    assert "asks for 4 nvidia.com/gpu; its pods get 2" in note
    assert template_notes(job(), SPLIT) == ()


def test_trial_pods_are_the_pods_of_the_workloads() -> None:
    sampler, trainer = trial_pods(job(), SPLIT)
    assert [p["metadata"]["generateName"] for p in (sampler, trainer)] == ["mine-trial-sampler-", "mine-trial-trainer-"]
    assert sampler["kind"] == "Pod"
    assert is_gated(sampler)
    assert is_gated(trainer)
    made = sampler_workload(job(), SPLIT, 1)["spec"]["template"]
    assert sampler["spec"] == made["spec"]
    assert sampler["metadata"]["labels"] == made["metadata"]["labels"]


# --- edits ----------------------------------------------------------------------------------------------------------------


def as_server_returns(desired: dict[str, Any]) -> dict[str, Any]:
    """The object with what an API server adds: defaults, canonical quantities, empty values dropped."""
    live: dict[str, Any] = json.loads(json.dumps(desired))
    live["metadata"] |= {"resourceVersion": "12", "generation": 3, "uid": "child"}
    live["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    live["status"] = {"replicas": 3}
    spec = live["spec"]
    del spec["minReadySeconds"]
    pod_spec = spec["template"]["spec"]
    pod_spec |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "securityContext": {}}
    pod_spec["volumes"][-1]["configMap"]["defaultMode"] = 420
    container = pod_spec["containers"][0]
    container |= {"imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log"}
    container["resources"]["requests"]["cpu"] = "1500m"
    container["env"] = [*container["env"][::-1]]
    container["ports"][0]["protocol"] = "TCP"
    del container["stdin"]
    return live


USER = {
    "containers": [
        {
            "name": "engine",
            "image": "x:1",
            "args": ["serve"],
            "stdin": False,
            "ports": [{"containerPort": 8000}],
            "resources": {"requests": {"cpu": "1.5"}},
        }
    ]
}


def test_what_the_server_adds_is_no_difference() -> None:
    desired = sampler_workload(sampler_of(**USER), SPLIT, 3)
    live = as_server_returns(desired)
    assert workload_differs(live, desired) == ()
    assert edited_fields(live, desired) == ()


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("replicas",), 7, "spec.replicas"),
        (("strategy", "rollingUpdate", "maxSurge"), 1, "spec.strategy.rollingUpdate.maxSurge"),
        (("template", "spec", "containers", 0, "image"), "x:2", "spec.template.spec.containers[engine].image"),
        (("template", "spec", "containers", 0, "args"), ["serve", "-v"], "spec.template.spec.containers[engine].args"),
        (
            ("template", "spec", "containers", 0, "resources", "limits", GPU),
            "4",
            f"spec.template.spec.containers[engine].resources.limits.{GPU}",
        ),
        (("template", "spec", "schedulingGates"), [], "spec.template.spec.schedulingGates[rljob.dev/budget]"),
        (("template", "spec", "containers", 0, "env"), None, "spec.template.spec.containers[engine].env"),
        (("template", "spec", "tolerations"), [], "spec.template.spec.tolerations"),
    ],
)
def test_an_edit_is_named(path: tuple[Any, ...], value: Any, field: str) -> None:
    desired = sampler_workload(sampler_of(**USER), SPLIT, 3)
    live = as_server_returns(desired)
    at = live["spec"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    assert workload_differs(live, desired) == (field,)
    assert edited_fields(live, desired) == (field,)


def test_scaling_to_zero_by_hand_and_from_zero_both_show() -> None:
    none, some = sampler_workload(job(), SPLIT, 0), sampler_workload(job(), SPLIT, 2)
    assert "spec.replicas" in workload_differs(none, some)
    assert "spec.replicas" in workload_differs(some, none)


def test_our_own_changes_differ_but_are_nobodys_edit() -> None:
    before, after = sampler_workload(job(), SPLIT, 3), sampler_workload(job(), SPLIT, 4)
    assert "spec.replicas" in workload_differs(before, after)
    assert edited_fields(before, after) == ()
    foreign = {**before, "metadata": {**before["metadata"], "annotations": {}}}
    assert edited_fields(foreign, after) == ()


def test_another_autoscaler_on_a_child_is_found() -> None:
    def hpa(kind: str, name: str) -> dict[str, Any]:
        return {"metadata": {"name": "hpa"}, "spec": {"scaleTargetRef": {"kind": kind, "name": name}}}

    assert another_autoscaler([hpa("Deployment", "x"), hpa("Deployment", "mine-samplers")], "mine-samplers") == "hpa"
    assert (
        another_autoscaler([hpa("ReplicaSet", "mine-samplers"), {"metadata": {"name": "h"}}], "mine-samplers") is None
    )
