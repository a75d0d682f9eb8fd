"""Whether to change the split or the in-flight cap now, and why: a pure function of one situation.

The order of the checks is the order of harm. A number that is unknown may not move a GPU, so that comes first; then a job that is not
whole or has not settled, since what it shows is not the layout; then staleness over its limit, which spoils the training itself and is
cured at once by a smaller in-flight cap; then a side that is broken, which no split cures; only then the split.

A move must pay its cost over the steps that remain, and it must be unlikely that it is regretted (``regret``): hysteresis comes from
how uncertain the gain is, and not from a threshold. What a user states instead (``minGain``, ``persistence``, ``cooldown``) is obeyed.
After a move the next may follow as soon as the new layout is measured, since a first split that was far off would else be put right
by one replica an hour; only the way back waits until the last move could pay for itself. Every way out has a code.
"""

from __future__ import annotations

import math

from rljob_operator.byhand import left_by_hand
from rljob_operator.hindsight import with_hindsight
from rljob_operator.holding import broken, held
from rljob_operator.measured import calibrated as calibrated
from rljob_operator.outlook import Gain, Outlook
from rljob_operator.rebalance import epoch_s
from rljob_operator.regret import REGRET_MOST, Stake
from rljob_operator.situation import Decision as Decision
from rljob_operator.situation import Planner as Planner
from rljob_operator.situation import Situation as Situation
from rljob_operator.situation import StalenessCheck as StalenessCheck
from rljob_operator.situation import staleness_check as staleness_check
from rljob_operator.status import remember, rounded
from rljob_planner.api.spec import Bound, RebalanceMode, Resize
from rljob_planner.api.status import DecisionCode, DecisionStatus
from rljob_planner.durations import seconds
from rljob_planner.errors import PlanningError
from rljob_planner.search import Plan
from rljob_planner.split import Split

CAP_DEADBAND = 0.10
"""Share by which the planner's in-flight cap must differ from the one in force to be worth a new layout."""

CAP_MIN_GAIN = 0.01
"""Smallest predicted gain in the period for which the cap is raised: a higher cap costs staleness."""

WAITING = frozenset({DecisionCode.UNCERTAIN, DecisionCode.NOT_PERSISTED, DecisionCode.COOLDOWN, DecisionCode.BACK_OFF})
"""Codes of a wish that passed all tests of worth and only waits; they count as agreement."""

NO_GAIN = 0.005
"""Predicted gain up to which two splits are equally good, where no ``minGain`` is stated: less is noise of the simulations."""

LONGEST_PAYBACK_S = 3600.0
"""Longest time that the way back waits for the last move to pay for itself."""

COST_ERROR, MEASURED_COST_ERROR = 0.5, 0.25
"""Relative error of what a move costs: as estimated, and as this job's moves have shown it."""

MODE_CODES = {RebalanceMode.RECOMMEND: DecisionCode.RECOMMEND_ONLY, RebalanceMode.INITIAL: DecisionCode.INITIAL_ONLY}


def decide(situation: Situation, planner: Planner | None = None) -> Decision:
    """Decide, without side effects; never raises for what a job or its metrics may show."""
    stays = held(situation) or _over_staleness(situation) or broken(situation)
    if stays is not None:
        return stays
    outlook = Outlook(situation, planner or Planner())
    try:
        return _about_split(situation, outlook)
    except PlanningError as error:
        return Decision(DecisionCode.NOTHING_PLACEABLE, f"no split can be planned, so the one in force stays: {error}")


def _over_staleness(s: Situation) -> Decision | None:
    """A lower cap where staleness is over its limit; None if it is not, or if the cap cannot go lower."""
    check = staleness_check(s.spec, s.telemetry)
    if s.spec.rebalance.mode is not RebalanceMode.AUTO or not check.clearly_over or check.observed is None:
        return None
    cap, group = s.split.in_flight, s.spec.workload.samples_per_prompt
    ratio = min(0.97, max(0.5, check.limit / check.observed))
    lower = max(group, math.floor(cap * ratio / group) * group)
    if lower >= cap:
        return None
    measured = f"{check.statistic} staleness {check.observed:.2f} is over the limit of {check.limit:g}"
    if _cap_is_fresh(s, check.observed):
        return Decision(
            DecisionCode.SETTLING,
            f"{measured}, but samples of before the last change of the cap are still being trained",
        )
    return Decision(
        DecisionCode.LOWER_CAP, f"{measured}: the in-flight cap goes from {cap} to {lower} samples", in_flight=lower
    )


