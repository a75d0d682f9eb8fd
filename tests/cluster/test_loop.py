"""The loop on a real API server, scheduler and Prometheus: lengths drift, GPUs move, and nothing that fails breaks the budget."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from rljob_operator.byhand import ANNOTATION
from tests.cluster.jobs import drifting_job, emulation
from tests.cluster.rig import Rig, eventually

Json = dict[str, Any]

pytestmark = pytest.mark.timeout(600)
"""Lengths are known only once long responses have ended: a first decision to move takes some two minutes, and more on a busy machine."""


def codes(rig: Rig) -> list[str]:
    return [d["code"] for d in rig.status("job").get("decisions", ())]


def uids(rig: Rig) -> set[str]:
    """The pods, by what no two of them ever share."""
    return {p["metadata"]["uid"] for p in rig.objects("pods")}


def events(rig: Rig, reason: str, words: str = "") -> list[str]:
    """The messages of the job's events for a reason that hold ``words``."""
    return [e["message"] for e in rig.events("job") if e["reason"] == reason and words in e["message"]]


def replicas(split: Json) -> tuple[int, int]:
    return split["samplers"]["replicas"], split["trainers"]["replicas"]


def begin(rig: Rig, *, drift: bool = True, **spec: Any) -> Json:
    """Starts everything around the drifting job; returns the first split."""
    rig.start_prometheus()
    rig.start_operator()
    rig.apply(drifting_job(rig.namespace, **spec))
    rig.start_emulator("job", emulation(drift=drift))
    first: Json = rig.wait_phase("job", "Running")["split"]
    return first


def wait_move(rig: Rig, phase: str | None = None, timeout_s: float = 300.0) -> Json:
    """Waits for a move to be under way, in a phase if one is named."""

    def under_way() -> Json | None:
        move = rig.status("job").get("rebalance")
        return move if move and phase in (None, move["phase"]) else None

    try:
        return dict(eventually(under_way, f"a move in {phase or 'any phase'}", timeout_s=timeout_s, every_s=0.05))
    except AssertionError as error:
        told = [(d["code"], d["message"]) for d in rig.status("job").get("decisions", ())]
        raise AssertionError(f"{error}; decisions {told}") from error


def ask_for_move(rig: Rig, first: Json) -> None:
    """Asks for one trainer's GPUs as samplers: where the way of a move is the point, nobody need wait for the reason to make one."""
    samplers, trainers = replicas(first)
    made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    wished = {"id": "by-hand", "samplers": samplers + 4, "trainers": trainers - 1, "at": made}
    rig.plane.kubectl("-n", rig.namespace, "annotate", "rljob", "job", f"{ANNOTATION}={json.dumps(wished)}")


def wait_moved(rig: Rig, timeout_s: float = 300.0) -> Json:
    """Waits for the first committed move and returns the status."""
    eventually(lambda: rig.status("job").get("moves", {}).get("moves", 0) >= 1, "a committed move", timeout_s=timeout_s)
    return rig.status("job")


def test_gpus_move_from_trainers_to_samplers_as_lengths_grow(rig: Rig) -> None:
    first = begin(rig)
    status = wait_moved(rig)
    now = status["split"]
    assert replicas(now)[0] > replicas(first)[0]
    assert replicas(now)[1] < replicas(first)[1]
    assert rig.recorder.peak <= 16
    committed = next(d for d in status["decisions"] if d["code"] == "MoveCommitted")
    assert (replicas(committed["from"]), replicas(committed["to"])) == (replicas(first), replicas(now))
    assert committed["predictedGain"] >= 0.03
    reasons = {e["reason"] for e in rig.events("job")}
    assert {"MoveStarted", "MoveAnnounce", "MoveDrain", "MoveShrink", "MoveGrow", "MoveVerify"} <= reasons
    # Whoever reads `kubectl describe` alone learns what was done, why, what it gained and what comes next.
    eventually(
        lambda: any(e["reason"] == "MoveMeasured" for e in rig.events("job")), "the gain is measured", timeout_s=90
    )
    told = " ".join(rig.plane.kubectl("describe", "rljob", "job", "-n", rig.namespace).stdout.split())
    moved = f"{first['samplers']['replicas']}×1 samplers + {first['trainers']['replicas']}×4 trainers to "
    assert f"The last move, {moved}" in told
    assert "made as responses went from" in told
    assert "of the period, " in told
    assert "decides again every 2s" in told


