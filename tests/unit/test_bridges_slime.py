"""slime's log, as its two processes hand it to ``log``, in the operator's units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_runtime.bridges import FRAMEWORKS, Bridge
from tests.unit.bridge_logs import Recording, listening, logging_to, play, recording, reported, stems, value

ROLLOUTS = recording("slime-rollouts-85f762da")
TRAINER = recording("slime-trainer-028e2909")

Log = Callable[..., object]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with logging_to(ROLLOUTS, tmp_path) as found:
        yield found


@pytest.fixture
def heard() -> Iterator[Bridge]:
    with listening("slime") as standing:
        yield standing
        assert value(standing, "rljob_bridge_errors_total", bridge="slime") == 0


def put(log: Log, metrics: dict[str, Any], **settings: object) -> None:
    """Log numbers of a rollout, with some of the arguments changed."""
    log(args=SimpleNamespace(**{**ROLLOUTS.calls[0]["args"], **settings}), metrics=metrics, step_key="rollout/step")


def mean_staleness(heard: Bridge) -> float:
    total = value(heard, "rljob_sample_staleness_versions_sum")
    count = value(heard, "rljob_sample_staleness_versions_count")
    assert total is not None
    assert count
    return total / count


@pytest.mark.parametrize("module", ["slime.observability.logging_utils", "slime.utils.logging_utils"])
@pytest.mark.parametrize("found", [ROLLOUTS, TRAINER], ids=lambda found: found.dialect)
def test_each_process_reports_what_it_knows(found: Recording, module: str, tmp_path: Path) -> None:
    there = Recording(**{**vars(found), "tracker": {**found.tracker, "module": module}})
    standing, seen = play(there, tmp_path)

    assert reported(standing.reporter) == pytest.approx(found.reported)
    assert len(seen) == len(found.calls)
    for dialect in FRAMEWORKS["slime"].dialects:
        theirs = dialect.name == found.dialect
        assert value(standing, "rljob_bridge_known", bridge="slime", dialect=dialect.name) == (1 if theirs else None)
        if theirs:
            assert stems(standing) == dialect.measured


@pytest.mark.parametrize(
    ("rollout", "mean"),
    [
        # Weights went out after rollout 3: rollout 4 was collected under the weights before that, while 3 was trained.
        (4, 4 * 0.5 + 4),
        (5, 4 * 0.5 + 1),
        (7, 4 * 0.5 + 3),
    ],
)
def test_a_version_of_several_rollouts_is_as_many_steps(heard: Bridge, log: Log, rollout: int, mean: float) -> None:
    put(log, {**ROLLOUTS.calls[2]["metrics"], "rollout/step": rollout}, update_weights_interval=4)

    assert mean_staleness(heard) == pytest.approx(mean)


def test_rollouts_that_are_numbered_by_optimizer_steps(heard: Bridge, log: Log) -> None:
    """``--wandb-always-use-train-step``: 256 samples in batches of 96 are floor(8/3 · R) steps before rollout R."""
    perf = next(call["metrics"] for call in TRAINER.calls if "perf/train_time" in call["metrics"])
    for rollout in range(9):
        step = rollout * 256 // 96
        put(log, {**perf, "rollout/step": step}, wandb_always_use_train_step=True, global_batch_size=96)
        assert value(heard, "rljob_policy_version") == rollout + 1


def test_older_versions_log_no_staleness_and_none_is_made_up(heard: Bridge, log: Log) -> None:
    for call in ROLLOUTS.calls:
        put(log, {key: number for key, number in call["metrics"].items() if "staleness" not in key})

    assert stems(heard) == set()
    assert value(heard, "rljob_bridge_known", bridge="slime", dialect="slime rollouts") == 1


def test_an_unknown_set_of_keys_is_reported(heard: Bridge, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    for step in range(5):
        put(log, {"perf/training_seconds": 9.0, "rollout/step": step})

    assert stems(heard) == set()
    assert value(heard, "rljob_bridge_known", bridge="slime", dialect="") == 0
    assert "perf/training_seconds" in caplog.text
