"""What a move gained, and what that says of the way back."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.hindsight import measured_move, with_hindsight, with_measured_gain
from rljob_operator.outlook import Gain, Outlook
from rljob_operator.readings import LengthHistogram, Reading
from rljob_operator.rebalance import timestamp
from rljob_operator.situation import Situation
from rljob_planner.api.evidence import DecisionInputs, MeasuredMove
from rljob_planner.api.status import DecisionCode, MoveHistory
from rljob_planner.split import Split
from tests.operator.situations import NOW_S, FakePlanner, noted, situation, split, telemetry

INPUTS = DecisionInputs(
    sampler_factor=1.0, sampler_uncertainty=0.02, trainer_factor=1.0, trainer_uncertainty=0.02, response_tokens_mean=1100.0,
    response_tokens_uncertainty=0.03, growth_per_step=0.0, finished_tokens_mean=1000.0,
)  # fmt: skip


def moved(**changes: Any) -> MeasuredMove:
    move = MeasuredMove(left=split(56, 1), left_period_seconds=12.5, left_at=INPUTS, at=timestamp(NOW_S - 900.0))
    return move.model_copy(update=changes)


def after(move: MeasuredMove, **changes: Any) -> Situation:
    return situation(moves=MoveHistory(cost_seconds=60.0, measured=move), **changes)


def longer(factor: float) -> LengthHistogram:
    return LengthHistogram(((500.0, 30.0), (1000.0, 40.0), (2000.0, 30.0)), 1000.0).scaled(factor)


def test_where_lengths_stayed_the_period_before_is_compared() -> None:
    found = measured_move(after(moved()), FakePlanner().planner())
    assert found is not None
    assert found.gain == pytest.approx(1.0 - 10.0 / 12.5)
    assert found.uncertainty is not None
    assert 0.0 < found.uncertainty < 0.15
    (note,) = with_measured_gain((noted(DecisionCode.MOVE_COMMITTED, split(), before=split(56, 1)),), found)
    assert note.measured_gain == found.gain
    assert note.measured_against == "the period before the move"


def test_where_lengths_drifted_the_split_left_behind_is_forecast() -> None:
    seen = telemetry(response_lengths=Reading.of(longer(1.5)), period_s=Reading.of(14.0))
    fake = FakePlanner()
    plain = fake.planner()

    def evaluate(spec: Any, asked: Split, rooms: Any, **with_: Any) -> Any:
        found = plain.evaluate(spec, asked, rooms, **with_)
        found.period_s *= with_["lengths"].mean() / 1000.0
        return found

    planner = type(plain)(plan=plain.plan, evaluate=evaluate)
    found = measured_move(after(moved(), telemetry=seen), planner)
    assert found is not None
    assert found.gain == pytest.approx(1.0 - 14.0 / (12.5 * 1.5), abs=0.01)
    (note,) = with_measured_gain((noted(DecisionCode.MOVE_COMMITTED, split(), before=split(56, 1)),), found)
    assert note.measured_against is not None
    assert "56×1 samplers + 1×8 trainers would take with responses of 1500 tokens" in note.measured_against


def test_a_layout_that_is_too_young_is_not_measured() -> None:
    for changes in ({"steps_in_window": Reading.of(3)}, {"since_s": 20.0}, {"period_s": Reading.missing()}):
        move = moved()
        assert measured_move(after(move, telemetry=telemetry(**changes)), FakePlanner().planner()) is move
    assert measured_move(situation(), FakePlanner().planner()) is None
    known = moved(gain=0.1, uncertainty=0.02)
    assert measured_move(after(known), FakePlanner().planner()) is known


def test_the_way_back_counts_what_the_move_showed() -> None:
    move = moved(gain=0.2, uncertainty=0.02, finished_tokens_mean=1000.0)
    here = after(move)
    outlook = Outlook(here, FakePlanner().planner())
    model = Gain(0.05, 0.05, 0.5)
    back = with_hindsight(here, outlook, split(56, 1), model)
    assert back.mean < -0.1
    assert back.error < model.error
    assert with_hindsight(here, outlook, split(40, 3), model) == model
    later = after(move, telemetry=telemetry(response_lengths=Reading.of(longer(3.0))))
    faded = with_hindsight(later, Outlook(later, FakePlanner().planner()), split(56, 1), model)
    assert faded.mean > back.mean
