from __future__ import annotations

import math

import pytest

from rljob_planner.roots import rising_root


@pytest.mark.parametrize(
    ("rising", "low", "high", "root"),
    [
        (lambda x: x - 3.0, 0.0, 10.0, 3.0),
        (lambda x: x**9 - 1.0, 0.0, 10.0, 1.0),
        (lambda x: math.atan(50.0 * (x - 7.0)), 0.0, 1000.0, 7.0),
        (lambda x: -math.exp(-x) + 1e-6, 0.0, 100.0, 6 * math.log(10)),
        (lambda x: -1.0 if x < 0.3 else 1.0, 0.0, 1.0, 0.3),
    ],
    ids=["line", "power", "step that is smooth", "flat", "jump"],
)
def test_roots_of_rising_functions(rising: object, low: float, high: float, root: float) -> None:
    calls = 0

    def counted(x: float) -> float:
        nonlocal calls
        calls += 1
        return float(rising(x))  # type: ignore[operator]

    assert rising_root(counted, low, high, 1e-9) == pytest.approx(root, rel=1e-6)
    assert calls <= 100


def test_without_a_root_the_nearer_end_is_taken() -> None:
    assert rising_root(lambda x: x + 1.0, 0.0, 5.0, 1e-6) == 0.0
    assert rising_root(lambda x: x - 9.0, 0.0, 5.0, 1e-6) == 5.0
