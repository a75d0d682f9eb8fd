"""Where the period goes, and which side bounds it: an explanation of what was observed, with its evidence.

Three clocks run at once, and a share means something only on its own. The *trainer's* period is training, waiting for samples, and
the rest. The *samplers'* is generating, pausing for new weights, and idling. A *sample's* life is decoding and its environment.

One idle ratio proves nothing: a trainer waits because samplers are too slow, but also because publication is held back, or because
what stands between queue and trainer is slow; and it never waits where samplers age in a growing queue. So a verdict takes both
sides and the queue between them; with one of the three unknown there is none, only what the others point to. A quantity that was not
measured is unknown here and stays it: it is never counted as zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rljob_planner.advise import HEAVY_SYNC, Advice, Bound, Compared, Expected, advice, compared, line
from rljob_planner.observation import Observation, Seen

WAITS = 0.10
"""Share of the period from which the trainer waits for samples, rather than for the next scrape."""
HARDLY_WAITS = 0.05
READY_STEPS = 1.0
"""Steps' worth of complete groups in the queue from which the trainer has something to do."""
HELD_BACK = 0.20
"""Share of time in which samplers idle beside a trainer that never waits, from which they are held back for it."""
HEAVY_SANDBOX = 0.50
"""Share of a sample's life in its environment from which that, and not decoding, is how long it takes."""
GATED = 0.10
"""Share of the samples in flight that neither run, nor queue, nor are in an environment, from which they wait for one."""
_SINGLE = 0.5


class Clock(StrEnum):
    """Whose time a share is of."""

    TRAINER = "trainer"
    SAMPLERS = "samplers"
    SAMPLE = "sample"


@dataclass(frozen=True)
class Term:
    """One part of the period."""

    name: str
    clock: Clock
    seconds: float | None
    """Of a period, or of a sample's life; None: unknown."""
    share: float | None
    """Of the clock's whole, 0..1; None: unknown."""
    evidence: tuple[str, ...]
    """The metrics and values behind it."""
    unknown: str = ""
    """What would have to be measured; empty if nothing."""


@dataclass(frozen=True)
class Diagnosis:
    """The explanation."""

    period_s: float | None
    bound: Bound
    sure: bool
    """Whether both sides and the queue say so; False: it is what the known ones point to."""
    why: tuple[str, ...]
    terms: tuple[Term, ...]
    advice: tuple[Advice, ...]
    """What to change, first things first."""
    compared: tuple[Compared, ...] = ()
    unknown: tuple[str, ...] = ()
    """What could not be said, and what would have to be measured."""
    notes: tuple[str, ...] = ()


def diagnose(
    seen: Observation, expected: Expected | None = None, *, samples_per_prompt: int | None = None
) -> Diagnosis:
    """Explains an observation; ``expected`` sets the model beside it, ``samples_per_prompt`` tells groups from samples."""
    whole = _whole(seen)
    terms = tuple(_terms(seen, whole))
    shares: Mapping[str, float | None] = {t.name: t.share for t in terms}
    ready = _ready_steps(seen, samples_per_prompt)
    bound, sure, why = _bound(seen, shares, ready)
    if whole is not None and seen.period_s is None:
        sure = False
        why = (*why, "the period is not measured: it is taken to be training and waiting alone")
    return Diagnosis(
        period_s=None if whole is None else whole.value,
        bound=bound,
        sure=sure,
        why=why,
        terms=terms,
        advice=tuple(advice(seen, bound, shares)),
        compared=tuple(compared(seen, expected or Expected())),
        unknown=tuple(_unknown(seen, terms, ready)),
        notes=(*seen.notes, *(f"{name} started anew in the window: its process did" for name in seen.restarts)),
    )


def _whole(seen: Observation) -> Seen | None:
    """The period, or training and waiting where nothing else is known."""
    if seen.period_s is not None or seen.train_s is None or seen.wait_s is None:
        return seen.period_s
    return Seen(seen.train_s.value + seen.wait_s.value, f"{seen.train_s.metric} + {seen.wait_s.metric}")


def _terms(seen: Observation, whole: Seen | None) -> list[Term]:
    """The parts of all three clocks."""
    train = _part("train", Clock.TRAINER, seen.train_s, whole, "rljob_train_step_seconds")
    wait = _part("wait", Clock.TRAINER, seen.wait_s, whole, "rljob_trainer_wait_seconds_total")
    sync = _part("sync", Clock.SAMPLERS, seen.sync_s, whole, "rljob_weight_sync_seconds")
    return [
        train,
        wait,
        _rest(seen, whole, train, wait, sync),
        _generate(seen, whole, sync),
        sync,
        _idle(seen, whole),
        *_life(seen),
    ]


