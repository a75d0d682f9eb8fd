"""Sandboxes and a driver on a real API server: shut in, sized by live environment time, and ended in order."""

from __future__ import annotations

from typing import Any

from tests.cluster.conftest import TEST_LABEL
from tests.cluster.jobs import drifting_job, emulation
from tests.cluster.rig import GPU, Rig, eventually

Json = dict[str, Any]


def cpu_template(namespace: str, name: str) -> Json:
    """A pod on the test's nodes that asks for no GPU."""
    return {
        "metadata": {"annotations": {"dev.rljob.dev/start-delay": "300ms", "dev.rljob.dev/stop-delay": "300ms"}},
        "spec": {
            "nodeSelector": {TEST_LABEL: namespace},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": name, "image": "example.com/none:1", "ports": [{"containerPort": 9000}]}],
        },
    }


def agentic_job(namespace: str, **spec: Any) -> Json:
    return drifting_job(
        namespace,
        **{
            "workload": {"environment": {"secondsPerTurn": 0.05, "turns": 3}},
            "sandbox": {"maxReplicas": 60, "template": cpu_template(namespace, "sandbox")},
            "driver": {"template": cpu_template(namespace, "driver")},
            "rebalance": {"mode": "Initial", "cooldown": "6s", "interval": "2s"},
            **spec,
        },
    )


def sandboxes(rig: Rig) -> Json:
    return dict(rig.status("job").get("sandboxes") or {})


def test_companions_start_with_the_job_and_sandboxes_are_shut_in(rig: Rig) -> None:
    rig.start_operator()
    rig.apply(agentic_job(rig.namespace))
    rig.wait_phase("job", "Running")
    status = sandboxes(rig)
    assert status["source"] == "Planned"
    eventually(lambda: sandboxes(rig)["ready"] == sandboxes(rig)["replicas"] > 0, "the planned sandboxes are ready")
    pods = rig.objects("pods", "rljob.dev/role=sandbox")
    for pod in pods:
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert not spec.get("volumes"), "no token, no layout"
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert GPU not in (spec["containers"][0].get("resources", {}).get("requests") or {})
    policy = rig.get("networkpolicy", "job-sandboxes")
    assert policy is not None
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pods[0]["metadata"]["labels"].items()
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"].get("egress") in (None, [])
    (driver,) = rig.objects("pods", "rljob.dev/role=driver")
    assert any(m["mountPath"] == "/etc/rljob" for m in driver["spec"]["containers"][0]["volumeMounts"])
    assert rig.get("service", "job-driver") is not None
    assert rig.recorder.peak <= 16
    # Left out of the spec again, they go; what trains stays.
    split = rig.status("job")["split"]
    rig.apply(agentic_job(rig.namespace, sandbox=None, driver=None))
    for kind in ("deployment", "service", "networkpolicy"):
        for name in ("job-sandboxes", "job-driver"):
            eventually(lambda k=kind, n=name: rig.get(k, n) is None, f"{kind} {name} is gone")
    assert rig.status("job")["split"] == split
    assert "sandboxes" not in rig.status("job")
    assert not any(e["reason"] == "ChildEdited" for e in rig.events("job"))


def test_sandboxes_follow_live_environment_time_and_end_after_the_samplers(rig: Rig) -> None:
    rig.start_prometheus()
    rig.start_operator()
    rig.apply(agentic_job(rig.namespace))
    rig.start_emulator("job", emulation(drift=False))
    rig.wait_phase("job", "Running")
    rig.set_faults(environment_s=0.1)
    few = eventually(lambda: sandboxes(rig).get("source") == "Measured" and sandboxes(rig), "environments are measured")
    rig.set_faults(environment_s=0.8)
    many = eventually(
        lambda: sandboxes(rig)["replicas"] > few["replicas"] and sandboxes(rig),
        "slower environments get more sandboxes",
    )
    assert "turns a second" in many["reason"]
    assert any(e["reason"] == "SandboxesScaled" for e in rig.events("job"))
    eventually(lambda: len(rig.objects("pods", "rljob.dev/role=sandbox")) >= many["replicas"], "the pods are there")
    # Nobody reports: what was measured stays.
    rig.set_faults(silent_roles=["trainer"])
    rig.wait_condition("job", "MetricsAvailable", "False")
    eventually(lambda: "busy" not in sandboxes(rig), "that it is unknown is known")
    held = sandboxes(rig)["replicas"]
    looks = {rig.status("job")["observed"]["at"]}

    def looked_on() -> bool:
        looks.add(rig.status("job")["observed"]["at"])
        return len(looks) > 4

    eventually(looked_on, "four more looks, longer than the cooldown")
    assert sandboxes(rig)["replicas"] == held
    rig.set_faults(silent_roles=[], environment_s=0.02)
    eventually(lambda: sandboxes(rig)["replicas"] < held, "fewer, once fewer have been enough for the cooldown")
    # Suspended, the samplers drain first; sandboxes and driver end with them.
    rig.apply(agentic_job(rig.namespace, suspend=True))
    eventually(lambda: not rig.objects("pods"), "all pods are gone")
    assert sandboxes(rig)["replicas"] == 0
    assert rig.recorder.peak <= 16
    rig.apply(agentic_job(rig.namespace))
    rig.wait_phase("job", "Running")
    eventually(lambda: sandboxes(rig)["ready"] > 0, "they come back with the job")


def test_a_driver_that_can_not_run_is_said(rig: Rig) -> None:
    rig.start_operator()
    nowhere = cpu_template(rig.namespace, "driver")
    nowhere["spec"]["nodeSelector"] = {"no": "node"}
    rig.apply(agentic_job(rig.namespace, driver={"template": nowhere}))
    found = rig.wait_condition("job", "Degraded", "True", "CompanionNotPlaced")
    assert "driver" in found["message"]
    assert "spec.driver.template" in found["message"]
    found = rig.wait_condition("job", "Ready", "False", "PodsNotReady")
    eventually(
        lambda: "the driver is not" in (rig.condition("job", "Ready") or {})["message"], "Ready says who is missing"
    )
    rig.apply(agentic_job(rig.namespace))
    rig.wait_condition("job", "Ready", "True")
    rig.wait_condition("job", "Degraded", "False")
