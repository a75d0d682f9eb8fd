"""The driver and the sandboxes as objects: no GPUs, and sandboxes shut in unless the template says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.children import TemplateError, trial_pods
from rljob_operator.companions import companion_template, companions, sandbox_policy, unwanted
from rljob_operator.gate import is_gated, pod_gpus, pods_to_lift
from rljob_planner.api.spec import RLJob
from tests.operator.objects import GPU, SPLIT, UID, job, template


def agentic(driver: bool = True, network: str = "isolated", **pod_spec: Any) -> RLJob:
    base = job()
    workload = {
        "promptsPerStep": 16,
        "samplesPerPrompt": 8,
        "steps": 100,
        "promptTokens": {"mean": 200},
        "responseTokens": {"mean": 1000, "max": 8000},
        "environment": {"secondsPerTurn": 30.0, "turns": 4},
    }
    sandbox = {"maxReplicas": 64, "network": network, "template": template(**pod_spec)}
    changes = {"workload": workload, "sandbox": sandbox, **({"driver": {"template": template()}} if driver else {})}
    return job(base.metadata["name"], **changes)


def test_companions_come_with_their_policy_first_and_only_where_they_are_asked_for() -> None:
    made = companions(agentic(), drivers=1, sandboxes=5)
    assert [(o["kind"], o["metadata"]["name"]) for o in made] == [
        ("NetworkPolicy", "mine-sandboxes"),
        ("Service", "mine-sandboxes"),
        ("Deployment", "mine-sandboxes"),
        ("Service", "mine-driver"),
        ("Deployment", "mine-driver"),
    ]
    assert [o["spec"]["replicas"] for o in made if o["kind"] == "Deployment"] == [5, 1]
    for child in made:
        assert child["metadata"]["ownerReferences"][0]["uid"] == UID
        assert child["metadata"]["labels"]["rljob.dev/role"] in ("sandbox", "driver")
    assert companions(job(), drivers=1, sandboxes=5) == ()
    assert unwanted(agentic()) == ()
    assert {(o["kind"], o["metadata"]["name"]) for o in unwanted(job())} == {
        ("Deployment", "mine-sandboxes"),
        ("Service", "mine-sandboxes"),
        ("NetworkPolicy", "mine-sandboxes"),
        ("Deployment", "mine-driver"),
        ("Service", "mine-driver"),
    }
    assert [o["kind"] for o in unwanted(agentic(network="open"))] == ["NetworkPolicy"]


def test_a_sandbox_is_shut_in() -> None:
    spec = companion_template(agentic(), "sandbox")["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "volumes" not in spec, "the layout names the samplers, which a sandbox need not know"
    assert spec["terminationGracePeriodSeconds"] == 120, "four turns"
    assert not is_gated({"spec": spec})


def test_what_the_template_says_of_isolation_is_kept() -> None:
    container = {
        "name": "main",
        "image": "x",
        "securityContext": {"capabilities": {"add": ["NET_RAW"]}, "allowPrivilegeEscalation": True},
    }
    of = agentic(
        automountServiceAccountToken=True,
        enableServiceLinks=True,
        terminationGracePeriodSeconds=5,
        securityContext={"runAsUser": 0, "seccompProfile": {"type": "Unconfined"}},
        containers=[container, {"name": "root", "image": "y", "securityContext": {"privileged": True}}],
    )
    spec = companion_template(of, "sandbox")["spec"]
    assert spec["automountServiceAccountToken"] is True
    assert spec["enableServiceLinks"] is True
    assert spec["terminationGracePeriodSeconds"] == 5
    assert spec["securityContext"] == {"runAsUser": 0, "seccompProfile": {"type": "Unconfined"}}
    first, second = spec["containers"]
    assert first["securityContext"] == {
        "capabilities": {"drop": ["ALL"], "add": ["NET_RAW"]},
        "allowPrivilegeEscalation": True,
    }
    assert second["securityContext"] == {"privileged": True}, (
        "the API refuses a privileged container that may not escalate"
    )


def test_the_policy_lets_the_job_in_and_nothing_out() -> None:
    policy = sandbox_policy(agentic())
    assert policy is not None
    spec = policy["spec"]
    assert spec["podSelector"]["matchLabels"] == {"rljob.dev/uid": UID, "rljob.dev/role": "sandbox"}
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"] == []
    ((peer,),) = [rule["from"] for rule in spec["ingress"]]
    assert peer["podSelector"]["matchLabels"] == {"rljob.dev/uid": UID}
    assert peer["podSelector"]["matchExpressions"][0]["values"] == ["driver", "sampler", "trainer"]


def test_other_networks_let_more_out_or_leave_it_to_the_user() -> None:
    policy = sandbox_policy(agentic(network="job"))
    assert policy is not None
    to_job, to_dns = policy["spec"]["egress"]
    assert to_job["to"][0]["podSelector"]["matchLabels"] == {"rljob.dev/uid": UID}
    assert {port["port"] for port in to_dns["ports"]} == {53}
    assert sandbox_policy(agentic(network="open")) is None
    with pytest.raises(TemplateError, match=r"hostNetwork goes past the NetworkPolicy.*sandbox.network: open"):
        companion_template(agentic(hostNetwork=True), "sandbox")
    assert companion_template(agentic(network="open", hostNetwork=True), "sandbox")["spec"]["hostNetwork"] is True


def test_the_driver_sees_the_layout_and_there_is_never_more_than_one() -> None:
    deployment = companions(agentic(), drivers=1, sandboxes=1)[-1]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["volumeMounts"] == [{"name": "rljob-layout", "mountPath": "/etc/rljob", "readOnly": True}]
    assert {v["name"]: v["value"] for v in container["env"]} == {
        "RLJOB_NAME": "mine",
        "RLJOB_NAMESPACE": "rl",
        "RLJOB_ROLE": "driver",
        "RLJOB_UID": UID,
    }


@pytest.mark.parametrize("where", ["initContainers", "overhead"])
def test_gpus_are_refused_wherever_they_hide(where: str) -> None:
    asks: dict[str, Any] = (
        {"initContainers": [{"name": "i", "image": "x", "resources": {"limits": {GPU: 1}}}]}
        if where == "initContainers"
        else {"overhead": {GPU: "1"}}
    )
    with pytest.raises(TemplateError, match="asks for 1 GPUs, which would count in no budget"):
        companions(agentic(**asks), drivers=1, sandboxes=1)


@pytest.mark.parametrize(
    ("pod_spec", "words"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, r"spec\.sandbox\.template\.spec\.resourceClaims"),
        (
            {"containers": [{"name": "m", "env": [{"name": "RLJOB_UID", "value": "x"}]}]},
            "container m sets RLJOB_UID",
        ),
        ({"containers": [{"name": "m", "env": ["A=b"]}]}, "can't be read as a PodTemplateSpec"),
    ],
)
def test_a_companions_template_that_cant_work_is_refused(pod_spec: dict[str, Any], words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        trial_pods(agentic(**pod_spec), SPLIT)


def test_trials_and_the_gate_know_companions() -> None:
    names = [p["metadata"]["generateName"] for p in trial_pods(agentic(), SPLIT)]
    assert names == ["mine-trial-sampler-", "mine-trial-trainer-", "mine-trial-sandbox-", "mine-trial-driver-"]
    pod = companions(agentic(), drivers=1, sandboxes=1)[2]["spec"]["template"]
    assert pod_gpus(pod, GPU) == 0
    assert pods_to_lift([pod], budget=0, gpu_resource=GPU, wanted={}) == ()
