"""How many sandboxes an agentic job should have: Little's law on live environment time, and the calm of a split. Pure.

Environments in use at the mean are the turns that end in a second times the seconds of a turn (Little's law); so many sandboxes are
busy. Around that mean the number fluctuates like a Poisson variable, and the mean itself is measured from a window's turns; a margin
of both keeps samples from waiting. A sandbox too few stops a sample, one too many costs a CPU: so the fleet grows at once, and
shrinks only when fewer have been enough for a while, to the most that were needed in that while, and never below what runs.

A fleet that is full hides what it could use. There the margin makes the next look ask for more, and the plan says how far.

What is not measured yet follows from the plan; what was measured once and is unknown now changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rljob_operator.readings import Telemetry
from rljob_operator.rebalance import epoch_s, timestamp
from rljob_planner.api.companions import Sandbox
from rljob_planner.api.fleets import SandboxSource, SandboxStatus
from rljob_planner.api.spec import RLJobSpec

MARGIN_SIGMAS = 2.33
"""Standard deviations above the mean that the fleet holds: 1 % of the time more would be in use."""

FULL = 0.85
"""Share of the environments in use from which on a fleet may hide what it could use."""

DEADBAND = 0.1
"""Share of the fleet that fewer sandboxes must differ by to be worth a change."""

HOLD_S = 600.0
"""How long fewer must have been enough before the fleet shrinks, in seconds, where ``rebalance.cooldown`` does not say."""


@dataclass(frozen=True)
class Need:
    """Sandboxes that are needed, and what says so."""

    replicas: int
    """Sandbox pods, within the spec's limits."""
    environments: float
    """Environments in use at the mean."""
    source: SandboxSource
    words: str
    """The calculation, for people."""


def planned_environments(spec: RLJobSpec, period_s: float | None, turn_s: float | None = None) -> float | None:
    """Environments in use at the mean of a job that makes a step in ``period_s`` seconds; None without a period.

    A step's samples each spend (turns − 1) × ``turn_s`` there; ``turn_s`` is the spec's if it is None.
    """
    environment = spec.workload.environment
    if environment is None or period_s is None or period_s <= 0:
        return None
    seconds = environment.seconds_per_turn if turn_s is None else turn_s
    return spec.workload.samples_per_step * (environment.turns - 1) * seconds / period_s


def need(
    spec: RLJobSpec, telemetry: Telemetry | None, planned_period_s: float | None, replicas: int, ready: int
) -> Need | None:
    """What is needed now; None where nothing says it. ``replicas`` are those wished so far, ``ready`` those that work."""
    sandbox = spec.sandbox
    assert sandbox is not None
    rate = None if telemetry is None else telemetry.environment_turns_per_s.value
    turn_s = None if telemetry is None else telemetry.environment_turn_s.value
    if telemetry is None or rate is None or turn_s is None:
        expected = planned_environments(spec, planned_period_s)
        if expected is None:
            return None
        words = f"the plan keeps about {expected:,.0f} environments busy"
        return Need(_replicas(sandbox, expected, _margin(expected, None)), expected, SandboxSource.PLANNED, words)
    busy = rate * turn_s
    words = f"{rate:.3g} turns a second × {turn_s:.3g} s in the environment keep {busy:,.1f} environments busy"
    wanted = _replicas(sandbox, busy, _margin(busy, rate * telemetry.window_s))
    if busy > 0 and busy >= FULL * sandbox.per_replica * ready and replicas < sandbox.max_replicas:
        # A full fleet shows its own size; what the plan's pace would use with these turns is the better guess.
        could = planned_environments(spec, planned_period_s, turn_s)
        if could is not None and could > busy:
            wanted = max(wanted, _replicas(sandbox, could, _margin(could, None)))
            words += f", all that are ready; the plan's pace would use {could:,.0f}"
    return Need(wanted, busy, SandboxSource.MEASURED, words)


