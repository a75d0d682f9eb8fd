"""Predictions of rows that are made up from a known truth, and what they may depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rljob_planner.validation.bottleneck import bottleneck_rows
from rljob_planner.validation.cases import Case, Document, Lengths, StalenessRule
from rljob_planner.validation.family import drift
from rljob_planner.validation.fit import Unknown, fitted
from rljob_planner.validation.physics import Factors, law_of, law_with_median, parts_of
from rljob_planner.validation.rows import ABSOLUTE, MATCHED, Row
from rljob_planner.validation.setting import setting_of
from rljob_planner.validation.side import ROLLOUT, TRAIN, measured_side, side_of
from rljob_planner.validation.step_time import step_time_rows
from rljob_planner.validation.validate import validate


def case(name: str, rollout: int, train: int, **changes: object) -> Case:
    fields: dict[str, object] = {
        "model": "Qwen3-8B",
        "gpu": "H100",
        "n_gpus": rollout + train,
        "rollout_gpus": rollout,
        "train_gpus": train,
        "placement": "disaggregated",
        "prompts_per_step": 64,
        "group_size": 8,
        "samples_per_step": 512,
        "lengths": Lengths(mean_response=1500.0, max_response=8192),
        "staleness": StalenessRule(knob="max_trajectory_age_steps", value=4.0),
    }
    return Case(id=name, kind="step_time", family="made-up", **{**fields, **changes})  # type: ignore[arg-type]


SYNC = {"placement": "colocated", "staleness": StalenessRule(knob="sync", value=0.0)}


def measured(cases: Sequence[Case], truth: Factors, mean: float | None = None, parts: bool = True) -> list[Case]:
    """The cases with what a run with these speeds would have shown."""
    found = []
    for c in cases:
        setting = setting_of(c)
        law = law_of(mean if mean is not None else float(c.lengths.mean_response or 0), setting.cap_tokens)
        p = parts_of(setting, law, truth)
        said = {"step_time_s": p.period_s}
        if parts:
            said |= {"update_actor_s": p.update_s, "old_log_prob_s": p.forwards_s}
            said |= {"gen_s": p.sampling_s} if setting.mode == "sync" else {"train_wait_s": p.wait_s}
        found.append(replace(c, measured=said))
    return found


CASES = (
    case("a-8-8", 8, 8),
    case("b-16-8", 16, 8),
    case("c-8-16", 8, 16),
    case("d-sync", 16, 16, **SYNC, n_gpus=16),
    case("e-24-8", 24, 8),
)


@pytest.mark.parametrize("truth", [Factors(0.6, 1.3), Factors(0.8, 1.0), Factors(0.35, 2.0)])
def test_rows_made_from_known_speeds_are_predicted(truth: Factors) -> None:
    for row in step_time_rows(measured(CASES, truth), lambda _: None):
        assert row.calibrated_error is not None
        assert row.calibrated_error < 0.12, row


def test_a_side_that_no_row_shows_stays_near_what_is_usual() -> None:
    """Where the trainer holds every asynchronous run up, their samplers may be any fast; the trainer's speed is found all the same."""
    rows = step_time_rows(measured(CASES, Factors(1.1, 0.5), parts=False), lambda _: None)
    for row in rows:
        if row.id != "d-sync":
            assert row.calibrated_error is not None
            assert row.calibrated_error < 0.1, row


def test_lengths_that_no_row_states_are_found_from_the_others() -> None:
    unknown = [replace(c, lengths=Lengths(max_response=8192)) for c in CASES]
    for row in step_time_rows(measured(unknown, Factors(0.6, 1.3), mean=900.0), lambda _: None):
        assert row.predicted is not None
        assert row.calibrated_error is not None
        assert row.calibrated_error < 0.25, row


@pytest.mark.parametrize("index", range(len(CASES)))
def test_a_row_is_predicted_without_its_own_measurements(index: int) -> None:
    rows = measured(CASES, Factors(0.6, 1.3))
    before = step_time_rows(rows, lambda _: None)
    wrong = {k: 17.0 * float(v) for k, v in rows[index].measured.items()}
    rows[index] = replace(rows[index], measured=wrong)
    after = step_time_rows(rows, lambda _: None)
    assert after[index].predicted == before[index].predicted
    assert after[index].calibrated == before[index].calibrated
    assert any(a.calibrated != b.calibrated for i, (a, b) in enumerate(zip(after, before, strict=True)) if i != index)


def test_two_rows_have_no_factors() -> None:
    rows = step_time_rows(measured(CASES[:2], Factors(0.6, 1.3)), lambda _: None)
    assert [r.calibrated for r in rows] == [None, None]
    assert all(r.predicted is not None for r in rows)


def test_a_lone_row_without_a_length_says_so() -> None:
    (row,) = step_time_rows([replace(CASES[0], lengths=Lengths(max_response=8192))], lambda _: None)
    assert row.predicted is None
    assert "mean_response" in str(row.reason)


def test_factors_do_not_cross_families() -> None:
    rows = measured(CASES, Factors(0.6, 1.3))
    alone = step_time_rows(rows, lambda _: None)
    strangers = [replace(c, id=f"x{c.id}", family="other", measured={"step_time_s": 1e4}) for c in CASES]
    together = step_time_rows([*rows, *strangers], lambda _: None)
    assert [r.calibrated for r in together[: len(CASES)]] == [r.calibrated for r in alone]


