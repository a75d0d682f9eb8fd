"""Trainers that restart, and jobs that pause, beside a real Prometheus and a job that writes checkpoints when it is asked to."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from tests.cluster.jobs import drifting_job, emulation
from tests.cluster.moving import codes, condition, edit, pods, read, replicas, said, status, until
from tests.cluster.rig import Recorder, Rig

Json = dict[str, Any]


class Trainers(Recorder):
    """Also keeps which trainer pods were there at once."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.together: set[frozenset[str]] = set()
        super().__init__(kubeconfig, namespace)

    def _note(self) -> None:
        super()._note()
        roles = {uid: pod["metadata"].get("labels", {}).get("rljob.dev/role") for uid, pod in self._pods.items()}
        self.together.add(frozenset(uid for uid, role in roles.items() if role == "trainer"))


class Layouts:
    """Keeps every layout that is seen, by generation."""

    def __init__(self, rig: Rig) -> None:
        self.by_generation: dict[int, Json] = {}
        self._rig = rig
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._stop.wait(0.1):
            found = read(self._rig, f"/api/v1/namespaces/{self._rig.namespace}/configmaps/job-layout")
            if found is not None:
                layout = json.loads(found["data"]["layout.json"])
                self.by_generation[layout["generation"]] = layout

    def stop(self) -> list[Json]:
        """Ends it; the layouts in their order."""
        self._stop.set()
        self._thread.join()
        return [self.by_generation[generation] for generation in sorted(self.by_generation)]


def begin(rig: Rig, **spec: Any) -> Json:
    """Starts everything around the job; returns the first split."""
    rig.start_prometheus()
    rig.start_operator()
    rig.apply(drifting_job(rig.namespace, **spec))
    rig.start_emulator("job", emulation(drift=False))
    until(rig, lambda: condition(rig, "Ready").get("status") == "True", "the job is ready")
    return dict(status(rig)["split"])


def test_trainers_restart_from_a_checkpoint_in_their_new_number(rig: Rig) -> None:
    first = begin(rig, trainer={"resize": "restart"}, rebalance={"mode": "Initial"})
    assert replicas(first)[1] == 2
    until(rig, lambda: (status(rig).get("observed") or {}).get("policyVersion", 0) >= 2, "some steps", timeout_s=150)
    trainers, layouts = Trainers(rig.plane.kubeconfig, rig.namespace), Layouts(rig)
    old = {p["metadata"]["uid"] for p in pods(rig, "trainer")}
    edit(rig, trainer={"maxReplicas": 1})
    until(rig, lambda: (status(rig).get("rebalance") or {}).get("restart"), "a move that restarts")
    version = status(rig)["rebalance"].get("policyVersionAtStart")
    until(rig, lambda: status(rig).get("moves", {}).get("moves", 0) >= 1, "a committed move", timeout_s=150)
    seen, now = layouts.stop(), status(rig)
    trainers.stop()
    assert replicas(now["split"])[1] < replicas(first)[1]
    assert not any(group & old and group - old for group in trainers.together), "an old and a new trainer never met"
    assert not {p["metadata"]["uid"] for p in pods(rig, "trainer")} & old
    asked = next(layout for layout in seen if layout["checkpoint"])
    assert asked["trainers"]["replicas"] == replicas(first)[1]
    after = [layout for layout in seen if layout["generation"] > asked["generation"]]
    assert [layout["phase"] for layout in after] == ["resizing", "steady"]
    assert {layout["trainers"]["replicas"] for layout in after} == {replicas(now["split"])[1]}
    assert not any(layout["checkpoint"] for layout in after)
    assert said(rig, "MoveAnnounce")()
    assert said(rig, "MoveShrink")()
    assert said(rig, "MoveGrow")()
    assert {"SpecChanged", "MoveCommitted"} <= set(codes(rig))
    assert condition(rig, "Rebalancing")["status"] == "False"
    until(rig, lambda: condition(rig, "Ready").get("status") == "True", "the new trainers are ready")
    until(
        rig,
        lambda: (status(rig).get("observed") or {}).get("policyVersion", -1) >= (version or 0),
        "training goes on from the checkpoint",
    )
    assert rig.recorder.peak <= 16


def test_a_job_is_suspended_in_order_and_goes_on_from_its_checkpoint(rig: Rig) -> None:
    first = begin(rig, rebalance={"mode": "Initial"})
    layouts = Layouts(rig)
    until(rig, lambda: (status(rig).get("observed") or {}).get("policyVersion", 0) >= 2, "some steps", timeout_s=150)
    edit(rig, suspend=True)
    until(rig, lambda: condition(rig, "Ready").get("reason") == "Suspending", "it says that it stops")
    until(rig, lambda: "drainedSince" in status(rig) and pods(rig), "the samplers drain first")
    version = status(rig)["observed"]["policyVersion"]
    until(rig, lambda: not pods(rig), "then all GPUs are freed")
    until(rig, lambda: condition(rig, "Ready").get("reason") == "Suspended", "and it says so")
    stops = [layout["checkpoint"] for layout in layouts.stop() if layout["phase"] == "draining"]
    assert stops == [False, True], "first the samplers drain, then the checkpoint is asked for"
    edit(rig, suspend=False)
    until(rig, lambda: condition(rig, "Ready").get("status") == "True", "it is ready again")
    assert replicas(status(rig)["split"]) == replicas(first)
    until(
        rig,
        lambda: (status(rig).get("observed") or {}).get("policyVersion", 0) > version,
        "training goes on",
        timeout_s=150,
    )
    assert status(rig)["phase"] == "Running"
    until(rig, said(rig, "Suspended"), "an event tells that it stopped")
    assert not said(rig, "MoveStarted")(), "a pause is no move"
    assert not {"Move", "SpecChanged", "MoveCommitted"} & set(codes(rig))
    assert "InitialPlan" in codes(rig)
    assert rig.recorder.peak <= 16
