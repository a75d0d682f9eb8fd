"""A job in a cluster in memory, in virtual time, with the operator's own passes: for what happens to a move under way.

The framework is as simple as can be: it acknowledges layouts and drains samplers after given times, and decisions go where the test
says. Whether the budget holds is judged at every change of the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from unittest import mock

from dev.virtual import jobs
from dev.virtual.cluster import NAMESPACE, VirtualCluster
from dev.virtual.ledger import Ledger
from dev.virtual.machines import Pace
from dev.virtual.operator import PROMETHEUS, VirtualOperator
from rljob_operator import deciding
from rljob_operator.config import Config
from rljob_operator.edges import Question
from rljob_operator.readings import Reading, SamplerTelemetry, Telemetry
from rljob_operator.rebalance import Deadlines
from rljob_operator.situation import Decision, Planner, Situation
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import DecisionCode
from rljob_planner.errors import PlanningError
from rljob_planner.outcome import Period, Plan, RunTime, Staleness
from rljob_planner.placement import Room
from rljob_planner.split import SamplerSplit, Split, TrainerSplit

Json = dict[str, Any]

PERIOD_S = 10.0


def split(samplers: int, trainers: int) -> Split:
    """Samplers of one GPU, trainers of four."""
    return Split(
        mode="async",
        samplers=SamplerSplit(replicas=samplers, gpus_per_replica=1, tensor_parallel=1, max_running=64),
        trainers=TrainerSplit(replicas=trainers, gpus_per_replica=4, dp=trainers * 4, tp=1, pp=1, ep=1),
        in_flight=256,
    )


def _plan(spec: RLJobSpec, rooms: Sequence[Room], **_: Any) -> Plan:
    """As many trainers as half of the GPUs hold, and samplers for the rest, within the minima and maxima."""
    gpus = min(spec.gpus, sum(room.free_gpus for room in rooms))
    trainers = min(max(spec.trainer.min_replicas, gpus // 8), spec.trainer.max_replicas or gpus)
    samplers = min(gpus - 4 * trainers, spec.sampler.max_replicas or gpus)
    if samplers < spec.sampler.min_replicas:
        raise PlanningError(
            "DoesNotFit", f"{gpus} GPUs are too few for the minima: raise spec.gpus or lower minReplicas"
        )
    return Plan(
        split=split(samplers, trainers),
        mode="async",
        period=Period(PERIOD_S, 9.0, 10.0, 11.0),
        staleness=Staleness(1.0, 2.0, 3.0, 0.0),
        run_time=RunTime(1e4, 1e4, 1e4),
        cost=None,
        lock_steps={},
        bottleneck="balanced",
        confidence=None,
        candidates=(),
        neighbours=(),
        length_sweep=(),
        elasticity=None,
        placeable_gpus=gpus,
        rho=1.0,
        evaluation=cast(Any, None),
    )


class Scene:
    """One job with 16 GPUs on two nodes: eight samplers and two trainers."""

    def __init__(self, *, nodes: int = 2, prometheus: bool = True, **spec: Any) -> None:
        self.starts_s: Callable[[Json], float] = lambda _pod: 5.0
        """From bound to ready, by pod."""
        self.acknowledges_s: float | None = 5.0
        """From a layout to its acknowledgement; None: it never is."""
        self.drains_s: float | None = 10.0
        """From a layout to the last sample of a pod that it drains; None: it never ends."""
        self.drains_one_s: Callable[[str], float] | None = None
        """The same for each pod, where they differ."""
        self.wish: Split | None = None
        """Where decisions go, None: nowhere."""
        self.fault: str | None = None
        """What decisions find broken, None: nothing."""
        self.layouts: list[Json] = []
        """Every layout that was published."""
        self.trainers_met = False
        """Whether pods of an old and a new number of trainers ever existed at once."""
        self.cluster = VirtualCluster(pace=Pace(start_s=lambda pod: self.starts_s(pod), stop_s=lambda _pod: 3.0))
        self.clock = self.cluster.clock
        self.ledger = Ledger(self.cluster)
        self.cluster.add_nodes(nodes)
        self._config = Config(
            prometheus_url=PROMETHEUS if prometheus else None,
            move_tick_s=1.0,
            idle_tick_s=10.0,
            deadlines=Deadlines(acknowledge_s=60.0, gone_s=60.0, ready_s=60.0),
        )
        self._acknowledged: int | None = None
        self._draining: dict[str, float] = {}
        self._version_since_s = self.clock.now_s
        self.version: int | None = None
        """Policy version to report; counts up by itself if None."""
        self.cluster.store.watch(self._seen)
        self.uid = self.cluster.create_job(jobs.job(gpus=16, **spec))
        self.operator = self._operator()

    def _operator(self) -> VirtualOperator:
        made = VirtualOperator(self.cluster, observe=self._observe, planner=Planner(plan=_plan), config=self._config)
        self.ledger.audit(made.connection)
        return made.start()

    def restart(self, between: Callable[[], None] = lambda: None) -> None:
        """Kills the operator and starts another."""
        self.operator.kill()
        between()
        self.operator = self._operator()

    def _seen(self, event: str, plural: str, obj: Json) -> None:
        if plural != "configmaps" or event == "DELETED" or not obj["metadata"]["name"].endswith("-layout"):
            return
        layout = json.loads(obj["data"]["layout.json"])
        self.layouts.append(layout)
        if self.acknowledges_s is not None:
            self.clock.after(self.acknowledges_s, self._acknowledge, int(layout["generation"]))
        kept = {pod: at for pod, at in self._draining.items() if pod in layout["draining"]}
        self._draining = {pod: kept.get(pod, self._drained_at(pod)) for pod in layout["draining"]}

    def _drained_at(self, pod: str) -> float:
        lasts_s = self.drains_s if self.drains_one_s is None else self.drains_one_s(pod)
        return 1e18 if lasts_s is None else self.clock.now_s + lasts_s

    def drained_again(self) -> None:
        """Counts the drains under way from now on, after the times of ``drains_one_s`` have changed."""
        self._draining = {pod: self._drained_at(pod) for pod in self._draining}

    def _acknowledge(self, generation: int) -> None:
        self._acknowledged = max(generation, self._acknowledged or 0)

    async def _observe(self, url: str, question: Question) -> Telemetry:
        def running(pod: str) -> float:
            return 0.0 if self._draining.get(pod, 1e18) <= self.clock.now_s else 12.0

        unknown = SamplerTelemetry.unknown()
        version = self.version
        if version is None:
            version = int((self.clock.now_s - self._version_since_s) / PERIOD_S)
        return Telemetry(
            at=question.now_s,
            window_s=60.0,
            policy_version=Reading.of(version),
            period_s=Reading.of(PERIOD_S),
            layout_generation=Reading.missing() if self._acknowledged is None else Reading.of(self._acknowledged),
            samplers={
                pod: SamplerTelemetry(
                    running=Reading.of(running(pod)),
                    waiting=unknown.waiting,
                    kv_usage=unknown.kv_usage,
                    kv_tokens=unknown.kv_tokens,
                    running_mean=unknown.running_mean,
                    kv_usage_mean=unknown.kv_usage_mean,
                    iteration_s=unknown.iteration_s,
                    generation_tokens_per_s=unknown.generation_tokens_per_s,
                )
                for pod in question.sampler_pods
            },
            ready_samplers=frozenset(question.sampler_pods),
        )

    def _decide(self, situation: Situation, _planner: Planner) -> Decision:
        if self.fault is not None:
            return Decision(DecisionCode.SIDE_BROKEN, self.fault)
        if self.wish is None or self.wish.same_shape(situation.split) or not situation.pods_ready:
            return Decision(DecisionCode.AT_OPTIMUM, "all is well")
        moves = situation.moves
        if moves.not_before is not None and moves.failures:
            return Decision(DecisionCode.BACK_OFF, "the last move was rolled back", split=self.wish)
        return Decision(DecisionCode.MOVE, "the test wishes it", split=self.wish, predicted_gain=0.1)

    # What a test asks and does.

    def until(self, holds: Callable[[], Any], within_s: float = 600.0) -> Any:
        """Lets time pass until ``holds`` returns something true, and returns it."""
        assert self.clock.run_while(lambda: not holds(), until_s=self.clock.now_s + within_s), (
            f"not within {within_s:.0f} s; move {self.move}; conditions {self.status.get('conditions')}"
        )
        return holds()

    @property
    def status(self) -> Json:
        """The job's status."""
        job = self.cluster.job("run")
        return {} if job is None else dict(job.get("status") or {})

    @property
    def move(self) -> Json | None:
        """The move under way."""
        return self.status.get("rebalance")

    @property
    def going(self) -> Json:
        """The move under way; empty if there is none."""
        return self.move or {}

    def in_phase(self, phase: str) -> bool:
        """Whether a move is in this phase."""
        return self.move is not None and self.move["phase"] == phase

    def condition(self, kind: str) -> Json:
        """A condition; empty if it is not there."""
        return next((c for c in self.status.get("conditions", ()) if c["type"] == kind), {})

    @property
    def ready(self) -> bool:
        """Whether the job is Ready."""
        return bool(self.condition("Ready").get("status") == "True")

    @property
    def codes(self) -> list[str]:
        """The codes of the last decisions."""
        return [d["code"] for d in self.status.get("decisions", ())]

    @property
    def replicas(self) -> tuple[int, int]:
        """Samplers and trainers of the split in force."""
        found = self.status["split"]
        return found["samplers"]["replicas"], found["trainers"]["replicas"]

    def events(self, reason: str) -> list[str]:
        """The messages of the events for a reason."""
        return [e["message"] for e in self.cluster.store.all("events") if e["reason"] == reason]

    def pods(self, role: str | None = None) -> list[Json]:
        """The job's pods."""
        return self.cluster.pods(self.uid, role)

    def living(self, role: str) -> int:
        """How many pods of a role exist and have not ended: one that was evicted lies about as an object without GPUs."""
        return sum(p["status"].get("phase") != "Failed" for p in self.pods(role))

    def names(self, role: str | None = None) -> set[str]:
        """Names of the job's pods that nobody is deleting."""
        return {p["metadata"]["name"] for p in self.pods(role) if not p["metadata"].get("deletionTimestamp")}

    def delete(self, name: str) -> None:
        """Deletes a pod, as somebody's kubectl does."""
        self.cluster.store.delete("pods", NAMESPACE, name)

    def edit(self, **spec: Any) -> None:
        """Edits the RLJob's spec."""
        self.cluster.edit_job("run", spec)

    def workload(self, side: str) -> Json:
        """The Deployment of a side."""
        found = self.cluster.store.get("deployments", NAMESPACE, f"run-{side}")
        assert found is not None
        return found

    def rival(self, child: str | None) -> None:
        """An HPA that scales a child comes; None: it goes."""
        watching = self.operator._watching
        assert watching is not None
        hpa = {"metadata": {"name": "theirs"}, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": child}}}
        watching.view.autoscalers = {} if child is None else {NAMESPACE: [hpa]}

    def settled(self, samplers: int, trainers: int, within_s: float = 600.0) -> None:
        """Waits until no move is under way and exactly these pods are there and ready; then judges all that went before."""
        self.until(
            lambda: (
                self.move is None
                and self.ready
                and self.replicas == (samplers, trainers)
                and (self.living("sampler"), self.living("trainer")) == (samplers, trainers)
            ),
            within_s,
        )
        # Events follow the status that they speak of.
        self.clock.run_for(1.0)
        self.judged()

    def judged(self) -> None:
        """Nothing broke the budget or the minima, and no pass stumbled."""
        assert self.ledger.violations == []
        assert self.operator.failures == []


@contextmanager
def scene(**options: Any) -> Iterator[Scene]:
    """A scene whose job runs with its first split."""
    made = Scene(**options)
    with (
        mock.patch.object(deciding, "decide", made._decide),
        mock.patch.object(deciding, "calibrated", lambda previous, *_args, **_kwargs: previous),
    ):
        made.until(lambda: made.ready)
        yield made
