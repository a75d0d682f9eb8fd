"""The chance of regret, and what knowing more is worth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.regret import Stake


def test_the_chance_that_a_move_loses() -> None:
    assert Stake(0.0, 10.0).chance_of_loss == pytest.approx(0.5)
    assert Stake(16.45, 10.0).chance_of_loss == pytest.approx(0.05, abs=1e-4)
    assert Stake(5.0, 0.0).chance_of_loss == 0.0
    assert Stake(-5.0, 0.0).chance_of_loss == 1.0


def test_knowing_more_is_worth_most_where_it_is_a_toss_up() -> None:
    assert Stake(0.0, 100.0).worth_of_knowing_s(1.0) == pytest.approx(39.894, abs=1e-3)
    assert Stake(500.0, 100.0).worth_of_knowing_s(1.0) < 1e-4
    assert Stake(0.0, 100.0).worth_of_knowing_s(0.25) == pytest.approx(19.947, abs=1e-3)
    assert Stake(10.0, 100.0).worth_of_knowing_s(0.0) == 0.0


@given(mean=st.floats(-1e6, 1e6), error=st.floats(0.0, 1e6), learned=st.floats(0.0, 1.0))
def test_knowing_is_never_worth_less_than_nothing(mean: float, error: float, learned: float) -> None:
    stake = Stake(mean, error)
    assert stake.worth_of_knowing_s(learned) >= 0.0
    assert 0.0 <= stake.chance_of_loss <= 1.0