def test_an_unknown_kind_says_which_there_are() -> None:
    (row,) = validate([Document("x", (replace(CASES[0], kind="colour"),), {})]).rows
    assert row.predicted is None
    assert "'colour'" in str(row.reason)
    assert "step_time" in str(row.reason)


def test_the_prior_holds_what_no_data_speak_of() -> None:
    answer = fitted([Unknown(0.3, 0.5, -2, 2), Unknown(-0.2, 0.5, -2, 2)], lambda x: np.array([(x[0] - 1.0) / 0.01]))
    assert answer[0] == pytest.approx(1.0, abs=0.01)
    assert answer[1] == pytest.approx(-0.2, abs=1e-6)


def test_one_odd_row_does_not_bend_the_rest() -> None:
    seen = np.array([1.0, 1.02, 0.98, 1.01, 3.0])
    answer = fitted([Unknown(0.0, 5.0, -9, 9)], lambda x: (x[0] - seen) / 0.05)
    assert answer[0] == pytest.approx(1.0, abs=0.08)


def test_a_law_has_the_mean_that_is_asked_for() -> None:
    for mean, cap in ((50.0, 4096), (3000.0, 3900), (12_000.0, 32_768)):
        assert law_of(mean, cap).mean() == pytest.approx(mean, rel=0.02)
        assert law_of(mean, cap).support_tokens[-1] <= cap
    assert law_with_median(800.0, 1 << 16).quantile(0.5) == pytest.approx(800, rel=0.05)


def test_errors_are_relative_or_absolute_and_never_negative() -> None:
    row = Row("a", "step_time", "f", measured=100.0, predicted=80.0, calibrated=110.0)
    assert row.error == pytest.approx(0.2)
    assert row.calibrated_error == pytest.approx(0.1)
    assert Row("a", "staleness", "f", 2.0, predicted=1.5, error_kind=ABSOLUTE).error == pytest.approx(0.5)
    side = Row("a", "bottleneck", "f", ROLLOUT, predicted=TRAIN, calibrated=ROLLOUT)
    assert (side.correct, side.calibrated_correct) == (False, True)
    assert side.error is None
    assert Row("a", "bottleneck", "f", ROLLOUT).correct is None


@pytest.mark.parametrize(
    ("said", "side"),
    [
        ({"bottleneck": "rollout-bound: queue near 0"}, ROLLOUT),
        ({"bottleneck": "Train-bound: queue at its cap"}, TRAIN),
        ({"bottleneck": "matched: queue moderate"}, MATCHED),
        ({"trainer_wait_frac": 0.3}, ROLLOUT),
        ({"wait_for_generation_buffer_s": 0.0}, TRAIN),
        ({"step_time_s": 100.0, "train_wait_s": 40.0}, ROLLOUT),
        ({"step_time_s": 100.0, "train_wait_s": 2.0}, TRAIN),
        ({"step_time_s": 100.0, "train_wait_s": 12.0}, MATCHED),
        ({"step_time_s": 100.0}, None),
    ],
)
def test_the_bound_side_is_read_from_words_or_from_waiting(said: dict[str, object], side: str | None) -> None:
    assert measured_side(replace(CASES[0], measured=said)) == side


def test_next_to_balance_waits_decide() -> None:
    near = Row(
        "a", "step_time", "f", 1.0, predicted=1.0, measured_side=MATCHED, predicted_side=ROLLOUT, measured_wait=0.12
    )
    assert replace(near, predicted_wait=0.30).correct
    assert not replace(near, predicted_wait=0.35).correct
    assert not replace(near, measured_side=TRAIN, predicted_wait=0.2).correct
    assert [side_of(w) for w in (0.0, 0.1, 0.5)] == [TRAIN, MATCHED, ROLLOUT]


@pytest.mark.parametrize("said", ["rollout-bound", "train-bound", "matched", ""])
def test_a_bound_side_is_predicted_whatever_the_row_measured(said: str) -> None:
    one = replace(case("one", 8, 8), kind="bottleneck", measured={"bottleneck": said, "trainer_wait_frac": 0.4})
    other = replace(case("two", 28, 4), kind="bottleneck", measured={"bottleneck": "train-bound"})
    first = bottleneck_rows([one, other])[0]
    again = bottleneck_rows([replace(one, measured={}), other])[0]
    assert (first.predicted, first.calibrated) == (again.predicted, again.calibrated)


def test_a_bound_side_is_predicted_from_the_split_alone() -> None:
    few = replace(case("few", 4, 28), kind="bottleneck")
    many = replace(case("many", 28, 4), kind="bottleneck")
    rows = bottleneck_rows(
        [replace(few, measured={"bottleneck": "rollout-bound"}), replace(many, measured={"bottleneck": "train-bound"})]
    )
    assert [r.predicted for r in rows] == [ROLLOUT, TRAIN]
    assert all(r.correct for r in rows)


def test_a_run_whose_steps_change_says_less() -> None:
    steady = replace(CASES[0], measured={"cumulative_time_s": {100: 1000, 200: 2000, 300: 3000}})
    doubled = replace(CASES[0], measured={"cumulative_time_s": {100: 1000, 200: 3000}})
    assert drift(steady) == pytest.approx(0.0, abs=1e-9)
    assert drift(doubled) == pytest.approx(0.5 * np.log(2.0))
    assert drift(CASES[0]) == 0.0
