"""TRL's log, as its callbacks get it, in the operator's units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_runtime.bridges import FRAMEWORKS, Bridge
from tests.unit.bridge_logs import listening, logging_to, play, recording, reported, stems, value

RUN = recording("trl-1.16.0")
LOGS = [call["logs"] for call in RUN.calls]


class Trainer:
    """The part of a transformers Trainer that logs."""

    def __init__(self, log: Callable[..., object], before: int = 0, **settings: object) -> None:
        self.args = SimpleNamespace(**{**RUN.calls[0]["args"], **settings})
        history = [{"perf/fwd_bwd_s": 1.0, "step": before}] if before else []
        self.state = SimpleNamespace(global_step=before, is_world_process_zero=True, log_history=history)
        self._on_log = log

    def log(self, logs: dict[str, Any], step: int) -> None:
        """As Trainer.log does: into the history first, then to the callbacks."""
        self.state.global_step = step
        self.state.log_history.append({**logs, "step": step})
        self._on_log(args=self.args, state=self.state, control=None, logs=logs)


@pytest.fixture
def on_log(tmp_path: Path) -> Iterator[Callable[..., object]]:
    with logging_to(RUN, tmp_path) as log:
        yield log


@pytest.fixture
def heard() -> Iterator[Bridge]:
    with listening("trl") as standing:
        yield standing
        assert value(standing, "rljob_bridge_errors_total", bridge="trl") == 0


def logs(step: int, **changed: float) -> dict[str, float]:
    """The log of a recorded step, with some values changed; a slash in a key is written as two underscores."""
    return {**LOGS[step], **{key.replace("__", "/", 1): value for key, value in changed.items()}}


def mean_staleness(heard: Bridge) -> float:
    total = value(heard, "rljob_sample_staleness_versions_sum")
    count = value(heard, "rljob_sample_staleness_versions_count")
    assert total is not None
    assert count
    return total / count


def test_a_run_of_the_real_trainer_says_what_was_true_of_it(tmp_path: Path) -> None:
    standing, seen = play(RUN, tmp_path)

    assert reported(standing.reporter) == pytest.approx(RUN.reported)
    # Known from the order of the queue; TRL logs 1.5, since half of a step's samples are looked at a step early.
    assert LOGS[2]["sample/staleness_mean"] == 1.5
    assert mean_staleness(standing) == pytest.approx(2.0)
    assert [call["logs"] for call in seen] == LOGS, "what TRL logs is what it logs without the bridge"


def test_every_metric_of_the_dialect_is_fed_and_no_other(heard: Bridge, on_log: Callable[..., object]) -> None:
    Trainer(on_log).log(logs(0, sample__dropped_stale_total=4.0), 1)

    (dialect,) = FRAMEWORKS["trl"].dialects
    assert stems(heard) == dialect.measured


def test_what_is_logged_of_several_steps_counts_for_all_of_them(heard: Bridge, on_log: Callable[..., object]) -> None:
    trainer = Trainer(on_log, before=4, logging_steps=2)
    trainer.log(logs(0, perf__rollout_wait_s=3.0), 6)
    trainer.log(logs(1, perf__rollout_wait_s=5.0), 8)

    assert value(heard, "rljob_policy_version") == 8
    assert value(heard, "rljob_trainer_wait_seconds_total") == pytest.approx(2 * 3.0 + 2 * 5.0)
    assert value(heard, "rljob_trained_samples_total") == 4 * 8
    assert value(heard, "rljob_trained_tokens_total") == 2 * 82 + 2 * 89


@pytest.mark.parametrize(
    ("sync_steps", "step", "micro_batches", "mean", "largest"),
    [
        # Weights just went out: one update behind is three steps behind.
        (3, 4, 4, 3 * 1.5 + 0 + 1 / 4, 3 * 2),
        # Two steps after the update the trainer is two steps further.
        (3, 6, 4, 3 * 1.5 + 2 + 1 / 4, 3 * 2 + 2),
        # A step that is one micro-batch was looked at a step early as a whole.
        (1, 5, 1, 1.5 + 1, 2 + 1),
    ],
)
def test_weight_updates_turn_into_steps(
    heard: Bridge,
    on_log: Callable[..., object],
    sync_steps: int,
    step: int,
    micro_batches: int,
    mean: float,
    largest: float,
) -> None:
    trainer = Trainer(on_log, before=step - 1, weight_sync_steps=sync_steps, gradient_accumulation_steps=micro_batches)
    trainer.log(logs(0, sample__staleness_mean=1.5, sample__staleness_max=2.0), step)

    assert mean_staleness(heard) == pytest.approx(mean)
    assert value(heard, "rljob_sample_staleness_max_versions") == largest


def test_rows_that_a_conversation_became_are_one_sample(heard: Bridge, on_log: Callable[..., object]) -> None:
    trainer = Trainer(on_log)
    trainer.log(logs(0, rollout__samples_per_rollout=2.0, sample__dropped_stale_total=16.0), 1)

    assert value(heard, "rljob_trained_samples_total") == 4
    assert value(heard, "rljob_response_tokens_sum") == 82
    assert value(heard, "rljob_queue_depth_groups") == pytest.approx(5.5 / 4 / 2)
    assert value(heard, "rljob_dropped_groups_total") == 2


def test_other_ranks_say_nothing(heard: Bridge, on_log: Callable[..., object]) -> None:
    trainer = Trainer(on_log)
    trainer.state.is_world_process_zero = False
    trainer.log(logs(0), 1)

    assert stems(heard) == set()


def test_another_trainer_of_trl_is_reported_as_unknown(
    heard: Bridge, on_log: Callable[..., object], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(on_log)
    for step in range(1, 6):
        trainer.log({"loss": 0.1, "reward": 0.5, "clip_ratio/low_mean": 0.0}, step)

    assert stems(heard) == set()
    assert value(heard, "rljob_bridge_known", bridge="trl", dialect="") == 0
    assert "clip_ratio/low_mean" in caplog.text, "what came"
    assert "args." not in caplog.text.partition("Logged were")[2], "what did not come by the log"
    assert "sample/staleness_mean" in caplog.text, "what was looked for"
