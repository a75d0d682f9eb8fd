"""What a decision rests on and what it says: the values that go into ``decide`` and come out of it.

The planner is among the inputs, as two functions, so that a decision can be tested without a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from rljob_operator.growth import LengthTrend
from rljob_operator.readings import Reading, Telemetry
from rljob_operator.remembered import Remembered
from rljob_planner import search
from rljob_planner.api.evidence import DecisionInputs
from rljob_planner.api.spec import Bound, RLJobSpec
from rljob_planner.api.status import DecisionCode, DecisionStatus, MoveHistory
from rljob_planner.calibrate import Calibration
from rljob_planner.placement import Room
from rljob_planner.split import Split


@dataclass(frozen=True)
class Planner:
    """The two questions that a decision asks; both raise ``search.PlanningError`` where there is no answer."""

    plan: Callable[..., search.Plan] = search.plan
    """The best split, as ``search.plan``."""
    evaluate: Callable[..., search.Evaluation] = search.evaluate
    """What one split gives, as ``search.evaluate``."""


@dataclass(frozen=True)
class Situation:
    """Everything that one decision rests on."""

    spec: RLJobSpec
    """The spec, with the budget that quotas leave and the accelerator that the nodes show."""
    split: Split
    """The split in force; its ``in_flight`` is the cap in force."""
    rooms: Sequence[Room]
    """What the nodes can give to this job: free GPUs plus those that the job's own pods hold."""
    telemetry: Telemetry
    calibration: Calibration
    """The calibration after this telemetry (``calibrated``)."""
    now_s: float
    """Seconds since the epoch."""
    moves: MoveHistory
    decisions: tuple[DecisionStatus, ...]
    """The decisions before this one, the newest last."""
    pods_ready: bool
    """Whether all wished pods are ready."""
    not_ready: str = ""
    """What is not ready, in words, if ``pods_ready`` is false."""
    in_move: bool = False
    """Whether a move is under way."""
    faults: tuple[str, ...] = ()
    """What of a side is broken, such as a crash-looping pod: a sentence each, with the remedy."""
    lengths: LengthTrend | None = None
    """How response lengths moved over the run; by the two halves of the window if None."""
    remembered: Remembered | None = field(default=None, compare=False, repr=False)
    """Answers of the planner to the decision before, used again while what they rest on has hardly moved."""
    remaining_steps: int | None = None
    """Steps to go; from the policy version if None."""
    move_cost_prior_s: float | None = None
    """Cost of a move in seconds of lost progress while none was measured; estimated if None."""
    settle_steps: int = 3
    """Steps after a start or a move before what is measured describes the layout in force."""
    seed: int = 0
    """Seed of the planner's simulations: the same for all splits, so that noise cancels where they are compared."""

    @property
    def steps_to_go(self) -> int | None:
        """Steps that remain, None if the policy version is unknown."""
        if self.remaining_steps is not None:
            return self.remaining_steps
        version = self.telemetry.policy_version.value
        return None if version is None else max(0, self.spec.workload.steps - version)


@dataclass(frozen=True)
class Decision:
    """What to do now, and why."""

    code: DecisionCode
    message: str
    """One sentence with the numbers."""
    split: Split | None = None
    """The wished split: the target of MOVE; of RECOMMEND_ONLY, INITIAL_ONLY, TRAINER_FIXED and of the codes that wait, the wish."""
    in_flight: int | None = None
    """The new in-flight cap of LOWER_CAP and RAISE_CAP, or the one that RECOMMEND_ONLY and INITIAL_ONLY would set, in samples."""
    predicted_gain: float | None = None
    """Fraction of the period (of the cost of a step, if that is the objective) that the wished split saves."""
    saving_s: float | None = None
    """Seconds saved over the remaining steps."""
    cost_s: float | None = None
    """Seconds of progress that the move is expected to cost."""
    plan: search.Plan | None = field(default=None, repr=False)
    """The planner's whole answer where it was asked."""
    response_tokens_mean: float | None = None
    """Mean response length in tokens that the plan was made for: corrected for growth."""
    gain_error: float | None = None
    """Standard error of ``predicted_gain``."""
    inputs: DecisionInputs | None = None
    """What it rested on; None where nothing was planned."""


STALENESS_TOLERANCE = 0.02
"""Share of the limit by which a measured mean may exceed it before the cap is lowered: under ``admission`` it sits at the limit."""

STEP_NOISE = 0.2
"""Twice the standard deviation of a step's mean staleness over the limit: groups come in bursts, steps follow each other's, and a
window holds few of them."""


@dataclass(frozen=True)
class StalenessCheck:
    """What the bound promises about staleness, against what was measured."""

    statistic: str
    """``max`` for the bound ``drop``, which discards what is staler; else ``mean``, which single slow samples may exceed."""
    observed: float | None
    """In policy versions; None if unknown."""
    limit: float
    """What the bound promises of the statistic, in policy versions."""
    noise: float = 0.0
    """Share of the limit by which the statistic of a window may exceed it by chance."""

    @property
    def within(self) -> bool | None:
        """Whether the promise holds; None if unknown."""
        return None if self.observed is None else self.observed <= self.limit

    @property
    def clearly_over(self) -> bool:
        """Whether it is known to be broken by more than the noise of a mean."""
        return self.observed is not None and self.observed > self.limit + (STALENESS_TOLERANCE + self.noise) * max(
            1.0, self.limit
        )


