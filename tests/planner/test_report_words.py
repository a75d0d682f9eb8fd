"""What reports say of numbers, in the words that a reader takes for the numbers themselves."""

from __future__ import annotations

import pytest

from rljob_planner.outcome import Elasticity
from rljob_planner.report import confidence_words, effects


def test_half_of_a_pause_saves_half_of_its_share_of_the_period() -> None:
    # 2 s of weight sync in a period of 20 s are a tenth of it: without half of them the period is a twentieth shorter.
    found = dict(effects(Elasticity(decode=-0.7, train=None, sync=0.1, tail=0.4)))
    assert found["weights that reach the samplers in half the time"] == pytest.approx(-0.05)
    assert found["10 % faster decoding"] == pytest.approx(1.1**-0.7 - 1)
    assert len(found) == 3


def test_the_largest_saving_comes_first() -> None:
    savings = [effect for _, effect in effects(Elasticity(decode=-0.1, train=-0.8, sync=0.3, tail=0.0))]
    assert savings == sorted(savings)


@pytest.mark.parametrize(
    ("residual", "words"),
    [(None, "not measured"), (0.02, "high"), (0.1, "fair"), (0.5, "low: the calibrated model is off by 50%")],
)
def test_confidence_says_what_it_rests_on(residual: float | None, words: str) -> None:
    assert confidence_words(residual).startswith(words)
