"""What ails a job that no other split cures, and what hinders a move that would: said in conditions, events and decisions; no pod is taken for it.

Noise, a slow sampler, one that crashes, staleness over its limit, trainers that may not change, a drain that runs out of time: on a real API
server and Prometheus, beside a job whose speeds and lengths are set so that each comes soon.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from dev.controlplane.ports import free_ports
from dev.controlplane.rest import MERGE_PATCH
from rljob_operator.byhand import ANNOTATION
from tests.cluster.jobs import drifting_job, emulation, merged
from tests.cluster.moving import codes, condition, pods, read, replicas, said, status, staying, until, wait_move
from tests.cluster.rig import Rig

Json = dict[str, Any]

WELL = {
    "Ready": "True AllReady",
    "Planned": "True WorkAtRisk",
    "Scheduled": "True AllBound",
    "MetricsAvailable": "True MetricsFound",
    "WithinStaleness": "True WithinLimit",
    "Rebalancing": "False NoMove",
    "Degraded": "False AsExpected",
}
"""The conditions of a job that nothing ails; its samplers have no readinessProbe, which is said of work at risk."""

SPEEDS = {"decode": {"speed": 0.95}, "train": {"speed": 0.8}}
"""Speeds of both sides that suit the first split as those of the demo do, and are near enough to the model's."""

MOVES = {"Move", "MoveByHand", "MoveCommitted", "MoveRolledBack", "SpecChanged", "BudgetRaised"}
"""Codes of decisions that there are only where pods are moved."""


class Begun:
    """A job that runs, and what it was when all of its pods had come."""

    def __init__(self, rig: Rig, emulated: Json, **spec: Any) -> None:
        """Starts everything around the job; ``emulated`` is the configuration of its emulator."""
        self._rig, self._port = rig, free_ports(1)[0]
        rig.start_prometheus()
        rig.start_operator(RLJOB_OPERATOR_METRICS_PORT=str(self._port))
        rig.apply(drifting_job(rig.namespace, **spec))
        rig.start_emulator("job", emulated)
        until(rig, lambda: condition(rig, "Ready").get("status") == "True", "the job is ready")
        self.split: Json = status(rig)["split"]
        self.pods = uids(rig)
        assert len(self.pods) == sum(replicas(self.split))

    def counted(self, name: str, words: str = "") -> float:
        """The sum over the operator's own series of a name, or over those whose labels hold ``words``."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{") and words in line)

    def decided(self, *kinds: str) -> float:
        """How often the operator has decided on one of these codes."""
        return sum(self.counted("rljob_operator_decision_total", f'code="{kind}"') for kind in kinds)

    def assert_nothing_moved(self) -> None:
        """The very pods of the start, and neither a decision nor an event about others."""
        found = status(self._rig)
        assert uids(self._rig) == self.pods
        assert replicas(found["split"]) == replicas(self.split)
        assert found.get("rebalance") is None
        assert found["moves"]["moves"] == 0
        assert not MOVES & set(codes(self._rig))
        assert not said(self._rig, "MoveStarted")()
        assert self._rig.recorder.peak <= 16


def uids(rig: Rig) -> dict[str, str]:
    """The job's pods by name, with what no two of them ever share."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods(rig)}


def shown(rig: Rig) -> dict[str, str]:
    """Status and reason of each condition."""
    return {c["type"]: f"{c['status']} {c['reason']}" for c in status(rig).get("conditions", ())}


def told(rig: Rig, kind: str, reason: str, *words: str) -> Callable[[], list[str]]:
    """Asks for the messages of the job's events of a type and for a reason that hold all ``words``."""
    return lambda: [
        e["message"]
        for e in rig.events("job")
        if (e["type"], e["reason"]) == (kind, reason) and all(part in e["message"] for part in words)
    ]


def last(rig: Rig, code: str, *words: str) -> Callable[[], Json | None]:
    """Asks for the newest decision, if it has this code and its message holds all ``words``."""

    def found() -> Json | None:
        newest = (status(rig).get("decisions") or [{}])[-1]
        fits = newest.get("code") == code and all(part in newest["message"] for part in words)
        return newest if fits else None

    return found


def set_ready(rig: Rig, name: str, *, ready: bool) -> None:
    """Says of a pod's container what its kubelet would: that it runs, or that it has crashed again and waits for the next try."""
    path = f"/api/v1/namespaces/{rig.namespace}/pods/{name}"
    pod = rig.plane.api.request("GET", path)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        c if c["type"] not in ("Ready", "ContainersReady") else {**c, "status": str(ready), "lastTransitionTime": now}
        for c in pod["status"]["conditions"]
    ]
    state = {"running": {"startedAt": now}} if ready else {"waiting": {"reason": "CrashLoopBackOff"}}
    containers = [
        {**c, "ready": ready, "started": ready, "restartCount": c["restartCount"] + 1, "state": state}
        for c in pod["status"]["containerStatuses"]
    ]
    body = {"status": {"conditions": conditions, "containerStatuses": containers}}
    rig.plane.api.request("PATCH", f"{path}/status", body, content_type=MERGE_PATCH)


