from __future__ import annotations

import math
from pathlib import Path

import pytest

from rljob_planner.errors import PlanningError
from rljob_planner.validation.cases import load, packaged, parse
from rljob_planner.validation.names import REFERENCE_GPU, gpu_of, shape_of
from rljob_planner.validation.setting import ASYNC, ONE_STEP_OFF, SYNC, Missing, parallel_of, setting_of

ROW = """
cases:
- id: one
  kind: step_time
  model: Qwen3-8B
  gpu: H100
  n_gpus: 16
  rollout_gpus: 8
  train_gpus: 8
  placement: disaggregated
  prompts_per_step: 64
  samples_per_step: 512
  lengths: {mean_response: 1000, max_response: 4096}
  staleness: {knob: max_trajectory_age_steps, value: 1}
  measured: {step_time_s: 60}
"""


def test_a_row_is_read_with_what_follows_from_it() -> None:
    (case,) = parse(ROW, "x").cases
    assert (case.id, case.family, case.group_size) == ("one", "step_time", 8)
    assert case.lengths.known
    assert case.value("none", "step_time_s") == 60.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no measurements"),
        ("a: [", "is not YAML"),
        ("cases: 3", "must be a list"),
        ("cases: [3]", "must be a mapping"),
        ("cases: [{kind: step_time}]", "has no id"),
        ("cases: [{id: a}]", "has no kind"),
        ("cases: [{id: a, kind: b}, {id: a, kind: b}]", "two rows have the id 'a'"),
        ("cases: [{id: a, kind: b, n_gpus: many}]", "cases[0] (a).n_gpus must be a number"),
        ("cases: [{id: a, kind: b, n_gpus: 0}]", "must be a whole number from 1"),
        ("cases: [{id: a, kind: b, lengths: 3}]", "lengths must be a mapping"),
        (
            "cases: [{id: a, kind: b, lengths: {max_response: -1}}]",
            "lengths.max_response must be a number of at least 0",
        ),
        ("cases: [{id: a, kind: b, lengths: {mean_response: .nan}}]", "lengths.mean_response must be a number"),
        ("cases: [{id: a, kind: b, measured: [1]}]", "measured must be a mapping"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, says: str) -> None:
    with pytest.raises(PlanningError, match=r"file\.yaml") as raised:
        parse(text, "file.yaml")
    assert says in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanningError, match=r"absent\.yaml"):
        load(tmp_path / "absent.yaml")


def test_the_packaged_files_are_read() -> None:
    assert sum(len(d.cases) for d in packaged()) >= 100


def test_no_bound_is_infinite() -> None:
    (case,) = parse(ROW.replace("value: 1", "value: inf"), "x").cases
    assert case.staleness.value == math.inf
    assert setting_of(case).bound == "none"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("DeepSeek V3", "deepseek-ai/DeepSeek-V3"),
        ("Llama 3.1 405B", "meta-llama/Llama-3.1-405B"),
        ("Llama3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("Qwen2.5-7B-Instruct (SFT)", "Qwen/Qwen2.5-7B"),
        ("Qwen2.5-7B base", "Qwen/Qwen2.5-7B"),
        ("Qwen 30B (variant not stated)", "Qwen/Qwen3-30B-A3B"),
    ],
)
def test_names_as_people_write_them_are_understood(name: str, shape: str) -> None:
    assert shape_of(name).value.name == shape


def test_a_model_that_is_not_packaged_has_the_sizes_in_its_name() -> None:
    found = shape_of("Comet 67B-A2B (MoE)")
    assert found.value.kind == "moe"
    assert found.value.parameters == pytest.approx(67e9, rel=0.1)
    assert found.value.active_parameters == pytest.approx(2e9, rel=0.35)
    assert "not packaged" in str(found.assumption)
    assert shape_of("Comet 13B").value.parameters == pytest.approx(13e9, rel=0.15)


def test_a_model_without_name_or_size_is_an_error() -> None:
    with pytest.raises(PlanningError, match="zzzz"):
        shape_of("zzzz")


@pytest.mark.parametrize(
    ("text", "name", "precision", "assumed"),
    [
        ("H100 FP8", "h100-sxm-80gb", "fp8", False),
        ("H200 (trainer; generator 192 GPUs)", "h200-sxm-141gb", None, False),
        ("4x8, GPU type not stated", REFERENCE_GPU, None, True),
        ("8xH100", "h100-sxm-80gb", None, False),
        ("an accelerator of 2031", REFERENCE_GPU, None, True),
    ],
)
def test_gpus_are_found_or_assumed_with_a_note(text: str, name: str, precision: str | None, assumed: bool) -> None:
    found = gpu_of(text)
    assert (found.value.name, found.precision, found.assumption is not None) == (name, precision, assumed)


@pytest.mark.parametrize(
    ("text", "gen", "train"),
    [
        ("gen [TP,PP]=2,1; train 1,1,8,2", {"tp": 2, "pp": 1}, {"tp": 1, "cp": 1, "ep": 8, "pp": 2}),
        ("train TP2 PP2 CP2 EP4/8, rollout TP4", {"tp": 4}, {"tp": 2, "pp": 2, "cp": 2, "ep": 4}),
        ("", {}, {}),
    ],
)
def test_parallelism_is_read_from_text(text: str, gen: dict[str, int], train: dict[str, int]) -> None:
    assert parallel_of(text) == (gen, train)


@pytest.mark.parametrize(
    ("change", "mode", "bound", "ahead"),
    [
        ({}, ASYNC, "admission", 1.0),
        ({"placement: disaggregated": "placement: colocated"}, SYNC, "admission", 1.0),
        ({"placement: disaggregated": "placement: disaggregated_sync"}, SYNC, "admission", 1.0),
        ({"max_trajectory_age_steps": "one step off"}, ONE_STEP_OFF, "admission", 1.0),
        ({"max_trajectory_age_steps": "max_weight_staleness (drop and regenerate)"}, ASYNC, "drop", 1.0),
        ({"max_trajectory_age_steps": "staleness_threshold", "value: 1": "value: 0.5"}, ASYNC, "admission", 0.5),
    ],
)
def test_knobs_become_rules(change: dict[str, str], mode: str, bound: str, ahead: float) -> None:
    text = ROW
    for old, new in change.items():
        text = text.replace(old, new)
    setting = setting_of(parse(text, "x").cases[0])
    assert (setting.mode, setting.bound, setting.run_ahead) == (mode, bound, ahead)


@pytest.mark.parametrize("field", ["model", "gpu", "rollout_gpus", "train_gpus", "placement"])
def test_a_null_field_is_the_reason(field: str) -> None:
    lines = [f"  {field}: null" if line.strip().startswith(f"{field}:") else line for line in ROW.splitlines()]
    with pytest.raises(Missing, match=field):
        setting_of(parse("\n".join(lines), "x").cases[0])


def test_what_follows_from_other_fields_need_not_be_stated() -> None:
    colocated = ROW.replace("rollout_gpus: 8", "rollout_gpus: null").replace("train_gpus: 8", "train_gpus: null")
    setting = setting_of(parse(colocated.replace("disaggregated", "colocated"), "x").cases[0])
    assert setting.replicas * setting.engine.tensor_parallel == setting.trainer.gpus == 16
    samples = setting_of(parse(ROW.replace("prompts_per_step: 64", "prompts_per_step: null"), "x").cases[0])
    assert samples.samples == 512
