"""What a finished run measured starts the next one, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.cluster.jobs import drifting_job, emulation
from tests.cluster.rig import Rig, eventually

Json = dict[str, Any]

pytestmark = pytest.mark.cluster


def job(rig: Rig, name: str, **spec: Any) -> Json:
    found = drifting_job(rig.namespace, workload={"steps": 30}, **spec)
    found["metadata"]["name"] = name
    return found


def test_a_finished_run_leaves_a_profile_and_the_next_plan_names_it(rig: Rig) -> None:
    rig.start_prometheus()
    rig.start_operator()
    rig.apply(job(rig, "first"))
    rig.start_emulator("first", emulation(drift=False))
    first = rig.wait_phase("first", "Complete", timeout_s=180)
    assert "learned" not in first
    assert len(rig.objects("rljobprofiles")) == 1, [(e["reason"], e["message"]) for e in rig.events("first")]
    (profile,) = rig.objects("rljobprofiles")
    name, spec = profile["metadata"]["name"], profile["spec"]
    (run,) = spec["runs"]
    assert run["job"] == "first"
    # A factor at its limit says only that the model does not describe the emulated job, and is left out.
    factors = {side: run.get(f"{side}Factor") for side in ("sampler", "trainer")}
    measured = {side: first["calibration"][f"{side}Factor"] for side in factors}
    assert all(f == (measured[side] if 0.5 < measured[side] < 2.0 else None) for side, f in factors.items())
    assert run["observations"] == first["calibration"]["observations"] >= 3
    assert 1 <= len(run["lengths"]) <= 32
    assert any(e["reason"] == "ProfileKept" and name in e["message"] for e in rig.events("first"))
    assert "ownerReferences" not in profile["metadata"], "it outlives its job"
    listed = rig.plane.kubectl("get", "rljobprofiles", "-n", rig.namespace).stdout
    assert [name, "first"] == [listed.splitlines()[1].split()[i] for i in (0, 4)], listed

    eventually(lambda: not rig.objects("pods"), "all GPUs are freed", timeout_s=60)
    rig.plane.kubectl("delete", "rljob", "first", "-n", rig.namespace)
    rig.apply(job(rig, "second"))
    planned = rig.wait_condition("second", "Planned", "True")
    assert f"RLJobProfile {name} (1 run, the last first)" in planned["message"]
    second = rig.status("second")
    assert any(name in source for source in second["plan"]["sources"])
    assert second["learned"]["profile"] == name
    for side, factor in factors.items():
        assert second["calibration"][f"{side}Factor"] == (factor or 1.0)
    assert second["calibration"]["observations"] == 0, "what was known is no measurement of this run"
    assert rig.recorder.peak <= 16


def test_a_calibration_that_is_asked_for_is_waited_for_and_then_used(rig: Rig) -> None:
    rig.start_operator()
    rig.apply(job(rig, "measured", calibration={"configMap": "speeds"}))
    missing = rig.wait_condition("measured", "Planned", "False", "CalibrationMissing")
    assert "--from-file=calibration.yaml=FILE" in missing["message"]
    assert not rig.objects("pods"), "nothing is created without it"

    def config_map(text: str) -> Json:
        metadata = {"name": "speeds", "namespace": rig.namespace}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"calibration.yaml": text}}

    rig.plane.apply(yaml.safe_dump(config_map("rljobCalibration: 1\nsamplers: {factor: 20}\n")))
    # The spec is edited in the meantime, so that it is looked at again at once.
    rig.plane.kubectl(
        "patch", "rljob", "measured", "-n", rig.namespace, "--type=merge", "-p", '{"spec":{"priority":1}}'
    )
    invalid = rig.wait_condition("measured", "Planned", "False", "CalibrationInvalid")
    assert "samplers.factor" in invalid["message"]
    rig.plane.apply(yaml.safe_dump(config_map(CALIBRATION)))
    rig.plane.kubectl(
        "patch", "rljob", "measured", "-n", rig.namespace, "--type=merge", "-p", '{"spec":{"priority":2}}'
    )
    rig.wait_condition("measured", "Planned", "True")
    status = rig.status("measured")
    assert status["learned"]["configMap"] == "speeds"
    assert status["learned"]["decode"]["mbu"] == 0.6
    assert status["plan"]["sources"] == ["ConfigMap speeds: speeds measured before the run"]


CALIBRATION = """\
rljobCalibration: 1
measuredOn: {model: own, gpu: H100-SXM, tensorParallel: 1, weights: bf16, kvCache: bf16}
samplers:
  factor: 1.0
  decode: {mbu: 0.6, mfu: 0.5, layerSeconds: 0.00001, stepSeconds: 0.002, requestSeconds: 0.00001}
"""