def layout(rig: Rig) -> Json:
    """The layout as it is published."""
    found = read(rig, f"/api/v1/namespaces/{rig.namespace}/configmaps/job-layout")
    assert found is not None
    return dict(json.loads(found["data"]["layout.json"]))


def hidden(truth: Json = SPEEDS, *, drift: bool = False, **changes: Any) -> Json:
    """What the emulated hardware does, with other speeds or noise and other ``changes``."""
    return merged(emulation(drift=drift), {"truth": truth, **changes})


def ask(rig: Rig, samplers: int, trainers: int) -> None:
    """Asks for a move, as a person does."""
    made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    wished = {"id": "by-hand", "samplers": samplers, "trainers": trainers, "at": made}
    rig.plane.kubectl("-n", rig.namespace, "annotate", "rljob", "job", f"{ANNOTATION}={json.dumps(wished)}")


def test_noise_a_slow_sampler_and_one_that_crashes_are_no_reason_to_move(rig: Rig) -> None:
    job = Begun(rig, hidden(merged(SPEEDS, {"decode": {"noise": 0.2}, "train": {"noise": 0.2}})))
    # Steps that differ by a fifth, and nothing behind it.
    judged = ("AtOptimum", "GainTooSmall", "NotWorthCost", "Uncertain")
    until(rig, lambda: job.decided(*judged) >= 15, "15 decisions about the split", timeout_s=150)
    until(rig, lambda: shown(rig) == WELL, "all is well")
    assert last(rig, "SideBroken")() is None
    assert told(rig, "Normal", "InitialPlan", "8×1 samplers + 2×4 trainers")()
    job.assert_nothing_moved()

    # One takes far longer for every token than its siblings.
    slow = sorted(staying(rig, "sampler"))[0]
    rig.set_faults(slow_samplers={slow: 6.0})
    until(rig, last(rig, "SideBroken", slow, "its siblings", "cordon the node"), "the slow sampler is named")
    until(rig, lambda: shown(rig) == WELL | {"Degraded": "True SideBroken"}, "and the condition says so")
    assert slow in condition(rig, "Degraded")["message"]
    until(rig, told(rig, "Warning", "SideBroken", slow, "look at its node"), "and an event")
    until(rig, lambda: (last(rig, "SideBroken")() or {"count": 0})["count"] >= 4, "four decisions to leave it so")
    job.assert_nothing_moved()

    # The same one crashes.
    before = job.decided("SideBroken")
    set_ready(rig, slow, ready=False)
    rig.set_faults(slow_samplers={})
    until(rig, last(rig, "SideBroken", f"{slow} is in CrashLoopBackOff", "see its logs"), "the crash is named")
    broken = {"Degraded": "True PodsBroken", "Ready": "False PodsNotReady"}
    until(rig, lambda: broken.items() <= shown(rig).items(), "and the conditions say so")
    assert f"{slow} is in CrashLoopBackOff" in condition(rig, "Degraded")["message"]
    assert "the split is left alone" in condition(rig, "Degraded")["message"]
    until(rig, told(rig, "Warning", "PodsBroken", slow, "look at their logs"), "and an event")
    until(rig, lambda: slow not in {e["pod"] for e in layout(rig)["samplers"]["endpoints"]}, "nothing is sent to it")
    until(rig, lambda: job.decided("SideBroken") >= before + 4, "four more decisions to leave it so")
    job.assert_nothing_moved()

    set_ready(rig, slow, ready=True)
    until(rig, lambda: shown(rig) == WELL, "it is well again")
    until(rig, told(rig, "Normal", "AsExpected"), "and an event says so")
    until(rig, lambda: slow in {e["pod"] for e in layout(rig)["samplers"]["endpoints"]}, "it is used again")
    assert last(rig, "SideBroken")() is None
    job.assert_nothing_moved()


