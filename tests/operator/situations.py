"""Made-up situations for decisions, and a planner whose answers a test states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from rljob_operator.decide import (
    Decision,
    Planner,
    Situation,
    decide,
)
from rljob_operator.readings import LengthHistogram, Reading, SamplerTelemetry, Telemetry, Trend
from rljob_operator.rebalance import timestamp, with_replicas
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import DecisionCode, DecisionStatus, MoveHistory
from rljob_planner.calibrate import Calibration
from rljob_planner.errors import PlanningError
from rljob_planner.placement import Room
from rljob_planner.split import SamplerSplit, Split, TrainerSplit

NOW_S = 1_700_000_000.0
PERIOD_S = 10.0
BUDGET = 64
CAP = 1000


def split(samplers: int = 48, trainers: int = 2, in_flight: int = CAP) -> Split:
    return Split(
        mode="async",
        samplers=SamplerSplit(replicas=samplers, gpus_per_replica=1, tensor_parallel=1, max_running=64),
        trainers=TrainerSplit(replicas=trainers, gpus_per_replica=8, dp=trainers * 8, tp=1, pp=1, ep=1),
        in_flight=in_flight,
    )


def spec(**changes: Any) -> RLJobSpec:
    raw: dict[str, Any] = {
        "gpus": BUDGET,
        "accelerator": "H100-SXM",
        "model": {"name": "Qwen/Qwen3-8B"},
        "workload": {
            "promptsPerStep": 16,
            "samplesPerPrompt": 8,
            "steps": 1000,
            "promptTokens": {"mean": 200},
            "responseTokens": {"mean": 1000, "max": 8192},
        },
        "staleness": {"max": 4},
        "sampler": {"template": {"spec": {"containers": [{"name": "engine"}]}}},
        "trainer": {"template": {"spec": {"containers": [{"name": "trainer"}]}}},
        "rebalance": {"persistence": 1},
    }
    for path, value in changes.items():
        *parents, leaf = path.split("__")
        target = raw
        for parent in parents:
            target = target.setdefault(parent, {})
        target[leaf] = value
    return RLJobSpec.model_validate(raw)


PODS = ("s-0", "s-1")


def sampler(**changes: Reading[float]) -> SamplerTelemetry:
    known = SamplerTelemetry(
        running=Reading.of(30.0),
        waiting=Reading.of(0.0),
        kv_usage=Reading.of(0.4),
        kv_tokens=Reading.of(100_000.0),
        running_mean=Reading.of(30.0),
        kv_usage_mean=Reading.of(0.5),
        iteration_s=Reading.of(0.02),
        generation_tokens_per_s=Reading.of(1500.0),
    )
    return replace(known, **changes)


def telemetry(**changes: Any) -> Telemetry:
    known = Telemetry(
        at=NOW_S,
        window_s=120.0,
        since_s=3600.0,
        policy_version=Reading.of(100),
        steps_in_window=Reading.of(12),
        queue_groups=Reading.of(4.0),
        in_flight_samples=Reading.of(900.0),
        layout_generation=Reading.of(3),
        staleness_mean=Reading.of(2.0),
        staleness_p95=Reading.of(3.0),
        staleness_max=Reading.of(5.0),
        period_s=Reading.of(PERIOD_S),
        train_step_s=Reading.of(8.0),
        trainer_wait_share=Reading.of(0.1),
        weight_sync_s=Reading.of(0.5),
        trained_samples_per_step=Reading.of(128.0),
        trained_tokens_per_sample=Reading.of(1000.0),
        response_lengths=Reading.of(LengthHistogram(((500.0, 30.0), (1000.0, 40.0), (2000.0, 30.0)), 1000.0)),
        response_trend=Reading.of(Trend(0.0, 1e-4)),
        samplers={pod: sampler() for pod in PODS},
        ready_samplers=frozenset(PODS),
    )
    return replace(known, **changes)


@dataclass
class FakePlanner:
    """A planner whose optimum and periods a test states; it remembers what it was asked."""

    best: Split = field(default_factory=split)
    period: Callable[[Split], float] = lambda s: PERIOD_S
    caps: Callable[[int], int] = lambda trainers: CAP
    slope: Callable[[Split, Calibration], float] = lambda s, calibration: 1.0
    error: str | None = None
    plans: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)

    def planner(self) -> Planner:
        return Planner(plan=self._plan, evaluate=self._evaluate)

    def _plan(self, spec: RLJobSpec, rooms: Any, **asked: Any) -> Any:
        self.plans.append(asked)
        if self.error is not None:
            raise PlanningError("NothingFeasible", self.error)
        trainers = asked["trainer_replicas"]
        found = self.best
        if trainers is not None and trainers != found.trainers.replicas:
            found = with_replicas(found, BUDGET - 8 * trainers, trainers)
            found = found.model_copy(update={"in_flight": self.caps(trainers)})
        return SimpleNamespace(split=found)

    def _evaluate(self, spec: RLJobSpec, asked_split: Split, rooms: Any, **asked: Any) -> Any:
        self.evaluations.append(asked)
        return SimpleNamespace(period_s=self.period(asked_split) * self.slope(asked_split, asked["calibration"]))


def by_trainers(**seconds: float) -> Callable[[Split], float]:
    """Periods that depend on the number of trainers alone: ``by_trainers(t2=10, t3=9)``."""
    return lambda s: seconds[f"t{s.trainers.replicas}"]


def situation(**changes: Any) -> Situation:
    base = Situation(
        spec=spec(),
        split=split(),
        rooms=[Room(f"n{i}", 8) for i in range(8)],
        telemetry=telemetry(),
        calibration=Calibration(),
        now_s=NOW_S,
        moves=MoveHistory(cost_seconds=60.0),
        decisions=(),
        pods_ready=True,
    )
    return replace(base, **changes)


def gaining() -> FakePlanner:
    return FakePlanner(best=split(40, 3), period=by_trainers(t2=10.0, t3=8.0))


def run(fake: FakePlanner | None = None, **changes: Any) -> Decision:
    return decide(situation(**changes), (fake or gaining()).planner())


def noted(
    code: DecisionCode, to: Split | None, *, before: Split | None = None, ago_s: float = 60.0, count: int = 1
) -> DecisionStatus:
    return DecisionStatus(
        at=timestamp(NOW_S - ago_s), code=code, message="", from_split=before or split(), to_split=to, count=count
    )


def cap_planner(cap: int, better: float = 9.0) -> FakePlanner:
    return FakePlanner(best=split(in_flight=cap), period=lambda s: better if s.in_flight == cap else PERIOD_S)