def _part(name: str, clock: Clock, part: Seen | None, whole: Seen | None, metric: str) -> Term:
    if part is None:
        return Term(name, clock, None, None, (), f"{metric} is not there")
    evidence = [line(f"{name} a step", part, " s")]
    if whole is None:
        return Term(name, clock, part.value, None, tuple(evidence), "the period is unknown (rljob_policy_version)")
    evidence.append(line("period", whole, " s"))
    return Term(
        name, clock, part.value, min(1.0, part.value / whole.value) if whole.value > 0 else None, tuple(evidence)
    )


def _rest(seen: Observation, whole: Seen | None, train: Term, wait: Term, sync: Term) -> Term:
    """What of the trainer's period neither training nor waiting explains."""
    if seen.period_s is None or train.seconds is None or wait.seconds is None or whole is None:
        return Term(
            "other",
            Clock.TRAINER,
            None,
            None,
            (),
            "it is what train and wait leave of the period, which are not all known",
        )
    rest = max(0.0, whole.value - train.seconds - wait.seconds)
    evidence = [f"period {whole.value:.3g} s less train {train.seconds:.3g} s and wait {wait.seconds:.3g} s"]
    if sync.seconds is not None and rest > 0 and 0.7 < sync.seconds / rest < 1.4:
        evidence.append(f"as long as the weight sync ({sync.seconds:.3g} s): the trainer seems to stop for it")
    return Term("other", Clock.TRAINER, rest, rest / whole.value if whole.value > 0 else None, tuple(evidence))


def _generate(seen: Observation, whole: Seen | None, sync: Term) -> Term:
    missing = "vllm:iteration_tokens_total, or vllm:num_requests_running in several scrapes, is not there"
    if seen.busy is None:
        return Term("generate", Clock.SAMPLERS, None, None, (), missing)
    evidence = [line("samplers have something to run in a share of", seen.busy)]
    # A pause for weights lies inside the gap between two tokens, so that the engine seems busy in it.
    pause = sync.share or 0.0
    share = max(0.0, min(1.0, seen.busy.value) - pause)
    if pause:
        evidence.append(f"less {pause:.0%} in which they pause for weights")
    for what, part, unit in (
        ("running samples", seen.running, ""),
        ("between two tokens", seen.iteration_s, " s"),
        ("tokens a second", seen.tokens_per_s, ""),
    ):
        if part is not None:
            evidence.append(line(what, part, unit))
    return Term("generate", Clock.SAMPLERS, None if whole is None else share * whole.value, share, tuple(evidence))


def _idle(seen: Observation, whole: Seen | None) -> Term:
    if seen.busy is None:
        return Term("idle", Clock.SAMPLERS, None, None, (), "as for generate")
    share = max(0.0, 1.0 - seen.busy.value)
    return Term(
        "idle",
        Clock.SAMPLERS,
        None if whole is None else share * whole.value,
        share,
        (f"what generating and pausing leave: 1 − {seen.busy.value:.2f}",),
    )


def _life(seen: Observation) -> list[Term]:
    """Decoding and environment in a sample's life; nothing for a job that has no environment."""
    sandbox, decode = seen.environment_s, seen.decode_s
    if sandbox is None:
        return [
            Term(
                "sandbox",
                Clock.SAMPLE,
                None,
                None,
                (),
                "rljob_environment_seconds is not there: no environment, or none that reports",
            )
        ]
    evidence = [line("a sample is in its environment for", sandbox, " s")]
    if decode is None:
        missing = "how long a sample decodes (vllm:request_decode_time_seconds) is not there"
        return [Term("sandbox", Clock.SAMPLE, sandbox.value, None, tuple(evidence), missing)]
    evidence.append(line("and on a sampler for", decode, " s"))
    life = sandbox.value + decode.value
    return [Term("sandbox", Clock.SAMPLE, sandbox.value, sandbox.value / life if life > 0 else None, tuple(evidence))]


def _ready_steps(seen: Observation, samples_per_prompt: int | None) -> tuple[float, float] | None:
    """The least and the most steps' worth of groups that wait, None if the queue is unknown.

    Without the samples of a group, a step has between one group and as many as it has samples.
    """
    if seen.queue_groups is None:
        return None
    queue = seen.queue_groups.value
    if queue < _SINGLE:
        return 0.0, queue
    if seen.samples_per_step is None or seen.samples_per_step.value <= 0:
        return 0.0, queue
    if samples_per_prompt is not None:
        steps = queue * samples_per_prompt / seen.samples_per_step.value
        return steps, steps
    return queue / seen.samples_per_step.value, queue