def test_staleness_over_its_limit_lowers_the_cap_and_leaves_the_split(rig: Rig) -> None:
    # Trainers slower than planned, in a framework that lets samples wait for as long as they like.
    slow = hidden({"train": {"speed": 0.5}})
    job = Begun(rig, slow, staleness={"max": 2, "bound": "none"}, trainer={"maxReplicas": 2})
    over = "is over the limit of 2: the in-flight cap goes from"
    until(rig, told(rig, "Normal", "LowerCap", "mean staleness", over), "an event says that the cap is lowered")
    found = status(rig)
    decision = next(d for d in found["decisions"] if d["code"] == "LowerCap")
    assert f"{over} {job.split['inFlight']} to" in decision["message"]
    assert found["split"] == job.split | {"inFlight": found["split"]["inFlight"]}
    assert found["split"]["inFlight"] < job.split["inFlight"]
    until(rig, lambda: layout(rig)["inFlightCap"] == status(rig)["split"]["inFlight"], "the layout says it")
    until(rig, lambda: shown(rig) == WELL | {"WithinStaleness": "False OverLimit"}, "the condition says so")
    assert "limit 2 under bound none" in condition(rig, "WithinStaleness")["message"]
    until(rig, told(rig, "Warning", "OverLimit", "the in-flight cap is lowered", "enforces the bound"), "and an event")
    # The job has read it, and keeps to it.
    until(
        rig,
        lambda: (
            status(rig)["observed"]["layoutGeneration"] >= layout(rig)["generation"]
            and status(rig)["observed"]["inFlightSamples"] <= status(rig)["split"]["inFlight"]
        ),
        "fewer samples are in flight",
    )
    job.assert_nothing_moved()


def test_trainers_that_are_fixed_stay_and_what_they_cost_is_told(rig: Rig) -> None:
    job = Begun(rig, hidden(drift=True), trainer={"resize": "fixed"})
    told_so = "would save", "but trainer.resize is fixed: set it to elastic"
    decision = until(rig, last(rig, "TrainerFixed", *told_so), "what the trainers cost is told", timeout_s=200)
    assert replicas(decision["to"])[1] < replicas(job.split)[1]
    assert replicas(decision["to"])[0] > replicas(job.split)[0]
    assert decision["predictedGain"] >= 0.03
    until(rig, lambda: job.decided("TrainerFixed") >= 3, "three decisions to leave it so")
    until(rig, lambda: shown(rig) == WELL, "nothing is broken")
    until(rig, lambda: "would be better, but trainer.resize is fixed" in status(rig)["next"], "what comes next says it")

    def recommended() -> tuple[float, ...]:
        name = "rljob_operator_recommended_replicas"
        return tuple(job.counted(name, f'side="{side}"') for side in ("samplers", "trainers"))

    until(rig, lambda: recommended() == replicas(decision["to"]), "the operator's metrics say what it would choose")
    # A person gets no further.
    ask(rig, *replicas(decision["to"]))
    until(rig, told(rig, "Warning", "MoveRefused", "trainer.resize is fixed, so that trainers stay 2"), "it is refused")
    job.assert_nothing_moved()


def test_samplers_that_do_not_run_empty_go_at_the_drain_timeout_and_the_move_is_made(rig: Rig) -> None:
    long = hidden(lengths={"trace": [[0, 1400]]})
    job = Begun(rig, long, sampler={"drainTimeout": "3s"}, rebalance={"mode": "Initial"})
    assert replicas(job.split) == (8, 2)
    until(rig, lambda: (status(rig).get("observed") or {}).get("inFlightSamples"), "samples run")
    ask(rig, 4, 3)
    move = wait_move(rig, "Drain")
    assert len(move["victims"]) == 4
    until(rig, lambda: status(rig)["moves"]["moves"] == 1, "the move is made all the same")
    (warning,) = told(rig, "Warning", "MoveDrain", "Drain timed out: samplers to finish their samples", "going on")()
    assert sum(f"{name} (" in warning for name in move["victims"]) >= 3, "a few are named, with what they ran"
    assert "running" in warning
    for reason in ("MoveStarted", "MoveAnnounce", "MoveShrink", "MoveGrow", "MoveVerify"):
        assert told(rig, "Normal", reason)()
    found = status(rig)
    assert replicas(found["split"]) == (4, 3)
    assert found["moves"]["lastOutcome"] == "Committed"
    assert {"MoveByHand", "MoveCommitted"} <= set(codes(rig))
    assert job.counted("rljob_operator_drain_timeouts_total") == 1
    # Those are the samples of pods that went without having been named.
    assert found["moves"]["lostSamples"] == 0
    assert job.counted("rljob_operator_lost_samples_total") == 0
    left, now = job.pods.keys() - set(move["victims"]), uids(rig)
    assert {name: job.pods[name] for name in left}.items() <= now.items(), "nobody else went"
    assert len(now) == 4 + 3
    assert len(staying(rig, "trainer") - job.pods.keys()) == 1
    until(rig, lambda: shown(rig) == WELL, "all is well")
    assert rig.recorder.peak <= 16
