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
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, says: str) -> None:
    with pytest.raises(PlanningError, match=r"file\.yaml") as raised:
        parse(text, "file.yaml")
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{kind: step_time}", "id is missing"),
        ("{id: a}", "kind is missing"),
        ("{id: a, kind: b, n_gpus: many}", "n_gpus must be a whole number from 1 to 1,000,000, not 'many'"),
        ("{id: a, kind: b, n_gpus: 0}", "n_gpus must be a whole number from 1"),
        ("{id: a, kind: b, model: [x]}", "model must be text, not ['x']"),
        ("{id: a, kind: b, lengths: 3}", "lengths must be a mapping"),
        ("{id: a, kind: b, staleness: '4'}", "staleness must be a mapping of fields, not '4'"),
        ("{id: a, kind: b, staleness: {partial_rollout: 3}}", "staleness.partial_rollout must be true or false"),
        ("{id: a, kind: b, lengths: {max_response: -1}}", "lengths.max_response must be a whole number from 1"),
        (
            "{id: a, kind: b, lengths: {mean_response: 0}}",
            "lengths.mean_response must be a number of at least 1, not 0",
        ),
        ("{id: a, kind: b, lengths: {mean_response: .nan}}", "lengths.mean_response must be a number"),
        ("{id: a, kind: b, lengths: {mean_response: 1e10}}", "lengths.mean_response must be a number"),
        ("{id: a, kind: b, rho: .inf}", "rho must be a number above 0, not inf"),
        ("{id: whole, kind: b}", "another row before it has the id 'whole'"),
    ],
)
def test_a_wrong_value_costs_its_own_row_alone(row: str, says: str) -> None:
    whole, wrong = parse(f"cases: [{{id: whole, kind: b}}, {row}]", "x").cases
    assert whole.fault is None
    assert says in str(wrong.fault)
    assert whole.id != wrong.id


def test_what_cannot_have_been_measured_is_left_out_with_a_remark() -> None:
    said = "{step_time_s: -1, train_s: .nan, train_wait_s: 0, gen_s: 3, cumulative_time_s: {a: 1, 10: 50}, weight_sync_s: 0}"
    (case,) = parse(f"cases: [{{id: a, kind: b, measured: {said}}}]", "x").cases
    assert case.fault is None
    assert case.measured == {"train_wait_s": 0, "gen_s": 3, "cumulative_time_s": {10: 50}}
    assert [r.split(" ")[0].rstrip(":") for r in case.remarks] == [
        "measured.step_time_s", "measured.train_s", "measured.cumulative_time_s", "measured.weight_sync_s"
    ]  # fmt: skip


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
    unsaid = shape_of("Comet 13B (variant not stated)")
    assert unsaid.value.parameters == pytest.approx(13e9, rel=0.15)
    assert "not packaged" in str(unsaid.assumption)


@pytest.mark.parametrize("name", ["zzzz", "Comet 13B", "Qwen3-Next-80B", "Qwen3.5-397B"])
def test_a_model_that_is_not_known_has_no_substitute(name: str) -> None:
    with pytest.raises(PlanningError, match=name):
        shape_of(name)


@pytest.mark.parametrize("name", ["TPU v5p", "Ascend 910B", "an accelerator of 2031"])
def test_a_gpu_that_is_not_known_has_no_substitute(name: str) -> None:
    with pytest.raises(PlanningError, match=name):
        gpu_of(name)


@pytest.mark.parametrize(
    ("text", "name", "precision", "assumed"),
    [
        ("H100 FP8", "h100-sxm-80gb", "fp8", False),
        ("H200 (trainer; generator 192 GPUs)", "h200-sxm-141gb", None, False),
        ("4x8, GPU type not stated", REFERENCE_GPU, None, True),
        ("8xH100", "h100-sxm-80gb", None, False),
        ("not stated (8 GPUs per node)", REFERENCE_GPU, None, True),
        ("h100-class", "h100-sxm-80gb", None, False),
        ("A100-80G", "a100-sxm-80gb", None, False),
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
