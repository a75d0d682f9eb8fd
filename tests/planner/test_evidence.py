"""How sure a factor is: noise, lasting noise, jumps and drifts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from rljob_planner.evidence import Evidence, absorbed, assumed, first

PERIOD_S, WINDOW_STEPS = 60.0, 8


def followed(
    truth: Callable[[int], float], noise: float, *, steps: int = 400, seed: int = 0, lasting_steps: int = 1
) -> list[tuple[float, Evidence]]:
    """What is known after each step whose window mean is read; noise is drawn anew every ``lasting_steps`` steps."""
    draw, speeds, found = random.Random(seed), [], []
    factor, evidence, error = 1.0, None, 0.0
    for step in range(steps):
        if step % lasting_steps == 0:
            error = draw.gauss(0.0, noise)
        speeds.append(truth(step) * math.exp(error))
        if step < 3:
            continue
        window = speeds[-WINDOW_STEPS:]
        reading, at_s = sum(window) / len(window), step * PERIOD_S
        if evidence is None:
            factor, evidence = first(reading, at_s)
        else:
            factor, evidence = absorbed(factor, evidence, reading, at_s, len(window) * PERIOD_S)
        found.append((factor, evidence))
    return found


def test_a_steady_speed_is_known_ever_better() -> None:
    found = followed(lambda _: 1.3, 0.05)
    early, late = found[20], found[-1]
    assert late[0] == pytest.approx(1.3, rel=0.02)
    assert late[1].error_of(late[0]) < 0.5 * early[1].error_of(early[0])
    assert late[1].spread == pytest.approx(0.05 / math.sqrt(WINDOW_STEPS), rel=0.5)


def test_the_error_is_about_what_the_factor_is_off() -> None:
    z = []
    for seed in range(30):
        factor, evidence = followed(lambda _: 1.0, 0.1, steps=120, seed=seed)[-1]
        z.append(math.log(factor) / evidence.error_of(factor))
    assert 0.4 < math.sqrt(sum(each**2 for each in z) / len(z)) < 1.6


def test_noise_that_lasts_makes_readings_count_for_less() -> None:
    fleeting, lasting = (followed(lambda _: 1.0, 0.1, lasting_steps=n)[-1][1] for n in (1, 30))
    assert lasting.standard_error > 2.0 * fleeting.standard_error
    errors = []
    for seed in range(20):
        factor, evidence = followed(lambda _: 1.0, 0.1, lasting_steps=20, seed=seed)[-1]
        errors.append(math.log(factor) / evidence.error_of(factor))
    assert math.sqrt(sum(each**2 for each in errors) / len(errors)) < 2.0


def test_a_jump_starts_the_average_anew() -> None:
    found = followed(lambda step: 1.0 if step < 200 else 0.7, 0.02)
    assert found[190][0] == pytest.approx(1.0, rel=0.01)
    assert found[245][0] == pytest.approx(0.7, rel=0.09)
    assert found[-1][0] == pytest.approx(0.7, rel=0.03)


def test_one_step_that_is_an_outlier_changes_little() -> None:
    found = followed(lambda step: 1.6 if step == 300 else 1.0, 0.05)
    assert all(factor == pytest.approx(1.0, rel=0.03) for factor, _ in found[200:])


def test_a_drift_is_followed_and_its_lag_is_part_of_the_error() -> None:
    for index, (factor, evidence) in enumerate(followed(lambda step: 1.3 ** (step / 400), 0.02)):
        off = abs(math.log(factor / 1.3 ** (index / 400)))
        assert off < max(0.08, 2.0 * evidence.error_of(factor))


def test_the_same_reading_again_is_no_evidence() -> None:
    factor, evidence = first(1.2, 100.0)
    assert absorbed(factor, evidence, 1.4, 100.0, 60.0) == (factor, evidence)
    once, overlapping = absorbed(factor, evidence, 1.4, 112.0, 60.0)
    assert overlapping.readings == pytest.approx(1.1)
    assert once == pytest.approx(1.2 * (1.4 / 1.2) ** (0.1 / 1.1))


def test_what_is_known_from_before_keeps_its_error_and_is_soon_outweighed() -> None:
    evidence = assumed(0.8, 0.1, 0.0)
    assert evidence.error_of(0.8) == pytest.approx(0.1)
    factor, evidence = absorbed(0.8, evidence, 1.0, 600.0, 300.0)
    assert factor == pytest.approx(0.8 * (1.0 / 0.8) ** (1 / 1.25))


def test_siblings_that_differ_make_the_first_reading_less_certain() -> None:
    assert first(1.0, 0.0, noise=0.2)[1].standard_error == pytest.approx(0.2)
