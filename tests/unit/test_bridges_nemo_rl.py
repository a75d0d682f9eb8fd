"""NeMo-RL's log, as its Logger gets it, in the operator's units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.recorded_logs import Heard, listening, played, recorded, stand_in

ASYNC = recorded("nemo-rl-async-002cdc27")["calls"]
CONTROLLER = recorded("nemo-rl-single-controller-00420a15")["calls"]


class Logger:
    """What NeMo-RL hands its numbers to."""

    def log_metrics(
        self,
        metrics: dict[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        """Nothing is kept."""


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> Logger:
    stand_in(monkeypatch, "nemo_rl.utils.logger", Logger=Logger)
    return Logger()


@pytest.fixture
def heard(logger: Logger) -> Iterator[Heard]:
    with listening("nemo-rl") as found:
        yield found


def test_three_steps_of_the_older_loop(heard: Heard, logger: Logger) -> None:
    played(logger.log_metrics, ASYNC)

    # Logged as step 3 once the weights of step 3 are out.
    assert heard.value("rljob_policy_version") == 3
    assert heard.value("rljob_sample_staleness_versions_sum") == pytest.approx(0.0 + 1.0 + 1.5)
    assert heard.value("rljob_sample_staleness_versions_count") == 3
    assert heard.value("rljob_queue_depth_groups") == 32
    assert heard.value("rljob_trainer_wait_seconds_total") == pytest.approx(0.4 + 6.0 + 9.5)
    phases = 6.0 + 0.5 + 0.8 + 0.2 + 0.1 + 0.4
    assert heard.value("rljob_train_step_seconds_sum") == pytest.approx(3 * (22.0 + phases))
    assert heard.value("rljob_weight_sync_seconds_sum") == pytest.approx(2.5 + 2.0 + 2.0)
    # 1024 samples over the duration of the step, times that duration.
    assert heard.value("rljob_trained_samples_total") == 3 * 1024
    assert heard.value("rljob_trained_tokens_total") == 1024 * (2000 + 2100 + 2200)
    assert heard.value("rljob_response_tokens_sum") == pytest.approx(1024 * (2000 + 2100 + 2200))
    assert heard.metrics == heard.bridge.framework.dialects[0].measured
    assert heard.value("rljob_bridge_known", bridge="nemo-rl", dialect="NeMo-RL async GRPO") == 1
    assert heard.value("rljob_bridge_known", bridge="nemo-rl", dialect="NeMo-RL single controller") is None


def test_the_single_controller(logger: Logger) -> None:
    with listening("nemo-rl", samples_per_prompt=16, prompts_per_step=64) as heard:
        played(logger.log_metrics, CONTROLLER)

        assert heard.value("rljob_policy_version") == 3
        assert heard.value("rljob_dropped_groups_total") == 0 + 3 + 1
        assert heard.value("rljob_trainer_wait_seconds_total") == pytest.approx(3 * 8.0)
        assert heard.value("rljob_inflight_samples") == 100 * 16
        assert heard.value("rljob_trained_samples_total") == 3 * 1024
        assert heard.value("rljob_trained_tokens_total") == 1024 * (2001 + 2002 + 2003)
        assert heard.metrics == heard.bridge.framework.dialects[1].measured
        assert heard.value("rljob_bridge_known", bridge="nemo-rl", dialect="NeMo-RL async GRPO") is None


def test_what_the_user_did_not_say_stays_unknown(heard: Heard, logger: Logger) -> None:
    played(logger.log_metrics, CONTROLLER)

    assert "rljob_inflight_samples" not in heard.metrics
    assert "rljob_trained_samples_total" not in heard.metrics
    assert "rljob_response_tokens" in heard.metrics


def test_a_monitor_with_a_clock_of_its_own_ends_no_step(heard: Heard, logger: Logger) -> None:
    """The GPU monitor logs between the calls of a step, under numbers that are none of steps."""
    monitor = next(call for call in ASYNC if call.get("step_metric"))
    for call in ASYNC:
        logger.log_metrics(**call)
        logger.log_metrics(**{**monitor, "step": 7_000_000})

    assert heard.value("rljob_policy_version") == 3
    assert heard.value("rljob_train_step_seconds_count") == 3
    assert heard.value("rljob_train_step_seconds_sum") == pytest.approx(3 * 30.0)


def test_the_synchronous_loop_is_reported_as_unknown(
    heard: Heard, logger: Logger, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(1, 6):
        logger.log_metrics({"generation": 20.0, "weird": 1.0}, step, prefix="timing/train")

    assert heard.metrics == frozenset()
    assert heard.value("rljob_bridge_known", bridge="nemo-rl", dialect="") == 0
    assert "timing/train/weird" in caplog.text