def staleness_check(spec: RLJobSpec, telemetry: Telemetry) -> StalenessCheck:
    """Compare measured staleness with what the bound of the job promises."""
    if spec.staleness.bound is Bound.DROP:
        return StalenessCheck("max", telemetry.staleness_max.value, float(spec.staleness.max))
    steps = telemetry.steps_in_window.value or 1
    return StalenessCheck(
        "mean", telemetry.staleness_mean.value, spec.staleness.mean_limit, STEP_NOISE / math.sqrt(max(1, steps))
    )


def unknown_now(telemetry: Telemetry) -> tuple[str, ...]:
    """The quantities of this instant that a decision needs and that are unknown, in words."""
    return _unknown(
        {
            "the policy version": telemetry.policy_version,
            "the queue depth": telemetry.queue_groups,
            "the samples in flight": telemetry.in_flight,
            "the acknowledged layout generation": telemetry.layout_generation,
            "the running samples of a sampler pod": telemetry.running,
            "the KV use of a sampler pod": telemetry.kv_usage,
        }
    )


def unknown_in_window(telemetry: Telemetry) -> tuple[str, ...]:
    """The quantities of the window that a decision needs and that are unknown, in words."""
    return _unknown(
        {
            "the steps in the window": telemetry.steps_in_window,
            "the period": telemetry.period_s,
            "the time of a training step": telemetry.train_step_s,
            "the mean staleness": telemetry.staleness_mean,
            "the largest staleness": telemetry.staleness_max,
            "the response lengths": telemetry.response_lengths,
            "the trend of response lengths": telemetry.response_trend,
            "the time of a decode iteration": telemetry.iteration_s,
        }
    )


def _unknown(readings: dict[str, object]) -> tuple[str, ...]:
    return tuple(
        f"{words} ({reading.state})"
        for words, reading in readings.items()
        if isinstance(reading, Reading) and not reading.known
    )


FAR_SLOWER = 1.5
"""Seconds a token over the median of the siblings from which on a sampler is broken, where it has no more to do than they."""

BEYOND_NOISE = 4.0
"""Standard deviations of the siblings beyond which a sampler is broken, where that is more."""


def faults_in(telemetry: Telemetry, spec: RLJobSpec, hardware: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What the metrics show to be broken: a sentence each, with the pod and the remedy.

    ``hardware`` says by sampler pod what it runs on: only those on the same are siblings. All are alike if it is None.
    """
    kinds = hardware or {}
    return (*_slow_samplers(telemetry, kinds), *_stalled_trainer(telemetry, spec))


def _slow_samplers(telemetry: Telemetry, kinds: Mapping[str, str]) -> tuple[str, ...]:
    if telemetry.since_s is None or telemetry.since_s < 2.0 * telemetry.window_s:
        # A window that holds the start of a layout shows who started when: all at once, with prompts alone, or a moment later.
        return ()
    seen = {
        pod: (sampler.iteration_s.value, sampler.running_mean.value)
        for pod, sampler in telemetry.samplers.items()
        if pod in telemetry.ready_samplers and sampler.generation_tokens_per_s.value != 0
    }
    known = {pod: (each[0], each[1]) for pod, each in seen.items() if each[0] is not None and each[1] is not None}
    found = []
    for pod, (iteration_s, running) in sorted(known.items()):
        others = [each for other, each in known.items() if other != pod and kinds.get(other) == kinds.get(pod)]
        if len(others) < 2:
            continue
        typical_s, busy = median([each[0] for each in others]), median([each[1] for each in others])
        noise = max(math.log(FAR_SLOWER), BEYOND_NOISE * _noise([math.log(each[0]) for each in others if each[0] > 0]))
        if iteration_s > math.exp(noise) * typical_s * max(1.0, running / max(busy, 1.0)):
            found.append(
                f"sampler pod {pod} takes {iteration_s * 1e3:.0f} ms a token, its siblings {typical_s * 1e3:.0f} ms: look at its node "
                "(throttled or failing GPU, noisy neighbour), cordon the node and delete the pod"
            )
    return tuple(found)


def _noise(logarithms: list[float]) -> float:
    """Standard deviation of some logarithms, from their quartiles; 0 where there are too few to tell."""
    if len(logarithms) < 4:
        return 0.0
    low, _, high = quantiles(logarithms, n=4)
    return (high - low) / 1.349


def _stalled_trainer(telemetry: Telemetry, spec: RLJobSpec) -> tuple[str, ...]:
    steps, queued, since_s = telemetry.steps_in_window.value, telemetry.queue_groups.value, telemetry.since_s
    if steps != 0 or queued is None or since_s is None or since_s < telemetry.window_s or telemetry.window_s <= 0:
        return ()
    if queued < spec.workload.prompts_per_step:
        return ()
    return (
        f"no step ended in the last {telemetry.window_s:.0f} s although {queued:.0f} groups wait for the trainer: see the logs of the "
        "trainer pods; one rank that hangs stops all",
    )
