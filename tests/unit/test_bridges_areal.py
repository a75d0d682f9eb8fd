"""AReaL's log, as its StatsLogger gets it, in the operator's units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.recorded_logs import Heard, listening, played, recorded, stand_in

CALLS = recorded("areal-1.0.4")["calls"]
VERSIONS = "ppo_actor/update/version_stats/sample_staleness_theta"


class StatsLogger:
    """Where AReaL's trainer commits a step."""

    def commit(self, epoch: int, step: int, global_step: int, data: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Nothing is kept."""


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    stand_in(monkeypatch, "areal.utils.stats_logger", StatsLogger=StatsLogger)
    with listening("areal") as found:
        yield found


def test_three_steps(heard: Heard) -> None:
    played(StatsLogger().commit, CALLS)

    # Step 2, the third, publishes version 3.
    assert heard.value("rljob_policy_version") == 3
    assert heard.value("rljob_trained_samples_total") == 1024 + 1024 + 1020
    assert heard.value("rljob_trained_tokens_total") == 819_200 + 921_600 + 918_000
    assert heard.value("rljob_response_tokens_count") == 3068
    assert heard.value("rljob_response_tokens_sum") == 2_658_800
    assert heard.value("rljob_trainer_wait_seconds_total") == pytest.approx(3 * 12.5)
    assert heard.value("rljob_train_step_seconds_sum") == pytest.approx(3 * (20.0 + 3.0 + 2.0 + 0.5))
    assert heard.value("rljob_weight_sync_seconds_sum") == pytest.approx(3 * 1.5)
    assert heard.value("rljob_sample_staleness_versions_sum") == pytest.approx(0.0 + 1.25 + 1.5)
    assert heard.value("rljob_sample_staleness_versions_count") == 3
    assert heard.metrics == heard.bridge.framework.dialects[0].measured


def test_a_largest_staleness_that_was_averaged_is_not_the_largest(heard: Heard) -> None:
    log = StatsLogger().commit
    played(log, CALLS[:2])
    assert heard.value("rljob_sample_staleness_max_versions") == 2

    # Averaged over the four micro-batches of the third step: one of them may have held a sample of any age.
    assert CALLS[2]["data"][f"{VERSIONS}_max__count"] == 4
    played(log, CALLS[2:])
    assert heard.value("rljob_sample_staleness_max_versions") == 2

    # Versions that keep the largest log no count with it.
    newer = {key: value for key, value in CALLS[2]["data"].items() if not key.endswith("__count")}
    log(0, 3, 3, {**newer, f"{VERSIONS}_max": 5.0})
    assert heard.value("rljob_sample_staleness_max_versions") == 5


def test_a_step_that_trained_on_nothing_counts_nothing(heard: Heard) -> None:
    StatsLogger().commit(0, 0, 0, {**CALLS[0]["data"], "ppo_actor/n_seqs": 0.0, "ppo_actor/n_valid_tokens": 0.0})

    assert heard.value("rljob_policy_version") == 1
    assert heard.value("rljob_trained_samples_total") == 0
    assert heard.value("rljob_response_tokens_count") is None


@pytest.mark.parametrize(("initialized", "rank", "speaks"), [(False, 0, True), (True, 0, True), (True, 3, False)])
def test_one_rank_speaks(
    monkeypatch: pytest.MonkeyPatch, heard: Heard, initialized: bool, rank: int, speaks: bool
) -> None:
    stand_in(
        monkeypatch,
        "torch.distributed",
        is_available=lambda: True,
        is_initialized=lambda: initialized,
        get_rank=lambda: rank,
    )
    played(StatsLogger().commit, CALLS[:1])

    assert bool(heard.metrics) is speaks


def test_a_list_of_mini_batches_as_older_versions_log_it_is_reported_as_unknown(
    heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(5):
        StatsLogger().commit(0, step, step, [{"grpo_actor/n_seqs": 64.0}, {"grpo_actor/n_seqs": 64.0}])

    assert heard.metrics == frozenset()
    assert heard.value("rljob_bridge_known", bridge="areal", dialect="") == 0
    assert "grpo_actor/n_seqs" in caplog.text