@pytest.mark.parametrize("phase", ["Announce", "Shrink", "Grow", "Verify"])
def test_an_operator_killed_in_mid_move_ends_it_after_a_restart(rig: Rig, phase: str) -> None:
    # Pods that come and go slowly hold each phase open long enough to be hit.
    slow = {"metadata": {"annotations": {"dev.rljob.dev/start-delay": "4s", "dev.rljob.dev/stop-delay": "4s"}}}
    first = begin(rig, drift=False, sampler={"template": slow}, trainer={"template": slow})
    ask_for_move(rig, first)
    wait_move(rig, phase)
    assert rig.operator is not None
    rig.operator.kill()
    before = rig.status("job")["rebalance"]
    rig.operator.start()
    eventually(lambda: rig.status("job").get("rebalance") is None, f"the move {before['id']} ends", timeout_s=90)
    status = rig.status("job")
    assert status["moves"]["lastOutcome"] in ("Committed", "RolledBack")
    assert replicas(status["split"]) in (replicas(first), replicas(before["to"]))
    rig.wait_condition("job", "Ready", "True")
    rig.wait_condition("job", "Rebalancing", "False")
    assert len(rig.objects("pods")) == sum(replicas(status["split"]))
    committed = status["moves"]["lastOutcome"] == "Committed"
    assert {"MoveByHand", "MoveCommitted" if committed else "MoveRolledBack"} <= set(codes(rig))
    # Of a phase that was over when it was killed, the event may be lost with it; the one that ends the move comes from its successor.
    eventually(
        lambda: any(e["reason"] == "MoveVerify" or e["type"] == "Warning" for e in rig.events("job")),
        "an event tells the end",
    )
    assert rig.recorder.peak <= 16


def test_without_prometheus_nothing_is_resized_and_it_recovers_by_itself(rig: Rig) -> None:
    begin(rig, drift=False)
    rig.wait_condition("job", "MetricsAvailable", "True")
    assert rig.prometheus is not None
    before, pods = rig.status("job")["split"], uids(rig)
    rig.prometheus.stop()
    found = rig.wait_condition("job", "MetricsAvailable", "False")
    url = rig.prometheus.url
    assert url in found["message"]
    eventually(lambda: events(rig, found["reason"], url), "an event says so")
    eventually(lambda: "MetricsUnknown" in codes(rig), "the decision says so")
    # As long as it is away nothing may move: at least ten decisions long.
    eventually(
        lambda: (
            max((d["count"] for d in rig.status("job")["decisions"] if d["code"] == "MetricsUnknown"), default=0) >= 10
        ),
        "ten decisions without metrics",
    )
    status = rig.status("job")
    assert status["split"] == before
    assert status.get("rebalance") is None
    assert uids(rig) == pods
    assert not events(rig, "MoveStarted")
    rig.prometheus.start_again()
    rig.wait_condition("job", "MetricsAvailable", "True")
    eventually(lambda: codes(rig)[-1] not in ("MetricsUnknown", "Settling"), "decisions go on")
    assert rig.recorder.peak <= 16


