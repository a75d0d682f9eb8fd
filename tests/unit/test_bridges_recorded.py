"""Each framework's real keys, played back: what a bridge reports of them is what was worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rljob_runtime.bridges import FRAMEWORKS
from rljob_runtime.bridges.dialect import Dialect
from tests.unit.bridge_logs import DATA, NAMES, Recording, play, recording, reported, samples


def dialect_of(found: Recording) -> Dialect:
    (dialect,) = (d for d in FRAMEWORKS[found.framework].dialects if d.name == found.dialect)
    return dialect


@pytest.mark.parametrize("name", NAMES)
def test_what_was_logged_is_reported_in_the_units_of_the_job(name: str, tmp_path: Path) -> None:
    found = recording(name)
    standing, seen = play(found, tmp_path)
    assert reported(standing.reporter) == pytest.approx(found.reported)
    # The framework's own tracker got every call, as it was made.
    assert len(seen) == len(found.calls)
    assert samples(standing.reporter)["rljob_bridge_errors_total"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_table_reads_no_key_that_was_not_recorded(name: str) -> None:
    found = recording(name)
    assert dialect_of(found).reads - found.keys() <= NOT_IN_EVERY_ALGORITHM
    assert found.version == dialect_of(found).version


NOT_IN_EVERY_ALGORITHM = {
    "timing_s/ref",
    "timing_s/values",
    "timing_s/update_critic",
    "generate_kept/avg_num_tokens",
}
"""verl logs the first where there is a reference policy or a critic: verl/experimental/separation/ray_trainer.py:563, 571, 636; SkyRL
the last in steps that turn groups away: skyrl/train/fully_async_trainer.py:1072."""


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_of_a_table_is_in_its_recording(name: str) -> None:
    found = recording(name)
    stems = {key.removesuffix("_sum").removesuffix("_count") for key in found.reported}
    assert stems == dialect_of(found).measured


@pytest.mark.parametrize("name", NAMES)
def test_a_renamed_mark_is_an_unknown_framework_and_nothing_is_reported(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = recording(name)
    repeated = Recording(**{**vars(found), "calls": _four_times(found)})
    mark = dialect_of(found).marks[0]
    standing, seen = play(repeated, tmp_path, renamed={mark: mark + "_v2"})
    assert reported(standing.reporter) == {}
    assert len(seen) == len(repeated.calls)
    (said,) = (record.getMessage() for record in caplog.records if "of no version that it knows" in record.getMessage())
    assert mark in said
    assert samples(standing.reporter)["rljob_bridge_known"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_each_renamed_key_costs_the_metrics_that_need_it_and_is_named(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = recording(name)
    dialect = dialect_of(found)
    whole = Recording(**{**vars(found), "calls": _four_times(found)})
    for number, rule in enumerate(rule for rule in dialect.rules if rule.always):
        key = rule.needs[0]
        if key in dialect.marks or key == dialect.step_key:
            continue
        caplog.clear()
        standing, _ = play(whole, tmp_path / str(number), renamed={key: key + "_v2"})
        lost = {r.metric for r in dialect.rules if key in r.needs}
        kept = {r.metric for r in dialect.rules if key not in r.needs}
        shown = {name.removesuffix("_sum").removesuffix("_count") for name in reported(standing.reporter)}
        assert shown == kept - (lost - kept), key
        assert any(
            f"{key} never came" in record.getMessage() or f"{key}, " in record.getMessage() for record in caplog.records
        )


def _four_times(found: Recording) -> list[dict[str, object]]:
    """The calls with as many steps again behind them: enough for the bridge's patience to run out."""
    steps = [call["step"] for call in found.calls if call.get("step") is not None]
    span = max(steps) - min(steps) + 1
    calls: list[dict[str, object]] = []
    for round_ in range(4):
        for call in json.loads(json.dumps(found.calls)):
            if call.get("step") is not None:
                call["step"] += round_ * span
                for key in ("step", "training/global_step"):
                    if key in call["data"]:
                        call["data"][key] = call["step"]
            calls.append(call)
    return calls


def test_every_dialect_has_a_recording() -> None:
    recorded = {json.loads(path.read_text(encoding="utf-8"))["framework"] for path in DATA.glob("*.json")}
    assert recorded == set(FRAMEWORKS)
    ours = {dialect.name for name in ("prime-rl", "skyrl", "verl") for dialect in FRAMEWORKS[name].dialects}
    assert {recording(name).dialect for name in NAMES} == ours


@pytest.mark.parametrize("variable", ["RANK", "DP_RANK"])
def test_prime_rl_is_heard_on_the_first_rank_alone(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    found = recording("prime-rl-trainer-004274ec")
    monkeypatch.setenv(variable, "1")
    standing, seen = play(found, tmp_path / "second")
    assert reported(standing.reporter) == {}
    assert len(seen) == len(found.calls)
    monkeypatch.setenv(variable, "0")
    standing, _ = play(found, tmp_path / "first")
    assert reported(standing.reporter) == pytest.approx(found.reported)


def test_skyrl_trains_on_the_groups_that_it_keeps(tmp_path: Path) -> None:
    found = recording("skyrl-fully-async-0.4.0")
    turned_away = json.loads(json.dumps(found.calls))
    steps = 0
    for call in turned_away:
        if "generate/avg_num_tokens" in call["data"]:
            call["data"]["generate_kept/avg_num_tokens"] = 7.0
            steps += call["data"]["generate/batch_num_seq"]
    standing, _ = play(Recording(**{**vars(found), "calls": turned_away}), tmp_path)
    shown = samples(standing.reporter)
    assert shown["rljob_trained_samples_total"] == steps
    assert shown["rljob_trained_tokens_total"] == 7 * steps
    assert shown["rljob_response_tokens_sum"] == 7 * steps
