"""People ask for moves all the time, at an operator that is killed all the time: each request is answered once, and carried out once."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from dev.bench.histories import history
from dev.bench.histories.history import Step, run
from dev.bench.histories.shape import Shape
from dev.bench.histories.world import World

ACTS = (
    "by_hand",
    "by_hand",
    "by_hand",
    "kill",
    "lag",
    "storm",
    "fair",
    "suspend",
    "budget",
    "delete_pod",
    "mode",
    "wait",
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("rljob_operator")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def steps(seed: int) -> tuple[Step, ...]:
    rng = random.Random(f"by hand {seed}")
    return tuple(
        Step(
            rng.choice((0.0, 0.2, 5.0, 25.0)), rng.choice(ACTS), rng.randrange(1000) / 1000, rng.randrange(1000) / 1000
        )
        for _ in range(14)
    )


def test_each_request_is_answered_once_and_carried_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: Counter[str] = Counter()
    end = World.end

    def counted(world: World) -> None:
        outcomes.update(world.people.answers.values())
        end(world)

    monkeypatch.setattr(history.World, "end", counted)
    wrong = {}
    for seed in range(25):
        verdict = run(Shape.drawn(seed), steps(seed))
        if verdict.kind is not None:
            wrong[seed] = verdict.violations or verdict.unrest
    assert not wrong
    # Otherwise nothing was tried.
    assert min(outcomes[each] for each in ("Done", "Refused", "RolledBack")) > 0
    assert outcomes["Accepted"] == 0


def test_an_operator_that_forgets_requests_is_caught() -> None:
    kinds = {run(Shape.drawn(seed), steps(seed), "request-forgotten").kind for seed in range(6)}
    assert kinds & {"repeated", "answered"}
