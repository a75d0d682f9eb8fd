"""What a finished run leaves behind, and what the next one starts with."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from rljob_operator import profiles
from rljob_operator.cli import app
from rljob_operator.course import MOST_POINTS, lengths_so_far
from rljob_operator.learned import learned_status, with_constants
from rljob_operator.learning import profile_object
from rljob_operator.readings import Reading
from rljob_operator.rebalance import timestamp
from rljob_planner.accelerators import Accelerators
from rljob_planner.api.evidence import PhaseSeconds
from rljob_planner.api.profile import MOST_RUNS, ProfileRun, RLJobProfile
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import (
    CalibrationStatus,
    DecodeConstants,
    LearnedStatus,
    LengthPoint,
    MoveHistory,
    RLJobStatus,
)
from rljob_planner.calibrate import Calibration, MeasuredOn
from rljob_planner.hardware import DecodeEfficiency, gpu
from rljob_planner.job import lengths_of
from tests.operator.objects import job, job_dict, spec
from tests.operator.situations import NOW_S, split, telemetry

GPUS = Accelerators(gpu("H100-SXM"), gpu("H100-SXM"))
DAY_S = 86_400.0


def run(name: str = "first", *, ago_days: float = 1.0, **changes: Any) -> ProfileRun:
    base = ProfileRun(
        job=name,
        uid=f"uid-{name}",
        ended_at=timestamp(NOW_S - ago_days * DAY_S),
        steps=100,
        split="x",
        sampler_gpus_per_replica=1,
        sampler_factor=0.8,
        trainer_factor=1.25,
        observations=20,
        lengths=(
            LengthPoint(step=2, mean=1500.0),
            LengthPoint(step=50, mean=2000.0),
            LengthPoint(step=99, mean=3000.0),
        ),
    )
    return base.model_copy(update=changes)


def profile(*runs: ProfileRun) -> RLJobProfile:
    subject = profiles.subject_of(spec(), GPUS)
    found: RLJobProfile | None = None
    for each in runs:
        found = RLJobProfile(metadata={"name": "p"}, spec=profiles.with_run(found, subject, each))
    assert found is not None
    return found


def lesson(*runs: ProfileRun, of: RLJobSpec | None = None) -> profiles.Lesson:
    return profiles.lesson_of(profile(*(runs or (run(),))), of or spec(), NOW_S)


# The course of a run.


def test_lengths_are_kept_evenly_and_never_more_than_a_status_holds() -> None:
    points: tuple[LengthPoint, ...] = ()
    for step in range(1, 2001):
        seen = telemetry(policy_version=Reading.of(step))
        points = lengths_so_far(points, 2000, seen)
    assert 30 <= len(points) <= MOST_POINTS
    steps = [point.step for point in points]
    assert steps[0] == 1
    assert steps[-1] > 1900
    assert max(b - a for a, b in pairwise(steps)) == 65


def test_a_short_run_keeps_each_step() -> None:
    points: tuple[LengthPoint, ...] = ()
    for step in (1, 1, 2, 3):
        points = lengths_so_far(points, 10, telemetry(policy_version=Reading.of(step)))
    assert [point.step for point in points] == [1, 2, 3]


def test_what_a_trainer_goes_back_behind_is_forgotten() -> None:
    points = (LengthPoint(step=1, mean=10.0), LengthPoint(step=90, mean=50.0))
    after = lengths_so_far(points, 100, telemetry(policy_version=Reading.of(40)))
    assert [point.step for point in after] == [1, 40]


def test_unknown_lengths_add_no_point() -> None:
    points = (LengthPoint(step=1, mean=10.0),)
    assert lengths_so_far(points, 100, telemetry(response_lengths=Reading.missing())) == points
    assert lengths_so_far(points, 100, telemetry(policy_version=Reading.missing())) == points


# What a profile is of.


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": "Qwen/Qwen3-32B"}},
        {"model": {"name": "Qwen/Qwen3-8B", "weights": "fp8"}},
        {"trainer": {"recompute": "none"}},
        {"trainer": {"mfu": "30%"}},
        {"workload": {**spec().workload.model_dump(by_alias=True, exclude_none=True), "samplesPerPrompt": 4}},
    ],
)
def test_another_model_or_workload_has_another_profile(changes: dict[str, Any]) -> None:
    mine = profiles.profile_name(profiles.subject_of(spec(), GPUS))
    assert profiles.profile_name(profiles.subject_of(spec(**changes), GPUS)) != mine


def test_another_accelerator_or_other_constants_have_another_profile() -> None:
    mine = profiles.profile_name(profiles.subject_of(spec(), GPUS))
    other = Accelerators(gpu("H20"), gpu("H100-SXM"))
    constants = DecodeConstants(mbu=0.6, mfu=0.5, layer_seconds=1e-5, step_seconds=1e-3, request_seconds=1e-6)
    assert profiles.profile_name(profiles.subject_of(spec(), other)) != mine
    assert profiles.profile_name(profiles.subject_of(spec(), GPUS, constants)) != mine


def test_budget_steps_and_stated_lengths_share_a_profile() -> None:
    workload = spec().workload.model_dump(by_alias=True, exclude_none=True)
    response = {"mean": 3000, "max": 8000}
    other = spec(gpus=64, staleness={"max": 1}, workload={**workload, "steps": 5, "responseTokens": response})
    mine = profiles.profile_name(profiles.subject_of(spec(), GPUS))
    assert profiles.profile_name(profiles.subject_of(other, GPUS)) == mine
    assert mine.startswith("qwen3-8b-h100-sxm-")
    assert len(mine) < 63


# What a run leaves.


def finished(**changes: Any) -> RLJobStatus:
    base = RLJobStatus(
        split=split(),
        calibration=CalibrationStatus(sampler_factor=0.8, trainer_factor=1.25, observations=20, residual=0.02),
        moves=MoveHistory(moves=1, cost_seconds=90.0, phases=PhaseSeconds(grow=40.0)),
        lengths=run().lengths,
    )
    return base.model_copy(update=changes)


def test_a_run_leaves_what_it_measured() -> None:
    kept = profiles.run_of(job(), finished(), "2026-01-01T00:00:00Z")
    assert kept is not None
    assert (kept.sampler_factor, kept.trainer_factor, kept.observations) == (0.8, 1.25, 20)
    assert kept.move_cost_seconds == 90.0
    assert kept.phases.grow == 40.0
    assert len(kept.lengths) == 3


def test_a_run_without_moves_leaves_no_cost_of_one_that_it_was_told() -> None:
    kept = profiles.run_of(job(), finished(moves=MoveHistory(cost_seconds=90.0)), "2026-01-01T00:00:00Z")
    assert kept is not None
    assert kept.move_cost_seconds is None


@pytest.mark.parametrize(
    "changes",
    [
        {"calibration": None},
        {"calibration": CalibrationStatus(observations=0, sampler_factor=0.8)},
        {"calibration": CalibrationStatus(observations=2, sampler_factor=0.8)},
    ],
)
def test_a_run_that_measured_too_little_leaves_nothing(changes: dict[str, Any]) -> None:
    assert profiles.run_of(job(), finished(**changes), "2026-01-01T00:00:00Z") is None


def test_a_factor_at_its_limit_is_left_out_and_the_rest_is_kept() -> None:
    pegged = CalibrationStatus(observations=20, sampler_factor=2.0, trainer_factor=1.25, pegged=True)
    kept = profiles.run_of(job(), finished(calibration=pegged), timestamp(NOW_S))
    assert kept is not None
    assert (kept.sampler_factor, kept.trainer_factor) == (None, 1.25)
    found = lesson(kept)
    assert found.sampler_factor is None
    assert "trainers 1.25" in found.words()
    assert "samplers" not in found.words()
    start = profiles.calibration_of(found, NOW_S)
    assert (start.sampler_factor, start.sampler_evidence) == (1.0, None)
    assert start.trainer_evidence is not None


def test_the_last_runs_are_kept_each_once() -> None:
    names = [f"run-{i}" for i in range(MOST_RUNS + 2)]
    kept = profile(*(run(name) for name in names), run(names[-1], sampler_factor=0.9)).spec.runs
    assert [r.job for r in kept] == names[-MOST_RUNS:]
    assert kept[-1].sampler_factor == 0.9


def test_a_live_profile_is_changed_as_it_was_read_and_survives_nonsense() -> None:
    subject = profiles.subject_of(spec(), GPUS)
    first = profile_object("p", "rl", subject, run("first"), None)
    assert "resourceVersion" not in first["metadata"]
    live = {**first, "metadata": {**first["metadata"], "uid": "u", "resourceVersion": "7", "managedFields": []}}
    second = profile_object("p", "rl", subject, run("second"), live)
    assert second["metadata"]["resourceVersion"] == "7"
    assert [r["job"] for r in second["spec"]["runs"]] == ["first", "second"]
    spoilt = profile_object("p", "rl", subject, run("second"), {**live, "spec": {"runs": "none"}})
    assert [r["job"] for r in spoilt["spec"]["runs"]] == ["second"]


# What the next run starts with.


def test_one_run_is_believed_as_far_as_reruns_agree() -> None:
    found = lesson()
    assert (found.sampler_factor, found.trainer_factor) == pytest.approx((0.8, 1.25))
    assert found.sampler_error == pytest.approx(profiles.RERUN_ERROR * math.sqrt(2))
    assert found.growth == pytest.approx(2.0)


def test_runs_that_agree_make_it_surer_and_runs_that_do_not_less_sure() -> None:
    alike = lesson(*(run(f"r{i}") for i in range(4)))
    apart = lesson(*(run(f"r{i}", sampler_factor=0.6 * 1.4**i) for i in range(4)))
    assert alike.sampler_error < lesson().sampler_error < apart.sampler_error
    assert apart.trainer_error == pytest.approx(alike.trainer_error)


def test_newer_runs_count_more() -> None:
    found = lesson(run("old", sampler_factor=0.6), run("new", sampler_factor=1.0))
    assert math.sqrt(0.6) < found.sampler_factor < 1.0


def test_samplers_of_another_width_are_less_sure() -> None:
    wider = spec(sampler={"gpusPerReplica": 4})
    assert lesson(of=wider).sampler_error == pytest.approx(profiles.OTHER_WIDTH * lesson().sampler_error)
    assert lesson(of=wider).trainer_error == lesson().trainer_error


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ((run(ago_days=400.0),), "more than 180 days ago"),
        ((run(sampler_factor=3.0),), "it holds no run"),
        ((run(observations=0),), "it holds no run"),
        ((run(ended_at="yesterday"),), "it holds no run"),
    ],
)
def test_what_cannot_be_believed_teaches_nothing(runs: tuple[ProfileRun, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lesson(*runs)


def test_an_unreadable_profile_says_where() -> None:
    with pytest.raises(ValueError, match=r"can't be read \(spec\.subject"):
        profiles.read_profile({"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJobProfile", "spec": {"runs": []}})


def test_stated_lengths_give_way_to_measured_ones_as_far_as_these_are_surer() -> None:
    before, found = spec(), lesson()
    after = profiles.taught(before, found)
    stated = lengths_of(before.workload.response_tokens).mean()
    mean = lengths_of(after.workload.response_tokens).mean()
    assert stated < mean < 1500.0
    assert mean > 0.8 * 1500.0
    assert after.workload.response_tokens.growth == pytest.approx(2.0)
    assert after.model_copy(update={"workload": before.workload}) == before


def test_all_ways_to_describe_lengths_are_taught_and_none_is_broken() -> None:
    workload = spec().workload.model_dump(by_alias=True, exclude_none=True)
    for response in (
        {"quantiles": {"0.5": 700, "0.9": 2600}, "max": 8000},
        {"histogram": [[500, 10], [1000, 20], [4000, 5]], "max": 8000},
        {"mean": 7900, "cv": 0.05, "max": 8000},
    ):
        before = spec(workload={**workload, "responseTokens": response})
        after = profiles.taught(before, lesson())
        assert lengths_of(after.workload.response_tokens).mean() > 0


def test_a_growth_is_taken_over_only_from_a_run_that_went_far_enough() -> None:
    workload = spec().workload.model_dump(by_alias=True, exclude_none=True)
    longer = spec(workload={**workload, "steps": 1000})
    assert lesson(of=longer).growth is None
    assert profiles.taught(longer, lesson(of=longer)).workload.response_tokens.growth is None


def test_the_first_readings_of_the_run_outweigh_what_was_known() -> None:
    start = profiles.calibration_of(lesson(), NOW_S)
    assert start.observations == 0
    assert start.sampler_error == pytest.approx(lesson().sampler_error, rel=1e-6)
    assert start.sampler_evidence is not None
    assert start.sampler_evidence.readings < 1.0
    assert start.sampler_speed == pytest.approx(0.8)


def test_a_benchmark_beside_a_profile_keeps_its_constants() -> None:
    decode = DecodeEfficiency(0.6, 0.5, 1e-5, 1e-3, 1e-6)
    on = MeasuredOn("m", "H100-SXM", 2, "bf16", "bf16")
    base = Calibration(sampler_factor=0.9, decode=decode, kv_tokens=1000, measured_on=on)
    start = profiles.calibration_of(lesson(), NOW_S, base)
    assert start.decode == decode
    assert start.sampler_speed == pytest.approx(0.8)
    learned = learned_status(lesson(), "speeds", base)
    assert learned is not None
    live = with_constants(Calibration(sampler_factor=0.7, observations=3), learned, 2)
    assert live.decode == decode
    assert live.kv_tokens == 1000
    assert live.sampler_factor == 0.7
    assert with_constants(Calibration(), learned, 4).kv_tokens is None


def test_nothing_learned_changes_nothing() -> None:
    plain = Calibration(sampler_factor=0.7)
    assert with_constants(plain, None, 2) is plain
    assert with_constants(plain, LearnedStatus(profile="p", runs=1), 2) is plain
    assert learned_status(None, None, None) is None


def test_a_lesson_says_in_words_what_it_teaches() -> None:
    words = replace(lesson(), move_cost_s=90.0).words()
    assert words.startswith(
        "RLJobProfile p (1 run, the last first): samplers 0.80 ± 0.11 and trainers 1.25 ± 0.18 times"
    )
    assert "responses of 1,500 tokens at the start, ×2 by the end" in words
    assert words.endswith("a move cost 90 s")


# From a file, without a cluster.


def planned(tmp_path: Path, document: Any, *options: str) -> Result:
    spec_file, profile_file = tmp_path / "job.yaml", tmp_path / "profile.yaml"
    spec_file.write_text(yaml.safe_dump(job_dict(accelerator="H100-SXM")))
    profile_file.write_text(yaml.safe_dump(document))
    return CliRunner().invoke(app, ["plan", str(spec_file), "--profile", str(profile_file), *options])


def printed(*runs: ProfileRun, **subject: Any) -> dict[str, Any]:
    found = profile(*runs)
    found = found.model_copy(
        update={"spec": found.spec.model_copy(update={"subject": found.spec.subject.model_copy(update=subject)})}
    )
    return found.model_dump(mode="json", by_alias=True, exclude_none=True)


def recent(**changes: Any) -> ProfileRun:
    return run(ended_at=timestamp(time.time() - DAY_S), **changes)


def test_a_plan_from_a_file_starts_from_a_profile_too(tmp_path: Path) -> None:
    with_it = planned(tmp_path, printed(recent()), "-o", "json")
    assert with_it.exit_code == 0, with_it.output
    plain = CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml"), "-o", "json"])
    taught, untaught = json.loads(with_it.stdout), json.loads(plain.stdout)
    assert taught["confidence"] is not None
    assert untaught["confidence"] is None
    assert taught["period"]["mean"] != untaught["period"]["mean"]


def test_a_profile_of_another_job_is_used_with_a_word(tmp_path: Path) -> None:
    found = planned(tmp_path, printed(recent(), model="Qwen/Qwen3-32B"))
    assert found.exit_code == 0, found.output
    words = " ".join(found.stdout.split())
    assert "RLJobProfile p (1 run, the last first)" in words
    assert "its model is Qwen/Qwen3-32B, this job's is Qwen/Qwen3-8B" in words


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"kind": "ConfigMap"}, "this is no RLJobProfile"),
        ({"kind": "RLJobProfile", "spec": {}}, "can't be read (spec.subject"),
        (printed(run(ended_at="2020-01-01T00:00:00Z")), "more than 180 days ago"),
    ],
)
def test_a_file_that_teaches_nothing_ends_with_what_to_do(tmp_path: Path, document: Any, words: str) -> None:
    found = planned(tmp_path, document)
    assert found.exit_code == 2
    assert words in found.stderr


def test_a_calibration_that_only_the_cluster_holds_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job_dict(accelerator="H100-SXM", calibration={"configMap": "speeds"})))
    found = CliRunner().invoke(app, ["plan", str(file), "-o", "json"])
    assert found.exit_code == 0, found.output
    assert "spec.calibration names ConfigMap speeds" in found.stderr
    assert "--calibration" in found.stderr
