"""AReaL's log, as its StatsLogger gets it, in the operator's units."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rljob_runtime.bridges import FRAMEWORKS, Bridge
from tests.unit.bridge_logs import listening, logging_to, play, recording, reported, stems, value

RUN = recording("areal-1.0.4")
VERSIONS = "ppo_actor/update/version_stats/sample_staleness_theta"

Commit = Callable[..., object]


@pytest.fixture
def commit(tmp_path: Path) -> Iterator[Commit]:
    with logging_to(RUN, tmp_path) as log:
        yield log


@pytest.fixture
def heard() -> Iterator[Bridge]:
    with listening("areal") as standing:
        yield standing
        assert value(standing, "rljob_bridge_errors_total", bridge="areal") == 0


def test_what_was_logged_is_reported_in_the_units_of_the_job(tmp_path: Path) -> None:
    standing, seen = play(RUN, tmp_path)

    assert reported(standing.reporter) == pytest.approx(RUN.reported)
    (dialect,) = FRAMEWORKS["areal"].dialects
    assert stems(standing) == dialect.measured
    assert len(seen) == len(RUN.calls)


def test_a_largest_staleness_that_was_averaged_is_not_the_largest(heard: Bridge, commit: Commit) -> None:
    for call in RUN.calls[:2]:
        commit(**call)
    assert value(heard, "rljob_sample_staleness_max_versions") == 2

    # Averaged over the four micro-batches of the third step: one of them may have held a sample of any age.
    assert RUN.calls[2]["data"][f"{VERSIONS}_max__count"] == 4
    commit(**RUN.calls[2])
    assert value(heard, "rljob_sample_staleness_max_versions") == 2

    # Versions that keep the largest log no count with it.
    newer = {key: value for key, value in RUN.calls[2]["data"].items() if not key.endswith("__count")}
    commit(epoch=0, step=3, global_step=3, data={**newer, f"{VERSIONS}_max": 5.0})
    assert value(heard, "rljob_sample_staleness_max_versions") == 5


def test_a_step_that_trained_on_nothing_counts_nothing(heard: Bridge, commit: Commit) -> None:
    nothing = {"ppo_actor/n_seqs": 0.0, "ppo_actor/n_valid_tokens": 0.0}
    commit(**{**RUN.calls[0], "data": {**RUN.calls[0]["data"], **nothing}})

    assert value(heard, "rljob_policy_version") == 1
    assert value(heard, "rljob_trained_samples_total") == 0
    assert value(heard, "rljob_response_tokens_count") is None


@pytest.mark.parametrize(("initialized", "rank", "speaks"), [(False, 0, True), (True, 0, True), (True, 3, False)])
def test_one_rank_speaks(
    monkeypatch: pytest.MonkeyPatch, heard: Bridge, commit: Commit, initialized: bool, rank: int, speaks: bool
) -> None:
    distributed = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: initialized, get_rank=lambda: rank)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    commit(**RUN.calls[0])

    assert bool(stems(heard)) is speaks


def test_a_list_of_mini_batches_as_older_versions_log_it_is_reported_as_unknown(
    heard: Bridge, commit: Commit, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(5):
        commit(epoch=0, step=step, global_step=step, data=[{"grpo_actor/n_seqs": 64.0}, {"grpo_actor/n_seqs": 64.0}])

    assert stems(heard) == set()
    assert value(heard, "rljob_bridge_known", bridge="areal", dialect="") == 0
    assert "grpo_actor/n_seqs" in caplog.text
