"""How many sandboxes a job gets: by Little's law, at once when more are needed, slowly when fewer are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_operator.readings import Reading, Telemetry
from rljob_operator.sandboxes import HOLD_S, Need, need, planned_environments, sized, stopped
from rljob_planner.api.fleets import SandboxSource, SandboxStatus
from rljob_planner.api.spec import RLJobSpec
from tests.operator.objects import spec, template

NOW_S = 1_000_000.0


def agentic(cooldown: str = "10m", **sandbox: Any) -> RLJobSpec:
    return spec(
        workload={
            "promptsPerStep": 16,
            "samplesPerPrompt": 8,
            "steps": 100,
            "promptTokens": {"mean": 200},
            "responseTokens": {"mean": 1000, "max": 8000},
            "environment": {"secondsPerTurn": 5.0, "turns": 5},
        },
        sandbox={"maxReplicas": 1000, "template": template(), **sandbox},
        rebalance={"cooldown": cooldown},
    )


def live(turns_per_s: float, turn_s: float, window_s: float = 600.0) -> Telemetry:
    return replace(
        Telemetry(NOW_S, window_s),
        environment_turn_s=Reading.of(turn_s),
        environment_turns_per_s=Reading.of(turns_per_s),
    )


def fleet(replicas: int, source: SandboxSource = SandboxSource.MEASURED, **changes: Any) -> SandboxStatus:
    return SandboxStatus(
        replicas=replicas, source=source, reason="before", changed_at="2026-01-01T00:00:00Z", **changes
    )


def measured(replicas: int, environments: float = 1.0) -> Need:
    return Need(replicas, environments, SandboxSource.MEASURED, "so many")


def test_littles_law_with_a_margin_for_its_own_noise() -> None:
    found = need(agentic(), live(10.0, 10.0), None, replicas=200, ready=200)
    assert found is not None
    assert found.environments == pytest.approx(100.0)
    assert found.source is SandboxSource.MEASURED
    # 100 busy, √100 of fluctuation and the error of a mean over 6000 turns: 2.33 × √(100 + 3.3).
    assert found.replicas == 124
    noisy = need(agentic(), live(10.0, 10.0, window_s=10.0), None, replicas=200, ready=200)
    assert noisy is not None
    assert noisy.replicas > found.replicas, "fewer turns say less"


def test_one_pod_may_run_several_environments() -> None:
    found = need(agentic(perReplica=10), live(10.0, 10.0), None, replicas=20, ready=20)
    assert found is not None
    assert found.replicas == 13


def test_before_anything_is_measured_the_plan_says_how_many() -> None:
    # 128 samples × 4 turns × 5 s in a period of 25.6 s.
    assert planned_environments(agentic(), 25.6) == pytest.approx(100.0)
    found = need(agentic(), Telemetry(NOW_S, 60.0), 25.6, replicas=0, ready=0)
    assert found is not None
    assert found.source is SandboxSource.PLANNED
    assert found.replicas == 124
    assert need(agentic(), None, None, replicas=0, ready=0) is None


def test_a_full_fleet_asks_for_what_the_plans_pace_would_use() -> None:
    found = need(agentic(), live(2.0, 5.0), 25.6, replicas=10, ready=10)
    assert found is not None
    assert found.environments == pytest.approx(10.0)
    assert found.replicas == 124
    free = need(agentic(), live(2.0, 5.0), 25.6, replicas=100, ready=100)
    assert free is not None
    assert free.replicas == 18, "with room to spare, what is measured is what is wanted"
    blind = need(agentic(), live(2.0, 5.0), None, replicas=10, ready=10)
    assert blind is not None
    assert blind.replicas == 18, "without a plan the margin alone lets a full fleet grow"


def test_limits_of_the_spec_are_kept_and_said() -> None:
    found = need(agentic(maxReplicas=50), live(10.0, 10.0), None, replicas=10, ready=10)
    assert found is not None
    assert found.replicas == 50
    now = sized(fleet(10), found, agentic(maxReplicas=50), ready=10, now_s=NOW_S)
    assert now.replicas == 50
    assert "sandbox.maxReplicas 50 allows no more" in now.reason
    idle = need(agentic(minReplicas=4), live(0.0, 5.0), None, replicas=10, ready=10)
    assert idle is not None
    assert idle.replicas == 4


def test_it_grows_at_once() -> None:
    now = sized(fleet(10, low_since="2026-01-01T00:00:00Z", low_peak=3), measured(11), agentic(), ready=9, now_s=NOW_S)
    assert (now.replicas, now.ready, now.low_since) == (11, 9, None)


def test_it_shrinks_to_the_most_that_was_needed_once_fewer_have_been_enough_for_a_while() -> None:
    of, at_s, status = agentic(), NOW_S, fleet(100)
    for wanted in (50, 70, 40):
        status = sized(status, measured(wanted), of, ready=100, now_s=at_s)
        assert status.replicas == 100
        at_s += 200.0
    assert status.low_peak == 70
    status = sized(status, measured(45), of, ready=100, now_s=at_s)
    assert (status.replicas, status.low_since) == (70, None)


def test_a_short_peak_in_between_begins_the_wait_anew() -> None:
    of = agentic()
    status = sized(fleet(100), measured(50), of, ready=100, now_s=NOW_S)
    status = sized(status, measured(95), of, ready=100, now_s=NOW_S + 500)
    assert status.low_since is None
    status = sized(status, measured(50), of, ready=100, now_s=NOW_S + 700)
    assert status.replicas == 100


def test_a_stated_cooldown_is_obeyed_also_if_it_is_none() -> None:
    status = sized(fleet(100), measured(50), agentic(cooldown="0s"), ready=100, now_s=NOW_S)
    assert status.replicas == 50


def test_noise_changes_nothing() -> None:
    status, of = fleet(100), agentic(cooldown="1s")
    for step in range(200):
        status = sized(status, measured(91 + step % 10), of, ready=100, now_s=NOW_S + 60.0 * step)
    assert status.replicas == 100
    assert status.changed_at == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize("found", [None, Need(5, 4.0, SandboxSource.PLANNED, "plan")])
def test_what_was_measured_stays_while_metrics_are_lost(found: Need | None) -> None:
    before = fleet(100, low_since="2026-01-01T00:00:00Z", low_peak=3)
    now = sized(before, found, agentic(), ready=80, now_s=NOW_S + 10 * HOLD_S)
    assert (now.replicas, now.busy, now.low_since) == (100, None, None)


def test_the_first_fleet_and_one_that_starts_again() -> None:
    of = agentic(minReplicas=3)
    assert sized(None, None, of, ready=0, now_s=NOW_S).replicas == 3
    assert sized(None, measured(20), of, ready=0, now_s=NOW_S).replicas == 20
    ended = stopped(fleet(20), NOW_S)
    assert ended.replicas == 0
    assert stopped(ended, NOW_S + 5.0) == ended, "a stopped job's status does not change at every look"
    assert sized(ended, measured(7), of, ready=0, now_s=NOW_S).replicas == 7


def test_edited_limits_bind_at_once_also_without_metrics() -> None:
    assert sized(fleet(100), None, agentic(maxReplicas=40), ready=100, now_s=NOW_S).replicas == 40
    assert sized(fleet(100), measured(30), agentic(maxReplicas=40), ready=100, now_s=NOW_S).replicas == 30
    assert sized(fleet(2), None, agentic(minReplicas=5), ready=2, now_s=NOW_S).replicas == 5