def _cap_is_fresh(s: Situation, staleness: float) -> bool:
    """Whether samples that started under an earlier cap are still trained: a cap takes ``staleness`` periods to show."""
    period_s = s.telemetry.period_s.value or 0.0
    changes = (DecisionCode.LOWER_CAP, DecisionCode.RAISE_CAP)
    last = next((epoch_s(d.at) for d in reversed(s.decisions) if d.code in changes), None)
    return last is not None and s.now_s - last < (staleness + 2.0) * period_s


def _about_split(s: Situation, outlook: Outlook) -> Decision:
    fixed = s.spec.trainer.resize is Resize.FIXED
    present_trainers = s.split.trainers.replicas
    best = outlook.plan(present_trainers if fixed else None)
    if best.split.same_shape(s.split):
        blocked = _trainer_fixed(s, outlook) if fixed else None
        return _cap(s, outlook, best) or blocked or _at_optimum(s, outlook, best)
    # What a better cap alone would bring is no reason to move GPUs.
    present = best if fixed else outlook.plan(present_trainers)
    reachable = s.split
    if present.split.same_shape(s.split):
        reachable = s.split.model_copy(update={"in_flight": _allowed_cap(s, present.split.in_flight)})
        if outlook.gain(s.split, reachable) <= 0:
            reachable = s.split
    gain = outlook.gain(reachable, best.split)
    least = s.spec.rebalance.min_gain_fraction
    if gain < (NO_GAIN if least is None else least):
        capped = _cap(s, outlook, present) if present.split.same_shape(s.split) else None
        within = "which is within the noise of the simulations"
        than = within if least is None else f"less than minGain {s.spec.rebalance.min_gain}"
        return capped or _decision(
            outlook,
            DecisionCode.GAIN_TOO_SMALL,
            f"{best.split.label()} would save {gain:.1%} of the period, {than}",
            best,
            best.split,
            Gain(gain, 0.0, 0.0),
        )
    if s.spec.rebalance.mode is not RebalanceMode.AUTO:
        return _worth(s, outlook, best, reachable, best.split)
    target = outlook.step_towards(best.split)
    step_gain = gain if target == best.split else outlook.gain(reachable, target)
    if step_gain <= 0:
        return _decision(
            outlook,
            DecisionCode.GAIN_TOO_SMALL,
            f"{best.split.label()} would save {gain:.1%} of the period, but {target.label()}, the farthest that one move may go, "
            "saves nothing: raise rebalance.maxStepGPUs",
            best,
            target,
            Gain(step_gain, 0.0, 0.0),
        )
    decision = _worth(s, outlook, best, reachable, target)
    if decision.code is DecisionCode.MOVE or not present.split.same_shape(s.split):
        return decision
    # What only waits, or does not pay, leaves the split in force: with the cap that suits it.
    return _cap(s, outlook, present) or decision


def _worth(s: Situation, outlook: Outlook, best: Plan, before: Split, target: Split) -> Decision:
    """The decision about a target that gains over ``before``: whether it pays, whether that is certain, and whether it is time."""
    quick = outlook.gain(before, target)
    cost_s = outlook.cost_s(target)
    gain = Gain(quick, 0.0, 0.0)
    if (outlook.saving_s(quick) or 0.0) > cost_s:
        gain = with_hindsight(s, outlook, target, outlook.settled_gain(before, target))
    saving_s = outlook.saving_s(gain.mean)
    sure = f" ± {gain.error:.1%}" if gain.error else ""
    wish = (
        f"{s.split.label()} → {target.label()} saves {gain.mean:.1%}{sure} of the period "
        f"({seconds(outlook.observed_period_s)} measured, responses {outlook.corrected.mean_tokens:.0f} tokens)"
    )

    def say(code: DecisionCode, words: str) -> Decision:
        return _decision(outlook, code, f"{wish}{words}", best, target, gain, saving_s, cost_s)

    if saving_s is None or saving_s <= cost_s:
        steps = s.steps_to_go
        return say(
            DecisionCode.NOT_WORTH_COST,
            f": {saving_s or 0.0:.0f} s over the {steps} steps that remain, not more than the {cost_s:.0f} s that the move costs",
        )
    least = s.spec.rebalance.min_gain_fraction
    if least is not None and gain.mean < least and target.same_shape(best.split):
        # A single simulation had it above; of a step on the way to a split that is worth it, less is asked.
        return say(DecisionCode.GAIN_TOO_SMALL, f", less than minGain {s.spec.rebalance.min_gain}")
    mode = s.spec.rebalance.mode
    if mode is not RebalanceMode.AUTO:
        return say(MODE_CODES[mode], f", {saving_s:.0f} s over the run; rebalance.mode {mode.value} leaves it to you")
    left_s = _cooldown_left_s(s, target)
    if left_s > 0.0:
        return say(DecisionCode.COOLDOWN, f", once the cooldown of the last move ends in {left_s:.0f} s")
    not_before_s = None if s.moves.not_before is None else epoch_s(s.moves.not_before)
    if not_before_s is not None and s.now_s < not_before_s:
        left_s = not_before_s - s.now_s
        return say(DecisionCode.BACK_OFF, f", but the last move was rolled back: the next may start in {left_s:.0f} s")
    unsure = _unsure(s, gain, saving_s, cost_s)
    if unsure is not None:
        return say(DecisionCode.UNCERTAIN, unsure)
    agreeing, wished = 1 + agreement(s.decisions, s.split, target), s.spec.rebalance.persistence
    if wished is not None and agreeing < wished:
        return say(DecisionCode.NOT_PERSISTED, f", wished {agreeing} times of {wished} in a row")
    return say(DecisionCode.MOVE, f": {saving_s:.0f} s over the run for {cost_s:.0f} s that the move costs")


