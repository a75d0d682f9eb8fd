"""What is asked of a job's metrics: over which window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_operator.config import Config
from rljob_operator.edges import Edges, Question
from rljob_operator.observing import LONGEST_WINDOW_S, Observer
from rljob_operator.readings import Reading, Telemetry
from tests.operator.situations import NOW_S
from tests.operator.test_learning import a_pass

LEAST_S = 600.0


async def windows(steps: list[int | None], *, since_s: float = 1e6) -> list[float]:
    """The windows that are asked for, look after look, of a job whose answers hold so many steps."""
    asked: list[float] = []

    async def observe(url: str, question: Question) -> Telemetry:
        asked.append(question.window_s)
        seen = steps[len(asked) - 1]
        found = Telemetry(question.now_s, min(question.window_s, since_s), since_s)
        return found if seen is None else replace(found, steps_in_window=Reading.of(seen))

    config = Config(prometheus_url="http://prometheus:9090", metrics_window_s=LEAST_S)
    observer = Observer(Edges(observe), config)
    for _ in steps:
        assert await observer.look(a_pass(), 0.0, since_s=NOW_S - since_s)
    return asked


async def test_a_window_without_two_steps_is_doubled_until_it_holds_them() -> None:
    # Steps of half an hour, planned as some seconds.
    assert await windows([0, 0, 1, 2, 5]) == [600.0, 1200.0, 2400.0, 4800.0, 600.0]


async def test_a_trainer_that_stops_after_some_steps_is_not_looked_for_in_the_past() -> None:
    assert await windows([5, 0, 0, 1]) == [600.0, 600.0, 600.0, 600.0]


async def test_no_window_is_longer_than_a_question_may_be() -> None:
    assert max(await windows([0] * 10)) == LONGEST_WINDOW_S


async def test_a_window_grows_no_faster_than_the_layout_gets_old() -> None:
    assert await windows([0] * 3, since_s=100.0) == [600.0, 600.0, 600.0]


@pytest.mark.parametrize("steps", [None, 2, 40])
async def test_what_holds_steps_or_is_unknown_keeps_its_window(steps: int | None) -> None:
    assert await windows([steps, steps]) == [600.0, 600.0]
