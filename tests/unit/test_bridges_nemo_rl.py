"""NeMo-RL's log, as its Logger gets it, in the operator's units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rljob_runtime.bridges import FRAMEWORKS, Bridge
from tests.unit.bridge_logs import Recording, listening, logging_to, play, recording, reported, stems, value

ASYNC = recording("nemo-rl-async-002cdc27")
CONTROLLER = recording("nemo-rl-single-controller-00420a15")

Log = Callable[..., object]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with logging_to(ASYNC, tmp_path) as log_metrics:
        yield log_metrics


@pytest.fixture
def heard() -> Iterator[Bridge]:
    with listening("nemo-rl") as standing:
        yield standing
        assert value(standing, "rljob_bridge_errors_total", bridge="nemo-rl") == 0


@pytest.mark.parametrize("found", [ASYNC, CONTROLLER], ids=lambda found: found.dialect)
def test_what_was_logged_is_reported_in_the_units_of_the_job(found: Recording, tmp_path: Path) -> None:
    standing, seen = play(found, tmp_path)

    assert reported(standing.reporter) == pytest.approx(found.reported)
    assert len(seen) == len(found.calls)
    for dialect in FRAMEWORKS["nemo-rl"].dialects:
        theirs = dialect.name == found.dialect
        assert value(standing, "rljob_bridge_known", bridge="nemo-rl", dialect=dialect.name) == (1 if theirs else None)
        if theirs:
            assert stems(standing) == dialect.measured


def test_what_the_user_did_not_say_stays_unknown(heard: Bridge, log: Log) -> None:
    for call in CONTROLLER.calls:
        log(**call)

    assert "rljob_inflight_samples" not in stems(heard)
    assert "rljob_trained_samples_total" not in stems(heard)
    assert "rljob_response_tokens" in stems(heard)


def test_a_monitor_with_a_clock_of_its_own_ends_no_step(heard: Bridge, log: Log) -> None:
    """The GPU monitor logs between the calls of a step, under numbers that are none of steps."""
    monitor = next(call for call in ASYNC.calls if call.get("step_metric"))
    for call in ASYNC.calls:
        log(**call)
        log(**{**monitor, "step": 7_000_000})

    assert value(heard, "rljob_policy_version") == 3
    assert value(heard, "rljob_train_step_seconds_count") == 3
    assert value(heard, "rljob_train_step_seconds_sum") == pytest.approx(3 * 30.0)


def test_the_synchronous_loop_is_reported_as_unknown(heard: Bridge, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    for step in range(1, 6):
        log(metrics={"generation": 20.0, "weird": 1.0}, step=step, prefix="timing/train")

    assert stems(heard) == set()
    assert value(heard, "rljob_bridge_known", bridge="nemo-rl", dialect="") == 0
    assert "timing/train/weird" in caplog.text
