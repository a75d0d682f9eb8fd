"""What moves take and cost, learned phase by phase."""

from __future__ import annotations

import pytest

from rljob_operator.move_cost import averaged, duration_s, lost_s, with_phase
from rljob_planner.api.evidence import PhaseSeconds
from rljob_planner.api.status import MoveHistory, MovePhase
from tests.operator.situations import spec, split


def test_until_a_job_has_moved_phases_are_assumed() -> None:
    assert duration_s(MoveHistory(), spec(), 100.0, 10.0) == pytest.approx(5.0 + 100.0 + 30.0 + 180.0 + 35.0)
    short = spec(sampler__drainTimeout="20s")
    assert duration_s(MoveHistory(), short, 100.0, 10.0) == pytest.approx(270.0)


def test_each_phase_that_was_seen_replaces_its_assumption() -> None:
    seen = with_phase(with_phase(PhaseSeconds(), MovePhase.DRAIN, 12.04), MovePhase.GROW, 60.0)
    assert (seen.drain, seen.grow, seen.shrink) == (12.0, 60.0, None)
    known = duration_s(MoveHistory(phases=seen), spec(), 100.0, 10.0)
    assert known == pytest.approx(5.0 + 12.0 + 30.0 + 60.0 + 35.0)


def test_phases_are_averaged_over_moves_and_unknown_ones_are_left() -> None:
    before = PhaseSeconds(drain=100.0, grow=200.0)
    after = averaged(before, PhaseSeconds(drain=50.0, verify=20.0))
    assert (after.drain, after.grow, after.verify, after.announce) == (75.0, 200.0, 20.0, None)


def test_a_move_costs_what_changes_sides_and_a_standstill() -> None:
    few, many = split(40, 3), split(32, 4)
    small, large = (lost_s(MoveHistory(), split(), after, 400.0, 10.0) for after in (few, many))
    assert small == pytest.approx(8 / 64 * 400.0 + 30.0)
    assert large == pytest.approx(16 / 64 * 400.0 + 30.0)