def sized(
    before: SandboxStatus | None, found: Need | None, spec: RLJobSpec, *, ready: int, now_s: float
) -> SandboxStatus:
    """The fleet after one look: up at once, down once fewer have been enough for ``rebalance.cooldown``.

    ``ready`` are the sandbox pods that are ready, ``now_s`` epoch seconds.
    """
    sandbox = spec.sandbox
    assert sandbox is not None
    now = timestamp(now_s)
    if before is None or before.replicas == 0:
        if found is not None:
            return _changed(found, found.replicas, ready, now, sandbox)
        words = "neither a plan nor a measurement says how many environments run: the fewest allowed"
        return SandboxStatus(
            replicas=sandbox.min_replicas, ready=ready, source=SandboxSource.PLANNED, reason=words, changed_at=now
        )
    if found is None or (found.source is SandboxSource.PLANNED and before.source is SandboxSource.MEASURED):
        # Unknown is no zero: what was measured stays until something else is.
        return _kept(_within(before, sandbox, now), ready)
    if found.replicas > before.replicas or not sandbox.min_replicas <= before.replicas <= sandbox.max_replicas:
        return _changed(found, found.replicas, ready, now, sandbox)
    busy = _rounded(found)
    if found.replicas > before.replicas - max(1.0, DEADBAND * before.replicas):
        return before.model_copy(
            update={"ready": ready, "busy": busy, "source": found.source, "low_since": None, "low_peak": None}
        )
    since = before.low_since or now
    peak = max(found.replicas, before.low_peak or 0)
    hold_s = HOLD_S if spec.rebalance.cooldown_s is None else spec.rebalance.cooldown_s
    if now_s - epoch_s(since) >= hold_s:
        return _changed(found, peak, ready, now, sandbox)
    return before.model_copy(
        update={"ready": ready, "busy": busy, "source": found.source, "low_since": since, "low_peak": peak}
    )


def stopped(before: SandboxStatus, now_s: float) -> SandboxStatus:
    """The fleet of a job whose samplers are gone: nobody is left who could use it."""
    if before.replicas == 0:
        return _kept(before, 0)
    return SandboxStatus(
        replicas=0,
        ready=0,
        source=SandboxSource.PLANNED,
        reason="the job's samplers are gone",
        changed_at=timestamp(now_s),
    )


def _changed(found: Need, replicas: int, ready: int, now: str, sandbox: Sandbox) -> SandboxStatus:
    limit = (
        f"; sandbox.maxReplicas {sandbox.max_replicas} allows no more: raise it if samples wait for sandboxes"
        if replicas >= sandbox.max_replicas
        else ""
    )
    return SandboxStatus(
        replicas=replicas,
        ready=ready,
        busy=_rounded(found) if found.source is SandboxSource.MEASURED else None,
        source=found.source,
        reason=f"{found.words}: {replicas} {'sandbox' if replicas == 1 else 'sandboxes'} with a margin for its noise{limit}",
        changed_at=now,
    )


def _kept(before: SandboxStatus, ready: int) -> SandboxStatus:
    return before.model_copy(update={"ready": ready, "busy": None, "low_since": None, "low_peak": None})


def _within(before: SandboxStatus, sandbox: Sandbox, now: str) -> SandboxStatus:
    """The fleet within the limits of a spec that was edited."""
    replicas = min(sandbox.max_replicas, max(sandbox.min_replicas, before.replicas))
    if replicas == before.replicas:
        return before
    return before.model_copy(update={"replicas": replicas, "reason": "the spec's limits changed", "changed_at": now})


def _margin(environments: float, turns: float | None) -> float:
    """How far the number in use may be above its mean: its own fluctuation, and the error of a mean over so many turns."""
    error = 0.0 if not turns else 2.0 * environments**2 / turns
    return MARGIN_SIGMAS * math.sqrt(environments + error)


def _replicas(sandbox: Sandbox, environments: float, margin: float) -> int:
    wanted = math.ceil((environments + margin) / sandbox.per_replica)
    return min(sandbox.max_replicas, max(sandbox.min_replicas, wanted))


def _rounded(found: Need) -> float:
    return float(f"{found.environments:.2g}")