def test_a_trainer_that_never_acknowledges_makes_the_move_roll_back(rig: Rig) -> None:
    rig.start_prometheus()
    rig.start_operator(RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE="5s")
    rig.apply(drifting_job(rig.namespace))
    rig.start_emulator("job", emulation())
    first = rig.wait_phase("job", "Running")["split"]
    rig.wait_condition("job", "MetricsAvailable", "True")
    pods = uids(rig)
    rig.set_faults(acknowledge_after_s=None)
    eventually(lambda: "MoveRolledBack" in codes(rig), f"a roll-back; decisions {codes(rig)}", timeout_s=300)
    status = rig.status("job")
    assert replicas(status["split"]) == replicas(first)
    assert status["moves"]["failures"] == 1
    assert status["moves"]["notBefore"] > status["moves"]["lastEndedAt"]
    rig.wait_condition("job", "Ready", "True")
    rig.wait_condition("job", "Rebalancing", "False")
    assert uids(rig) == pods, "what nobody acknowledged took no pod"
    assert events(rig, "MoveAnnounce", "Announce missed its deadline")
    # It is still wished, and waits.
    eventually(lambda: "BackOff" in codes(rig), "the next decision waits for the back-off", timeout_s=120)
    assert rig.recorder.peak <= 16


def test_a_pod_stuck_in_terminating_holds_the_other_side_back(rig: Rig) -> None:
    stuck = {"metadata": {"annotations": {"dev.rljob.dev/hang-terminating": "true"}}}
    ask_for_move(rig, begin(rig, drift=False, trainer={"template": stuck}))
    move = wait_move(rig, "Shrink")
    victim = move["victims"][0]

    def waits() -> bool:
        found = rig.status("job").get("rebalance")
        return found is not None and victim in found.get("waitingFor", "")

    eventually(waits, "the move names the pod that it waits for")
    found = rig.condition("job", "Rebalancing")
    assert found is not None
    assert victim in found["message"]
    samplers = rig.objects("pods", "rljob.dev/role=sampler")
    assert len(samplers) == replicas(move["from"])[0], "the receiver has not grown"
    rig.plane.kubectl("annotate", "pod", victim, "-n", rig.namespace, "dev.rljob.dev/hang-terminating-")
    wait_moved(rig)
    rig.wait_condition("job", "Rebalancing", "False")
    assert {"MoveByHand", "MoveCommitted"} <= set(codes(rig))
    assert {"MoveStarted", "MoveShrink", "MoveGrow"} <= {e["reason"] for e in rig.events("job")}
    assert rig.recorder.peak <= 16


@pytest.mark.parametrize(("mode", "code"), [("Recommend", "RecommendOnly"), ("Initial", "InitialOnly")])
def test_other_modes_say_what_auto_would_do_and_do_nothing(rig: Rig, mode: str, code: str) -> None:
    first = begin(rig, rebalance={"mode": mode})
    pods = uids(rig)

    def wished_split() -> Json | None:
        # The same code also stands for a wished in-flight cap, which names no other split.
        said = rig.status("job").get("decisions", ())
        return next((d for d in said if d["code"] == code and "to" in d), None)

    said = eventually(wished_split, f"the decision {code} about a split; there are {codes(rig)}", timeout_s=300)
    assert replicas(said["to"]) != replicas(first)
    assert said["predictedGain"] >= 0.03
    status = rig.status("job")
    assert status["split"] == first
    assert status.get("rebalance") is None
    assert uids(rig) == pods
    assert not events(rig, "MoveStarted")
    assert rig.condition("job", "Ready")["status"] == "True"  # type: ignore[index]
    assert rig.condition("job", "Rebalancing")["status"] == "False"  # type: ignore[index]
    assert rig.recorder.peak <= 16


def test_a_run_that_reaches_its_last_step_is_complete_and_frees_its_gpus(rig: Rig) -> None:
    begin(rig, drift=False, workload={"steps": 12})
    rig.wait_phase("job", "Complete", timeout_s=300)
    eventually(lambda: not rig.objects("pods"), "all GPUs are freed", timeout_s=60)
    assert any(e["reason"] == "Complete" for e in rig.events("job"))
    assert rig.status("job")["phase"] == "Complete"
    assert rig.recorder.peak <= 16