def _unsure(s: Situation, gain: Gain, saving_s: float, cost_s: float) -> str | None:
    """Why a gain is too uncertain to move for, None if it is not, or if the user has said what is certain enough."""
    rebalance, cost_error = s.spec.rebalance, COST_ERROR if s.moves.cost_seconds is None else MEASURED_COST_ERROR
    saved_error_s = saving_s / gain.mean * gain.error
    stake = Stake(saving_s - cost_s, math.hypot(saved_error_s, cost_error * cost_s))
    if rebalance.min_gain is None and stake.chance_of_loss > REGRET_MOST:
        return (
            f": the chance that it loses time is {stake.chance_of_loss:.0%}, a move waits until it is {REGRET_MOST:.0%}"
        )
    if rebalance.persistence is not None:
        return None
    saved_variance = saved_error_s**2 / max(stake.error_s**2, 1e-12)
    knowing_s = stake.worth_of_knowing_s(0.5 * gain.learnable * saved_variance)
    doubling_s = s.calibration.readings * max(s.telemetry.window_s, rebalance.interval_s)
    if knowing_s <= gain.mean * doubling_s:
        return None
    return f": it rests on little yet, and another {doubling_s:.0f} s of readings are worth more than they cost"


def _cooldown_left_s(s: Situation, target: Split) -> float:
    """Seconds until a move may follow the last one: as stated; else at once, but for the way back, which waits for the payback."""
    if s.moves.last_ended_at is None:
        return 0.0
    pause_s = s.spec.rebalance.cooldown_s
    if pause_s is None:
        pause_s = _payback_s(s, target)
    return epoch_s(s.moves.last_ended_at) + pause_s - s.now_s


def _payback_s(s: Situation, target: Split) -> float:
    """How long the last move needs to pay for itself if ``target`` lies back from where it came, else 0."""
    last = next((d for d in reversed(s.decisions) if d.code is DecisionCode.MOVE_COMMITTED), None)
    if last is None:
        # Whoever moves by hand is not overruled because the decision that says so is no longer kept.
        left = left_by_hand(s.moves)
        back = left is not None and _lies_back(left, s.split, s.split, target)
        return LONGEST_PAYBACK_S if back else 0.0
    if last.from_split is None or last.to_split is None or not last.to_split.same_shape(s.split):
        return 0.0
    if not _lies_back(last.from_split, last.to_split, s.split, target):
        return 0.0
    cost_s = s.moves.cost_seconds or last.cost_seconds or 0.0
    gain = last.predicted_gain or 0.0
    return min(LONGEST_PAYBACK_S, cost_s / gain) if gain > 0.0 else LONGEST_PAYBACK_S


def _lies_back(left: Split, came: Split, now: Split, target: Split) -> bool:
    """Whether ``now`` → ``target`` goes the way back of the move ``left`` → ``came``."""
    there, back = direction(left, came), direction(now, target)
    return there[0] == back[0] and there[1] == -back[1]


def agreement(decisions: tuple[DecisionStatus, ...], split: Split, target: Split) -> int:
    """How many decisions in a row, up to the last, wished to go the way of ``split`` → ``target`` and only waited."""
    wished = direction(split, target)
    count = 0
    for decision in reversed(decisions):
        if decision.code not in WAITING or decision.to_split is None or decision.from_split is None:
            break
        if not decision.from_split.same_shape(split) or direction(decision.from_split, decision.to_split) != wished:
            break
        count += decision.count
    return count


def direction(before: Split, after: Split) -> tuple[str, int]:
    """Which way a change goes: the side that tells (trainers, unless only samplers change) and the sign of its change."""
    trainers = after.trainers.gpus - before.trainers.gpus
    samplers = after.samplers.gpus - before.samplers.gpus
    return ("trainers", (trainers > 0) - (trainers < 0)) if trainers else ("samplers", (samplers > 0) - (samplers < 0))


