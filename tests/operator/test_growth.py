"""Mean response lengths followed over a run."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from rljob_operator.growth import LengthTrend, followed, sampling_error
from rljob_operator.readings import LengthHistogram

WINDOW_STEPS, LIFE_STEPS = 8, 3


def histogram(mean: float, count: float) -> LengthHistogram:
    bins = ((0.5 * mean, 0.45 * count), (2.0 * mean, 0.5 * count), (5.0 * mean, 0.05 * count))
    return LengthHistogram(bins, mean)


def run(truth: Callable[[int], float], *, steps: int = 400, noise: float = 0.02, seed: int = 1) -> list[LengthTrend]:
    """The trend after each step; a response that ends began ``LIFE_STEPS`` before."""
    draw, means, found = random.Random(seed), [], []
    trend: LengthTrend | None = None
    for step in range(steps):
        means.append(truth(max(0, step - LIFE_STEPS)) * math.exp(draw.gauss(0.0, noise)))
        window = means[-WINDOW_STEPS:]
        trend = followed(
            trend,
            histogram(sum(window) / len(window), 1024.0 * len(window)),
            step=float(step),
            window_steps=float(len(window)),
            age_steps=LIFE_STEPS + len(window) / 2,
            samples_per_prompt=16,
        )
        found.append(trend)
    return found


def test_growth_is_foreseen() -> None:
    found = run(lambda step: 1000.0 * 4.0 ** (step / 400))
    for step in (100, 200, 300, 399):
        trend = found[step]
        assert math.exp(trend.log_mean) == pytest.approx(1000.0 * 4.0 ** (step / 400), rel=0.06)
        assert trend.per_step == pytest.approx(math.log(4.0) / 400, rel=0.4)
        ahead, error = trend.ahead(30)
        assert ahead == pytest.approx(math.log(1000.0) + math.log(4.0) * (step + 30) / 400, abs=2.5 * error)


def test_noise_alone_foresees_next_to_nothing() -> None:
    for trend in run(lambda _: 1000.0, noise=0.1)[60::20]:
        assert abs(trend.per_step) < 0.0035
        assert abs(trend.ahead(20)[0] - math.log(1000.0)) < 3.0 * trend.ahead(20)[1]


def test_a_jump_moves_the_level_and_not_the_rate() -> None:
    found = run(lambda step: 1000.0 if step < 200 else 2500.0)
    assert math.exp(found[225].log_mean) == pytest.approx(2500.0, rel=0.1)
    assert abs(found[225].per_step) < 0.006
    assert math.exp(found[-1].log_mean) == pytest.approx(2500.0, rel=0.05)


def test_a_turn_is_followed() -> None:
    found = run(lambda step: 1000.0 * 4.0 ** (abs(step - 200) / 200 - 1))
    assert found[190].per_step < 0.0 < found[260].per_step


def test_what_is_foreseen_stays_within_a_factor_of_two() -> None:
    steep = LengthTrend(0.0, math.log(1000.0), 0.01, 1e-4, 0.0, 1e-8, 0.02, math.log(1000.0), 0.0)
    assert steep.ahead(1e6)[0] == pytest.approx(math.log(2000.0))
    assert steep.ahead(10.0)[0] == pytest.approx(math.log(1000.0) + 0.1, abs=1e-3)


def test_samples_of_a_group_are_no_independent_draws() -> None:
    seen = histogram(1000.0, 1600.0)
    assert sampling_error(seen, 1) == pytest.approx(seen.cv / 40.0)
    assert sampling_error(seen, 16) > 2.0 * sampling_error(seen, 1)


def test_the_same_window_again_teaches_nothing() -> None:
    trend = run(lambda _: 1000.0, steps=20)[-1]
    again = followed(
        trend, histogram(2000.0, 8000.0), step=trend.step, window_steps=8.0, age_steps=5.0, samples_per_prompt=8
    )  # fmt: skip
    assert again == trend


def test_a_run_that_goes_back_to_a_checkpoint_begins_anew() -> None:
    trend = run(lambda step: 1000.0 * 4.0 ** (step / 400), steps=100)[-1]
    again = followed(trend, histogram(1000.0, 8000.0), step=40.0, window_steps=8.0, age_steps=5.0, samples_per_prompt=8)
    assert (again.step, again.per_step) == (40.0, 0.0)