def _bound(
    seen: Observation, shares: Mapping[str, float | None], ready: tuple[float, float] | None
) -> tuple[Bound, bool, tuple[str, ...]]:
    """What bounds the period, whether that is sure, and why."""
    wait = shares["wait"]
    why: list[str] = []
    if wait is not None:
        why.append(f"the trainer waits for samples in {wait:.0%} of the period")
    if ready is not None and seen.queue_groups is not None:
        why.append(_ready_line(seen.queue_groups.value, ready))
    if wait is None or ready is None:
        lacking = "how long the trainer waits" if wait is None else "how many groups are ready for it"
        why.append(f"{lacking} is not known, and one side alone does not tell which it is")
        return Bound.UNKNOWN, False, (*why, *_pointing(wait))
    open_question = ready[0] < READY_STEPS <= ready[1]
    if open_question and wait >= HARDLY_WAITS:
        why.append("whether that is enough for a step depends on how many samples a group has, which is not known")
        return Bound.UNKNOWN, False, (*why, *_pointing(wait))
    full = ready[0] >= READY_STEPS
    if wait >= WAITS and full:
        why.append(
            "so groups are ready and it waits all the same: what is between the queue and the trainer is slow, or holds it"
        )
        return Bound.HANDOVER, True, tuple(why)
    if wait >= WAITS:
        return _starved(seen, shares, why)
    if _stops_for_sync(shares):
        why.append(f"and it stops for weight sync, {shares['sync']:.0%} of the period")
        return Bound.WEIGHT_SYNC, True, tuple(why)
    growing = seen.queue_growth_groups is not None and seen.queue_growth_groups.value >= 1
    idle = shares["idle"]
    held = idle is not None and idle >= HELD_BACK
    if wait < HARDLY_WAITS and (full or growing or held):
        why.append("so samplers are ahead of it" + (", and the queue grows" if growing else ""))
        if held:
            why.append(
                f"they have nothing to run in {idle:.0%} of the time, held back by the cap, the bound or the queue"
            )
        return Bound.TRAINERS, True, tuple(why)
    why.append("so neither side waits long for the other")
    return Bound.BALANCED, wait < HARDLY_WAITS and not open_question, tuple(why)


def _pointing(wait: float | None) -> tuple[str, ...]:
    if wait is None:
        return ()
    return ("the wait alone points to the samplers" if wait >= WAITS else "the wait alone points to the trainer",)


def _ready_line(groups: float, ready: tuple[float, float]) -> str:
    if groups < _SINGLE:
        return "hardly ever is a complete group ready for it"
    least, most = ready
    steps = f"{least:.2g} steps' worth" if least == most else f"{least:.2g} to {most:.2g} steps' worth"
    return f"{groups:.3g} complete groups are ready for it, {steps}"


def _stops_for_sync(shares: Mapping[str, float | None]) -> bool:
    """Whether the trainer's own time has a weight sync in it that is worth shortening."""
    sync, other = shares["sync"], shares["other"]
    return sync is not None and other is not None and sync >= HEAVY_SYNC and other >= 0.7 * sync


def _starved(
    seen: Observation, shares: Mapping[str, float | None], why: list[str]
) -> tuple[Bound, bool, tuple[str, ...]]:
    """The trainer waits and nothing is ready: which part of the rollout is slow."""
    wait, sync, sandbox = shares["wait"] or 0.0, shares["sync"], shares["sandbox"]
    if sandbox is not None and sandbox >= HEAVY_SANDBOX:
        gated = _gated(seen)
        why.append(f"a sample spends {sandbox:.0%} of its life in its environment")
        if gated is not None and gated >= GATED:
            why.append(f"and {gated:.0%} of the samples in flight wait for one")
        return Bound.SANDBOXES, True, tuple(why)
    if sync is not None and sync >= HEAVY_SYNC and sync >= wait / 2:
        why.append(f"samplers pause for new weights in {sync:.0%} of the period")
        return Bound.WEIGHT_SYNC, True, tuple(why)
    why.append("so the rollout is the slower side")
    return Bound.SAMPLERS, True, tuple(why)


def _gated(seen: Observation) -> float | None:
    """Share of the samples in flight that neither decode, nor wait for a slot, nor are in an environment (Little's law)."""
    parts = (seen.in_flight, seen.running, seen.waiting, seen.environment_s, seen.samples_per_s)
    if any(p is None for p in parts):
        return None
    in_flight, running, waiting, environment, rate = (p.value for p in parts if p is not None)
    if in_flight <= 0:
        return None
    return max(0.0, in_flight - running - waiting - environment * rate) / in_flight


def _unknown(seen: Observation, terms: Sequence[Term], ready: tuple[float, float] | None) -> list[str]:
    """What could not be said, and what would have to be measured."""
    found = [f"{t.name}: {t.unknown}" for t in terms if t.unknown and t.name != "idle"]
    if ready is None:
        found.append("queue: rljob_queue_depth_groups is not there")
    elif ready[0] != ready[1] and ready[1] >= READY_STEPS:
        found.append("queue in steps: how many samples a group has is not known; the job tells (--job, or rljob/NAME)")
    if seen.running is None:
        found.append("samplers: vllm:num_requests_running is not there")
    if seen.period_s is None and seen.train_s is None and seen.wait_s is None:
        found.append(
            "all rljob_* metrics: the trainer's process shows them, by the Reporter of rljob-runtime; give its scrapes too"
        )
    if seen.scrapes == 1:
        found.append("rates: give two scrapes or more, some periods apart, and say how far apart with --interval")
    return found
