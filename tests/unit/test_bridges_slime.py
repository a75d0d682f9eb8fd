"""slime's log, as its two processes hand it to ``log``, in the operator's units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.recorded_logs import Heard, listening, recorded, stand_in

RUN = recorded("slime-85f762da")


def log(args: object, metrics: dict[str, Any], step_key: str) -> None:
    """What slime logs through; nothing is kept."""


@pytest.fixture(params=["slime.observability.logging_utils", "slime.utils.logging_utils"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return stand_in(monkeypatch, request.param, log=log)


@pytest.fixture
def heard(module: ModuleType) -> Iterator[Heard]:
    with listening("slime") as found:
        yield found


def play(module: ModuleType, calls: list[dict[str, Any]], **settings: object) -> None:
    to: Callable[..., None] = module.log
    for call in calls:
        to(SimpleNamespace(**{**RUN["args"], **settings}), **call)


def mean_staleness(heard: Heard) -> float:
    total = heard.value("rljob_sample_staleness_versions_sum")
    count = heard.value("rljob_sample_staleness_versions_count")
    assert total is not None
    assert count
    return total / count


def test_the_process_that_manages_rollouts_knows_staleness(heard: Heard, module: ModuleType) -> None:
    play(module, RUN["rollouts"])

    # Rollouts 1 and 2 are trained a version later than they were collected; nothing was trained before rollout 0.
    assert mean_staleness(heard) == pytest.approx((0.0 + (0.25 + 1) + (0.5 + 1)) / 3)
    assert heard.value("rljob_sample_staleness_max_versions") == 2 + 1
    assert heard.metrics == heard.bridge.framework.dialects[0].measured
    assert heard.value("rljob_bridge_known", bridge="slime", dialect="slime trainer") is None


@pytest.mark.parametrize(
    ("rollout", "mean"),
    [
        # Weights went out after rollout 3: rollout 4 was collected under the weights before that, while 3 was trained.
        (4, 4 * 0.5 + 4),
        (5, 4 * 0.5 + 1),
        (7, 4 * 0.5 + 3),
    ],
)
def test_a_version_of_several_rollouts_is_as_many_steps(
    heard: Heard, module: ModuleType, rollout: int, mean: float
) -> None:
    metrics = {**RUN["rollouts"][2]["metrics"], "rollout/step": rollout}
    play(module, [{"metrics": metrics, "step_key": "rollout/step"}], update_weights_interval=4)

    assert mean_staleness(heard) == pytest.approx(mean)


def test_the_process_that_trains_knows_the_rest(heard: Heard, module: ModuleType) -> None:
    play(module, RUN["trainer"])

    assert heard.value("rljob_policy_version") == 3
    # What lies between two trainings, less the weight update and, once, the checkpoint.
    assert heard.value("rljob_trainer_wait_seconds_total") == pytest.approx(7.0 + 4.5 + 4.5)
    assert heard.value("rljob_train_step_seconds_sum") == pytest.approx(24.0 + 26.0 + 27.0)
    assert heard.value("rljob_weight_sync_seconds_sum") == pytest.approx(2.0 + 1.5 + 1.5)
    assert heard.value("rljob_trained_samples_total") == 3 * 256
    assert heard.value("rljob_trained_tokens_total") == 256 * (1000 + 1100 + 1200)
    assert heard.metrics == heard.bridge.framework.dialects[1].measured
    assert heard.value("rljob_bridge_known", bridge="slime", dialect="slime rollouts") is None


def test_rollouts_that_are_numbered_by_optimizer_steps(heard: Heard, module: ModuleType) -> None:
    """``--wandb-always-use-train-step``: 256 samples in batches of 96 are floor(8/3 · R) steps before rollout R."""
    perf = next(call["metrics"] for call in RUN["trainer"] if "perf/train_time" in call["metrics"])
    for rollout in range(9):
        step = rollout * 256 // 96
        call = {"metrics": {**perf, "rollout/step": step}, "step_key": "rollout/step"}
        play(module, [call], wandb_always_use_train_step=True, global_batch_size=96)
        assert heard.value("rljob_policy_version") == rollout + 1


def test_older_versions_log_no_staleness_and_none_is_made_up(heard: Heard, module: ModuleType) -> None:
    for call in RUN["rollouts"]:
        metrics = {key: value for key, value in call["metrics"].items() if "staleness" not in key}
        play(module, [{**call, "metrics": metrics}])

    assert heard.metrics == frozenset()
    assert heard.value("rljob_bridge_known", bridge="slime", dialect="slime rollouts") == 1


def test_an_unknown_set_of_keys_is_reported(heard: Heard, module: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    for step in range(5):
        play(module, [{"metrics": {"perf/training_seconds": 9.0, "rollout/step": step}, "step_key": "rollout/step"}])

    assert heard.metrics == frozenset()
    assert heard.value("rljob_bridge_known", bridge="slime", dialect="") == 0
    assert "perf/training_seconds" in caplog.text
