"""What each phase of a move waits for, in words that say what a person can do about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_operator import queueing
from rljob_operator.observation import Observation, PodView, epoch_s, some
from rljob_operator.phases import Targets
from rljob_operator.victims import leaves, others
from rljob_planner.api.status import MovePhase, MoveStatus

LAYOUT_LAG_S = 90.0
"""The longest that a mounted ConfigMap lags behind what the API server holds."""


@dataclass(frozen=True)
class Wait:
    """Whether a phase is done, and what it waits for if not."""

    done: bool
    words: str = ""
    """What it waits for, and what a person can do; empty if it is done."""
    only_word: bool = False
    """Whether nothing is missing but the job's word: all that the API server shows is as it should be."""
    busy: bool = False
    """Whether samples still run on pods that are to go, or may."""


DONE = Wait(done=True)


def wait_of(move: MoveStatus, observation: Observation, goal: Targets, *, over_budget: bool = False) -> Wait:
    """Whether the phase of ``move`` is done; ``goal`` are the replicas that it makes for.

    ``over_budget`` says that the split before the move holds more than the budget: nothing then waits longer than what runs on
    the pods that go needs.
    """
    match move.phase:
        case MovePhase.ANNOUNCE:
            return _announced(move, observation, over_budget)
        case MovePhase.DRAIN:
            return _drained(move, observation, over_budget)
        case MovePhase.CHECKPOINT:
            return _checkpoint(move, observation)
        case MovePhase.SHRINK:
            return _gone(move, observation, goal)
        case MovePhase.GROW:
            return _pods_ready(observation, goal)
        case MovePhase.VERIFY:
            return _verified(move, observation, goal)


def _unpublished(move: MoveStatus, observation: Observation) -> Wait | None:
    if observation.published_generation >= move.generation:
        return None
    words = f"layout generation {move.generation} to be published: if it is not, look at the operator's log"
    return Wait(False, words, only_word=True)


def _heard(move: MoveStatus, observation: Observation) -> bool:
    got = observation.acknowledged_generation
    return got is not None and got >= move.generation


def _silent(move: MoveStatus, observation: Observation, what: str, check: str) -> Wait:
    got = observation.acknowledged_generation
    seen = "unknown" if got is None else str(got)
    return Wait(
        False,
        f"the trainer to {what} layout generation {move.generation} at a step boundary "
        f"(rljob_layout_generation is {seen}): check that {check}",
        only_word=True,
    )


def _unacknowledged(move: MoveStatus, observation: Observation) -> Wait:
    return _silent(move, observation, "acknowledge", "its pods read /etc/rljob/layout.json and are scraped")


def _announced(move: MoveStatus, observation: Observation, over_budget: bool) -> Wait:
    if move.restart and not leaves(move, "sampler"):
        return _checkpoint(move, observation)
    unpublished = _unpublished(move, observation)
    if unpublished is not None or _heard(move, observation):
        return unpublished or DONE
    trainers_go = leaves(move, "trainer") and not move.restart
    if not trainers_go and (over_budget or not observation.measurable):
        # Samplers drain by the layout alone, and whether they have is seen on themselves.
        return DONE
    if observation.hears_nobody and (over_budget or move.rolling_back):
        return DONE
    if over_budget and move.period_at_start is not None:
        patience_s = LAYOUT_LAG_S + 2.0 * move.period_at_start
        if observation.now_s > epoch_s(move.phase_since) + patience_s:
            return DONE
    return _unacknowledged(move, observation)


def _checkpoint(move: MoveStatus, observation: Observation) -> Wait:
    unpublished = _unpublished(move, observation)
    if unpublished is not None or _heard(move, observation):
        return unpublished or DONE
    if observation.hears_nobody and move.rolling_back:
        # Nobody is there who could write one; the trainer starts from its last.
        return DONE
    check = "it writes one where the layout says checkpoint: true, and that its pods are scraped"
    return _silent(move, observation, "write a checkpoint and then acknowledge", check)


def _drained(move: MoveStatus, observation: Observation, over_budget: bool) -> Wait:
    samplers = {pod.name for pod in observation.of("sampler")}
    busy: list[str] = []
    for name in move.victims:
        if name not in samplers:
            continue
        running = observation.running_by_pod.get(name)
        if running is None:
            busy.append(f"{name} (running unknown)")
        elif running > 0:
            busy.append(f"{name} ({running:.0f} running)")
    if busy:
        return Wait(
            False,
            f"samplers to finish their samples: {some(busy)}; at {move.deadline} they go all the same. If a count does not fall, "
            "check that the framework gives pods that the layout lists in draining nothing new",
            busy=True,
        )
    unready = [pod.name for pod in others(move, observation) if not pod.ready]
    if unready and not over_budget:
        return Wait(
            False,
            f"pods that stay to be ready: {some(unready)}; a scale-down removes pods that are not ready before those that are "
            f"drained. Look at them with kubectl describe; at {move.deadline} the move goes on all the same",
        )
    return DONE


def _gone(move: MoveStatus, observation: Observation, goal: Targets) -> Wait:
    lingering: list[str] = []
    for role, wanted in (("sampler", goal.samplers), ("trainer", goal.trainers)):
        pods = observation.of(role)
        if len(pods) > wanted:
            leaving = [pod.name for pod in pods if pod.terminating or pod.name in move.victims]
            lingering += leaving or [f"{len(pods) - wanted} {role} pods"]
    if lingering:
        return Wait(
            False,
            f"pods to be gone: {some(lingering)}. A pod that stays Terminating keeps its GPUs: look at its node, "
            "and delete it with --force only once its containers are known to be dead",
        )
    return DONE


def _pods_ready(observation: Observation, goal: Targets) -> Wait:
    missing: list[str] = []
    unready: list[PodView] = []
    for role, wanted in (("sampler", goal.samplers), ("trainer", goal.trainers)):
        staying = observation.staying(role)
        ready = sum(pod.ready for pod in staying)
        if ready < wanted:
            missing.append(f"{wanted - ready} of {wanted} {role}s")
            unready += [pod for pod in staying if not pod.ready]
    if missing:
        which = f" ({some([pod.name for pod in unready])})" if unready else ""
        gates = [pod.waits_at for pod in unready if pod.waits_at is not None]
        if gates and len(gates) == len(unready):
            return Wait(False, f"pods to be ready: {', '.join(missing)}{which}: {queueing.held_words(gates)}")
        return Wait(False, f"pods to be ready: {', '.join(missing)}{which}: kubectl describe the ones that are not")
    return DONE


def _verified(move: MoveStatus, observation: Observation, goal: Targets) -> Wait:
    ready = _pods_ready(observation, goal)
    if not ready.done:
        return ready
    unpublished = _unpublished(move, observation)
    if unpublished is not None or not observation.measurable:
        return unpublished or DONE
    if not _heard(move, observation):
        return _unacknowledged(move, observation)
    if not observation.metrics_flow:
        return Wait(False, "the new pods' metrics: check that they are scraped", only_word=True)
    return DONE