def _trainer_fixed(s: Situation, outlook: Outlook) -> Decision | None:
    """What trainers that cannot be resized cost, None if too little to speak of."""
    free = outlook.plan()
    if free.split.same_shape(s.split):
        return None
    gain = outlook.gain(s.split, free.split)
    least = s.spec.rebalance.min_gain_fraction
    if gain < (2.0 * NO_GAIN if least is None else least):
        return None
    return _decision(
        outlook,
        DecisionCode.TRAINER_FIXED,
        f"{free.split.label()} would save {gain:.1%} of the period, but trainer.resize is fixed: set it to elastic if the trainer "
        "can follow a change of its replicas",
        free,
        free.split,
        Gain(gain, 0.0, 0.0),
    )


def _at_optimum(s: Situation, outlook: Outlook, best: Plan) -> Decision:
    return _decision(
        outlook,
        DecisionCode.AT_OPTIMUM,
        f"{s.split.label()} is the best split for responses of {outlook.corrected.mean_tokens:.0f} tokens "
        f"(period {seconds(outlook.period_s(s.split))} predicted, {seconds(outlook.observed_period_s)} measured)",
        best,
    )


def _allowed_cap(s: Situation, wished: int) -> int:
    """The wished cap, raised no further than measured staleness leaves room for (it grows in proportion to the cap)."""
    check = staleness_check(s.spec, s.telemetry)
    if wished <= s.split.in_flight or not check.observed:
        return wished
    group = s.spec.workload.samples_per_prompt
    room = math.floor(s.split.in_flight * check.limit / check.observed / group) * group
    return max(s.split.in_flight, min(wished, room))


def _cap(s: Situation, outlook: Outlook, present: Plan) -> Decision | None:
    """A better in-flight cap for the split in force, None if the one in force is near enough."""
    cap, better = s.split.in_flight, _allowed_cap(s, present.split.in_flight)
    check = staleness_check(s.spec, s.telemetry)
    if abs(better - cap) <= CAP_DEADBAND * cap or _cap_is_fresh(s, check.observed or 0.0):
        return None
    gain = outlook.gain(s.split, s.split.model_copy(update={"in_flight": better}))
    # Admission bounds staleness by itself: a lower cap would bring nothing, and bind when lengths have changed.
    for_nothing = s.spec.staleness.bound is not Bound.ADMISSION and better < cap
    if gain < (-CAP_MIN_GAIN / 2 if for_nothing else CAP_MIN_GAIN):
        return None
    code = DecisionCode.RAISE_CAP if better > cap else DecisionCode.LOWER_CAP
    code = MODE_CODES.get(s.spec.rebalance.mode, code)
    return Decision(
        code,
        f"the best in-flight cap for {s.split.label()} is {better} samples, not {cap}: it changes the period by {-gain:+.1%} "
        f"({check.statistic} staleness {check.observed or 0.0:.2f} of at most {check.limit:g})",
        in_flight=better,
        predicted_gain=gain,
        plan=present,
        response_tokens_mean=outlook.corrected.mean_tokens,
        inputs=outlook.inputs,
    )


def _decision(
    outlook: Outlook,
    code: DecisionCode,
    message: str,
    plan: Plan,
    split: Split | None = None,
    gain: Gain | None = None,
    saving_s: float | None = None,
    cost_s: float | None = None,
) -> Decision:
    return Decision(
        code,
        message,
        split,
        predicted_gain=None if gain is None else gain.mean,
        gain_error=None if gain is None or not gain.error else gain.error,
        saving_s=saving_s,
        cost_s=cost_s,
        plan=plan,
        response_tokens_mean=outlook.corrected.mean_tokens,
        inputs=outlook.inputs,
    )


def recorded(
    decisions: tuple[DecisionStatus, ...], decision: Decision, situation: Situation, at: str
) -> tuple[DecisionStatus, ...]:
    """The decisions to keep in the status after this one, taken ``at`` (RFC 3339)."""
    return remember(
        decisions,
        DecisionStatus(
            at=at,
            code=decision.code,
            message=decision.message,
            from_split=situation.split,
            to_split=decision.split,
            predicted_gain=rounded(decision.predicted_gain),
            uncertainty=rounded(decision.gain_error),
            saving_seconds=rounded(decision.saving_s),
            cost_seconds=rounded(decision.cost_s),
            response_tokens_mean=rounded(decision.response_tokens_mean),
            period_seconds=rounded(situation.telemetry.period_s.value),
            inputs=decision.inputs,
        ),
    )
