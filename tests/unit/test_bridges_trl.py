"""TRL's log, as its callbacks get it, in the operator's units."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.recorded_logs import Heard, listening, recorded, stand_in

RUN = recorded("trl-1.16.0")
LOGS = [call["logs"] for call in RUN["calls"]]


class CallbackHandler:
    """Where transformers hands a log to its callbacks."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []

    def on_log(self, args: object, state: object, control: object, logs: dict[str, float]) -> object:
        self.logged.append(logs)
        return control


class Trainer:
    """The part of a transformers Trainer that logs."""

    def __init__(self, before: int = 0, **settings: object) -> None:
        self.args = SimpleNamespace(**{**RUN["args"], **settings})
        history = [{"perf/fwd_bwd_s": 1.0, "step": before}] if before else []
        self.state = SimpleNamespace(global_step=before, is_world_process_zero=True, log_history=history)
        self.handler = CallbackHandler()

    def log(self, logs: dict[str, Any], step: int) -> None:
        """As Trainer.log does: into the history first, then to the callbacks."""
        self.state.global_step = step
        self.state.log_history.append({**logs, "step": step})
        self.handler.on_log(self.args, self.state, None, dict(logs))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    monkeypatch.setattr(CallbackHandler, "on_log", CallbackHandler.on_log)
    stand_in(monkeypatch, "transformers.trainer_callback", CallbackHandler=CallbackHandler)
    with listening("trl") as found:
        yield found


def logs(step: int, **changed: float) -> dict[str, float]:
    """The log of a recorded step, with some values changed; a slash in a key is written as two underscores."""
    return {**LOGS[step], **{key.replace("__", "/", 1): value for key, value in changed.items()}}


def mean_staleness(heard: Heard) -> float:
    total, count = (heard.value(f"rljob_sample_staleness_versions_{part}") for part in ("sum", "count"))
    assert total is not None
    assert count
    return total / count


def test_a_recorded_run_says_what_was_true_of_it(heard: Heard) -> None:
    trainer = Trainer(before=RUN["logged_before"])
    for call in RUN["calls"]:
        trainer.log(call["logs"], call["step"])

    assert heard.value("rljob_policy_version") == 30
    # Known from the order of the queue; TRL logs 1.5, since half of a step's samples are looked at a step early.
    assert LOGS[2]["sample/staleness_mean"] == 1.5
    assert mean_staleness(heard) == pytest.approx(2.0)
    assert heard.value("rljob_sample_staleness_max_versions") == 2
    assert heard.value("rljob_trained_samples_total") == 3 * 8
    assert heard.value("rljob_trained_tokens_total") == 82 + 89 + 111
    assert heard.value("rljob_response_tokens_sum") == pytest.approx(82 + 89 + 111)
    assert heard.value("rljob_response_tokens_count") == 24
    waited = sum(log["perf/rollout_wait_s"] for log in LOGS[:3])
    assert heard.value("rljob_trainer_wait_seconds_total") == pytest.approx(waited)
    computed = sum(log["perf/fwd_bwd_s"] + log["perf/optimizer_s"] for log in LOGS[:3])
    assert heard.value("rljob_train_step_seconds_sum") == pytest.approx(computed)
    assert heard.value("rljob_train_step_seconds_count") == 3
    assert heard.value("rljob_weight_sync_seconds_count") == 3
    assert heard.value("rljob_queue_depth_groups") == pytest.approx(5.5 / 4)
    assert heard.value("rljob_inflight_samples") == 12
    assert heard.value("rljob_bridge_known", bridge="trl", dialect="TRL AsyncGRPO") == 1
    assert trainer.handler.logged == [{**log} for log in LOGS], "what TRL logs is what it logs without the bridge"


def test_every_metric_of_the_dialect_is_fed_and_no_other(heard: Heard) -> None:
    trainer = Trainer()
    trainer.log(logs(0, sample__dropped_stale_total=4.0), 1)

    assert heard.metrics == heard.bridge.framework.dialects[0].measured


def test_what_is_logged_of_several_steps_counts_for_all_of_them(heard: Heard) -> None:
    trainer = Trainer(before=4, logging_steps=2)
    trainer.log(logs(0, perf__rollout_wait_s=3.0), 6)
    trainer.log(logs(1, perf__rollout_wait_s=5.0), 8)

    assert heard.value("rljob_policy_version") == 8
    assert heard.value("rljob_trainer_wait_seconds_total") == pytest.approx(2 * 3.0 + 2 * 5.0)
    assert heard.value("rljob_trained_samples_total") == 4 * 8
    assert heard.value("rljob_trained_tokens_total") == 2 * 82 + 2 * 89


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
    heard: Heard, sync_steps: int, step: int, micro_batches: int, mean: float, largest: float
) -> None:
    trainer = Trainer(before=step - 1, weight_sync_steps=sync_steps, gradient_accumulation_steps=micro_batches)
    trainer.log(logs(0, sample__staleness_mean=1.5, sample__staleness_max=2.0), step)

    assert mean_staleness(heard) == pytest.approx(mean)
    assert heard.value("rljob_sample_staleness_max_versions") == largest


def test_rows_that_a_conversation_became_are_one_sample(heard: Heard) -> None:
    trainer = Trainer()
    trainer.log(logs(0, rollout__samples_per_rollout=2.0, sample__dropped_stale_total=16.0), 1)

    assert heard.value("rljob_trained_samples_total") == 4
    assert heard.value("rljob_response_tokens_sum") == 82
    assert heard.value("rljob_queue_depth_groups") == pytest.approx(5.5 / 4 / 2)
    assert heard.value("rljob_dropped_groups_total") == 2


def test_other_ranks_say_nothing(heard: Heard) -> None:
    trainer = Trainer()
    trainer.state.is_world_process_zero = False
    trainer.log(logs(0), 1)

    assert heard.metrics == frozenset()


def test_another_trainer_of_trl_is_reported_as_unknown(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer()
    for step in range(1, 6):
        trainer.log({"loss": 0.1, "reward": 0.5, "clip_ratio/low_mean": 0.0}, step)

    assert heard.metrics == frozenset()
    assert heard.value("rljob_bridge_known", bridge="trl", dialect="") == 0
    assert "clip_ratio/low_mean" in caplog.text, "what came"
    assert "sample/staleness_mean" in caplog.text, "what was looked for"
