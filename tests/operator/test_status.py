"""The words of a job's status: conditions move their transition time only when they change, messages say what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_operator import status
from rljob_operator.situation import StalenessCheck
from rljob_operator.status import Fleet, Verdict
from rljob_planner.api.spec import Staleness
from rljob_planner.api.status import Condition, ConditionType, DecisionCode, DecisionStatus, Phase

FULL = Fleet(wanted=4, existing=4, bound=4, ready=4)


def test_a_transition_time_moves_only_with_the_status() -> None:
    first = status.conditions((), {ConditionType.READY: Verdict(False, "A", "a")}, generation=1, now_s=10.0)
    again = status.conditions(first, {ConditionType.READY: Verdict(False, "B", "b")}, generation=2, now_s=20.0)
    assert again[0].last_transition_time == first[0].last_transition_time
    assert (again[0].reason, again[0].observed_generation) == ("B", 2)
    flipped = status.conditions(again, {ConditionType.READY: Verdict(None, "C", "c")}, generation=2, now_s=30.0)
    assert flipped[0].status == "Unknown"
    assert flipped[0].last_transition_time > first[0].last_transition_time


def test_conditions_that_a_pass_does_not_mention_stay() -> None:
    first = status.conditions((), {ConditionType.PLANNED: Verdict(True, "P", "p")}, generation=1, now_s=1.0)
    both = status.conditions(first, {ConditionType.READY: Verdict(True, "R", "r")}, generation=1, now_s=2.0)
    assert [c.type for c in both] == [ConditionType.READY, ConditionType.PLANNED]


@pytest.mark.parametrize(
    ("fleet", "reason", "words"),
    [
        (replace(FULL, refused='pods "x" is forbidden: exceeded quota: q'), "QuotaExceeded", "raise the ResourceQuota"),
        (replace(FULL, refused="violates PodSecurity"), "PodsRefused", "make the template fit"),
        (
            replace(FULL, unschedulable="0/8 nodes are available: 8 Insufficient nvidia.com/gpu"),
            "Unschedulable",
            "free GPUs",
        ),
        (replace(FULL, bound=3, gated=1), "WaitingForBudget", "30 of 32 GPUs"),
        (replace(FULL, bound=3), "WaitingForPods", "1 pods"),
    ],
)
def test_what_keeps_pods_from_a_node_is_said_with_a_remedy(fleet: Fleet, reason: str, words: str) -> None:
    verdict = status.scheduled(fleet, FULL, budget=32, held=30)
    assert (verdict.status, verdict.reason) == (False, reason)
    assert words in verdict.message


def test_all_bound_is_scheduled_and_nothing_wished_is_not() -> None:
    assert status.scheduled(FULL, FULL, 32, 32).status is True
    nothing = Fleet(0, 0, 0, 0)
    assert status.scheduled(nothing, nothing, 32, 0).reason == "Stopped"
    assert status.ready(nothing, nothing, "job").status is False


def test_a_suspended_job_says_that_it_still_holds_gpus_and_for_what() -> None:
    held = status.suspended(some_exist=True, waits_for="samplers to finish: a (3 running)")
    assert (held.status, held.reason) == (False, "Suspending")
    assert "a (3 running)" in held.message
    assert status.suspended(some_exist=False).reason == "Suspended"


def test_the_same_decision_counts_up_and_at_most_ten_are_kept() -> None:
    kept: tuple[DecisionStatus, ...] = ()
    for code in [DecisionCode.AT_OPTIMUM, DecisionCode.AT_OPTIMUM, DecisionCode.COOLDOWN] * 10:
        kept = status.remember(kept, DecisionStatus(at="t", code=code, message="m"))
    assert len(kept) == status.MAX_DECISIONS
    assert [d.count for d in kept[-2:]] == [2, 1]


@pytest.mark.parametrize(
    ("facts", "phase"),
    [
        ({"planned": False}, Phase.PENDING),
        ({"children_exist": False}, Phase.PLANNED),
        ({"all_ready": False}, Phase.STARTING),
        ({}, Phase.RUNNING),
        ({"all_ready": False, "previous": Phase.RUNNING}, Phase.RUNNING),
        ({"suspended": True}, Phase.SUSPENDED),
        ({"complete": True}, Phase.COMPLETE),
        ({"complete": True, "suspended": True}, Phase.COMPLETE),
    ],
)
def test_the_phase_follows_from_what_holds(facts: dict[str, object], phase: Phase) -> None:
    usual: dict[str, object] = {
        "previous": Phase.STARTING,
        "planned": True,
        "suspended": False,
        "move": None,
        "all_ready": True,
        "children_exist": True,
        "complete": False,
    }
    assert status.phase_of(**{**usual, **facts}) is phase  # type: ignore[arg-type]


def test_numbers_are_rounded_and_unknown_stays_unknown() -> None:
    assert status.rounded(1234.5678, 3) == 1230.0
    assert status.rounded(None) is None
    assert status.rounded(float("nan")) is None


def test_events_tell_what_went_wrong_and_what_is_right_again_and_nothing_else() -> None:
    def conditions(verdict: Verdict, kind: ConditionType = ConditionType.METRICS_AVAILABLE) -> tuple[Condition, ...]:
        return status.conditions((), {kind: verdict}, generation=1, now_s=0.0)

    good = conditions(Verdict(True, "MetricsFound", "m"))
    bad = conditions(Verdict(False, "MetricsMissing", "m"))
    starting = conditions(Verdict(None, "Starting", "m"))
    assert status.events((), good) == ()
    assert status.events(starting, good) == ()
    assert status.events(good, bad) == bad
    assert status.events(bad, bad) == ()
    assert status.events(bad, good) == good
    assert status.events((), starting) == ()
    assert status.events((), conditions(Verdict(False, "PodsNotReady", "m"), ConditionType.READY)) == ()
    assert status.events((), conditions(Verdict(True, "Drain", "m"), ConditionType.REBALANCING)) == ()
    broken = conditions(Verdict(True, "PodsBroken", "m"), ConditionType.DEGRADED)
    assert status.events((), broken) == broken


def test_under_hold_a_trained_sample_may_be_older_by_its_time_in_the_queue() -> None:
    def verdict(observed: float, bound: str) -> Verdict:
        staleness = Staleness.model_validate({"max": 4, "bound": bound})
        return status.within_staleness(StalenessCheck("mean", observed, staleness.mean_limit), staleness.bound, None)

    assert verdict(4.6, "hold").status is True
    assert verdict(4.6, "admission").status is False
    assert verdict(5.6, "hold").status is False
