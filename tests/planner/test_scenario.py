from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import NormalDist
from typing import Any

import jsonschema
import pytest
import yaml

import rljob_planner
from dev import schemas
from rljob_planner.scenario import Scenario, ScenarioError, load_scenario, parse_scenario
from rljob_planner.scenario import compile as compile_scenario
from rljob_planner.simulate import SimulationStalled, simulate_scenario

FILES = sorted((Path(rljob_planner.__file__).parent / "data" / "scenarios").glob("*.yaml"))
TEXT = """
mode: async
samplers: {replicas: 4, maxRunning: 64, kvTokens: 400000,
           decode: {perStep: 0.010, perSample: 2.0e-5, perContextToken: 1e-8}}
trainer: {perStep: 0.5, perToken: 1.0e-5}
weightSync: 0.2
workload: {promptsPerStep: 16, samplesPerPrompt: 8, promptTokens: 200,
           responseTokens: {lognormal: {median: 300, sigma: 0.8, max: 4000}}}
staleness: {bound: none, max: 4}
queue: {capacity: 32, overflow: drop-oldest}
inFlight: 256
steps: 300
warmup: 50
seed: 0
"""


def test_every_key_is_read() -> None:
    inp = compile_scenario(parse_scenario(TEXT))
    assert (inp.mode, inp.replicas, inp.max_running, inp.kv_tokens) == ("async", 4, 64, 400_000)
    assert inp.decode.iteration_s(10, 1000) == pytest.approx(0.010 + 10 * 2e-5 + 1000 * 1e-8)
    assert len(inp.decode.fixed_s) == 65
    assert (inp.train.per_step_s, inp.train.per_token_s, inp.weight_sync_s) == (0.5, 1e-5, 0.2)
    assert (inp.prompts_per_step, inp.samples_per_prompt, inp.prompt_tokens) == (16, 8, 200)
    assert inp.lengths.quantile(0.5) == 300
    assert inp.lengths.cap_tokens == 4000
    assert (inp.bound, inp.max_staleness) == ("none", 4)
    assert (inp.queue_capacity, inp.overflow, inp.in_flight_cap) == (32, "drop-oldest", 256)
    assert (inp.steps, inp.warmup, inp.seed) == (300, 50, 0)


def test_what_is_omitted_is_unlimited() -> None:
    document = yaml.safe_load(TEXT.replace("1e-8", "1.0e-8"))
    for key in ("mode", "weightSync", "staleness", "queue", "inFlight", "warmup", "steps", "seed"):
        del document[key]
    inp = compile_scenario(Scenario.model_validate(document))
    assert (inp.mode, inp.bound, inp.queue_capacity, inp.in_flight_cap) == ("async", "none", None, None)
    assert (inp.weight_sync_s, inp.steps, inp.warmup, inp.seed) == (0.0, 300, 50, 0)


def test_short_runs_have_a_short_warm_up() -> None:
    assert parse_scenario(TEXT.replace("steps: 300", "steps: 20").replace("warmup: 50\n", "")).warmup_steps == 4


@pytest.mark.parametrize(
    ("lengths", "mean"),
    [
        ("values: [10, 20, 30]", 20.0),
        ("histogram: [[10, 1], [20, 1]]", 10.0),
        ("lognormal: {median: 5, sigma: 0, max: 9}", 5),
        ("lognormal: {median: 10, sigma: 0, max: 50, capMass: 0.25}", 20),
        ("bimodal: [{weight: 3, median: 10, sigma: 0}, {weight: 1, median: 90, sigma: 0}], max: 50", 20),
        ("quantiles: {0.1: 60, 0.5: 80, 0.9: 100}, max: 400", 80),
        ("values: [10, 20, 30], max: 20", 50 / 3),
    ],
)
def test_lengths_are_given_in_one_of_several_ways(lengths: str, mean: float) -> None:
    scenario = parse_scenario(TEXT.replace("lognormal: {median: 300, sigma: 0.8, max: 4000}", lengths))
    assert compile_scenario(scenario).lengths.mean() == pytest.approx(mean, abs=0.1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("perStep: 0.5", "perStep: .nan", "trainer.perStep: must be a finite number"),
        ("perStep: 0.5", "perStep: .inf", "trainer.perStep: must be a finite number"),
        ("perStep: 0.5", "perStep: -1", "trainer.perStep: must be greater than or equal to 0, but this is -1"),
        ("perStep: 0.5", "perStep: fast", "trainer.perStep: must be a valid number, but this is 'fast'"),
        ("median: 300", "median: .nan", "workload.responseTokens.lognormal.median: must be"),
        ("weightSync", "weightsync", "weightsync: unknown key; did you mean weightSync?"),
        ("maxRunning: 64", "maxRuning: 64", "samplers.maxRuning: unknown key; did you mean maxRunning?"),
        ("max: 4}", "zzz: 4}", "staleness.zzz: unknown key; known keys here: bound, max"),
        ("replicas: 4, ", "", "samplers.replicas: missing; it is required: Sampler replicas."),
        ("capacity: 32", "capacity: 3", r"queue.capacity: .* write at least promptsPerStep \(16\)"),
        ("inFlight: 256", "inFlight: 4", r"inFlight: .* write at least samplesPerPrompt \(8\)"),
        ("kvTokens: 400000", "kvTokens: 4199", "samplers.kvTokens: .* could never finish: write at least 4200"),
        ("bound: none", "bound: maybe", "staleness.bound: 'maybe' is not one of 'none', 'admission', 'hold' or 'drop'"),
        ("mode: async", "mode: asynk", "mode: 'asynk' is not one of"),
        ("steps: 300", "steps: 3.5", "steps: must be a valid integer, but this is 3.5"),
        ("steps: 300", "steps: 0", "steps: must be greater than or equal to 1"),
        ("kvTokens: 400000", "kvTokens: true", "samplers.kvTokens: must be a valid integer"),
        ("warmup: 50", "warmup: 300", "warmup: 300 of 300 steps are left out"),
        ("seed: 0", "seed: 0\nseed: 1", "s.yaml:15:1: not valid YAML: the key seed stands here twice"),
        ("inFlight: 256", "inFlight: [1", r"s.yaml:12:6: not valid YAML"),
        ("{bound: none, max: 4}", "{bound: hold}", "staleness: bound hold needs max"),
        ("lognormal: {median: 300, sigma: 0.8, max: 4000}", "values: []", "responseTokens: there are no values"),
        ("lognormal: {", "values: [3], lognormal: {", "in one way, .* this has lognormal and values"),
        ("lognormal: {median: 300, sigma: 0.8, max: 4000}", "histogram: [[9, 1], [5, 2]]", "upper edges must rise"),
        ("perStep: 0.010, perSample: 2.0e-5, perContextToken: 1e-8", "perStep: 0", "an iteration takes no time at all"),
    ],
)
def test_errors_name_the_key_and_say_what_to_write(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(ScenarioError, match=message):
        parse_scenario(TEXT.replace(old, new), "s.yaml")


AGENTIC = TEXT.replace(
    "promptTokens: 200,",
    "promptTokens: 200, groupCorrelation: 0.5, drift: [[0, 1.0], [200, 2.5]], "
    "environment: {turns: 4, secondsPerTurn: 10, cv: 0.5, sandboxes: 64},",
)


def test_environment_drift_and_correlation() -> None:
    inp = compile_scenario(parse_scenario(AGENTIC))
    assert (inp.turns, inp.turn_s, inp.turn_cv, inp.sandboxes) == (4, 10.0, 0.5, 64)
    assert (inp.group_correlation, inp.drift) == (0.5, ((0, 1.0), (200, 2.5)))
    plain = compile_scenario(parse_scenario(TEXT))
    assert (plain.turns, plain.turn_s, plain.sandboxes, plain.group_correlation, plain.drift) == (1, 0.0, None, 0.0, ())


def test_only_a_job_with_an_environment_reports_sandboxes() -> None:
    short = {"steps: 300": "steps: 20", "warmup: 50": "warmup: 5"}
    agentic, plain = AGENTIC, TEXT
    for old, new in short.items():
        agentic, plain = agentic.replace(old, new), plain.replace(old, new)
    report = simulate_scenario(parse_scenario(agentic)).to_json()
    jsonschema.validate(report, schemas.schema("simulation-result"))
    assert list(report)[-2:] == ["environmentSamples", "sandboxWait"]
    assert report["environmentSamples"] > 1
    assert "sandboxWait" not in simulate_scenario(parse_scenario(plain)).to_json()


def test_a_trace_lies_beside_its_scenario(tmp_path: Path) -> None:
    lengths = [round(300 * math.exp(0.8 * NormalDist().inv_cdf((i + 0.5) / 2000))) for i in range(2000)]
    rows = [json.dumps({"prompt_id": i % 250, "response_tokens": n}) for i, n in enumerate(lengths)]
    (tmp_path / "log.jsonl").write_text("\n".join(rows))
    text = TEXT.replace("lognormal: {median: 300, sigma: 0.8, max: 4000}", "trace: log.jsonl, max: 4000")
    path = tmp_path / "job.yaml"
    path.write_text(text)
    given = load_scenario(path).workload.response_tokens.distribution()
    assert given.mean() == pytest.approx(compile_scenario(parse_scenario(TEXT)).lengths.mean(), rel=0.02)
    assert given.cap_tokens == 4000
    path.write_text(text.replace("log.jsonl", "nowhere.jsonl"))
    with pytest.raises(ScenarioError, match=r"workload.responseTokens: .*nowhere.jsonl: no such file"):
        load_scenario(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cv: 0.5", "cv: -1", "workload.environment.cv: must be greater than or equal to 0"),
        ("secondsPerTurn: 10", "secondsPerTurn: .nan", "workload.environment.secondsPerTurn: must be a finite number"),
        ("turns: 4, ", "", "workload.environment.turns: missing; it is required: Decode turns of a sample"),
        ("sandboxes: 64", "sandbox: 64", "workload.environment.sandbox: unknown key; did you mean sandboxes?"),
        ("sandboxes: 64", "sandboxes: 0", "workload.environment.sandboxes: must be greater than or equal to 1"),
        (
            "groupCorrelation: 0.5",
            "groupCorrelation: 2.0",
            "workload.groupCorrelation: must be less than or equal to 1",
        ),
        ("[200, 2.5]", "[0, 2.5]", r"workload: drift: the policy versions must rise, as in \[\[0, 1.0\]"),
        ("[200, 2.5]", "[200, 0.0]", "workload.drift.1.1: must be greater than 0"),
        ("kvTokens: 400000", "kvTokens: 4100", "kvTokens: .* a response of 4000 tokens do not fit"),
        ("lognormal: {median: 300, sigma: 0.8, max: 4000}", "quantiles: {0.5: 9, 0.9: 30}", "quantiles needs max"),
        ("lognormal: {median: 300, sigma: 0.8, max: 4000}", "quantiles: {0.5: 9}, max: 30", "at least two quantiles"),
        ("max: 4000}", "max: 4000}, max: 30", "max stands inside lognormal"),
        (
            "lognormal: {median: 300, sigma: 0.8, max: 4000}",
            "bimodal: [{weight: 1, median: 3, sigma: 1}, {wait: 1, median: 5, sigma: 1}], max: 99",
            "workload.responseTokens.bimodal.1.wait: unknown key; did you mean weight?",
        ),
        (
            "lognormal: {median: 300, sigma: 0.8, max: 4000}",
            "bimodal: [], max: 99",
            "a mixture needs at least one part",
        ),
    ],
)
def test_errors_of_agentic_jobs_and_lengths_name_the_key(old: str, new: str, message: str) -> None:
    assert old in AGENTIC
    with pytest.raises(ScenarioError, match=message):
        parse_scenario(AGENTIC.replace(old, new), "s.yaml")


ABSURD = [
    (
        "replicas: 4",
        "replicas: 1000000000",
        r"samplers: 1000000000 replicas × 64 .* write a smaller maxRunning, or describe a share of the job",
    ),
    ("promptsPerStep: 16", "promptsPerStep: 0", "workload.promptsPerStep: must be greater than or equal to 1"),
    ("promptsPerStep: 16", "promptsPerStep: 1000000000", r"queue.capacity: .* at least promptsPerStep \(1000000000\)"),
    ("samplesPerPrompt: 8", "samplesPerPrompt: 1000000000", r"inFlight: .* at least samplesPerPrompt \(1000000000\)"),
    ("steps: 300", "steps: 10000000", r"steps: 10000000 steps are 1.28e\+09 samples, .* write at most steps: 390625"),
    ("promptTokens: 200", "promptTokens: 1000000000", "workload.promptTokens: must be less than or equal to"),
    ("median: 300", "median: 1.0e+9", None),
    ("max: 4000", "max: 1000000000", "lognormal.max: must be less than or equal to 10000000"),
    ("max: 4000", "max: 1", None),
    ("median: 300", "median: -300", "lognormal.median: must be greater than 0"),
    ("median: 300", "median: '300'", "lognormal.median: must be a valid number"),
    ("maxRunning: 64", "maxRunning: 1000000000", None),
    ("kvTokens: 400000", "kvTokens: 1000000000", None),
    ("weightSync: 0.2", "weightSync: 1.0e+9", None),
    ("perStep: 0.5", "perStep: 1.0e+2", None),
    ("capacity: 32, ", "", None),
    ("inFlight: 256\n", "", None),
    ("perStep: 0.010", "perStep: 1.0e-300", None),
]


@pytest.mark.parametrize(("old", "new", "message"), ABSURD)
def test_absurd_numbers_are_refused_or_simulated_at_once(old: str, new: str, message: str | None) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new)
    if message is not None:
        with pytest.raises(ScenarioError, match=message):
            parse_scenario(text, "s.yaml")
        return
    result = simulate_scenario(parse_scenario(text))
    assert result.period.mean > 0
    assert math.isfinite(result.period.mean)


@pytest.mark.parametrize("slower", [2, 100, 1e6, 1e12])
def test_a_queue_without_a_limit_simply_grows(slower: float) -> None:
    text = TEXT.replace("queue: {capacity: 32, overflow: drop-oldest}\n", "").replace(
        "perStep: 0.5", f"perStep: {slower}"
    )
    result = simulate_scenario(parse_scenario(text))
    assert result.period.mean >= slower
    assert result.trainer_utilization == pytest.approx(1.0, abs=0.05)
    assert 240 < result.mean_in_flight <= 256


def test_a_full_queue_in_front_of_a_trainer_that_hardly_moves_stalls_and_says_so() -> None:
    with pytest.raises(SimulationStalled, match=r"0 of 300 steps .* let a full queue block admission"):
        simulate_scenario(parse_scenario(TEXT.replace("perStep: 0.5", "perStep: 1.0e+9")))


def test_a_job_that_is_too_large_says_which_share_to_describe() -> None:
    text = TEXT.replace("queue: {capacity: 32, overflow: drop-oldest}\n", "").replace("steps: 300", "steps: 1")
    with pytest.raises(
        ScenarioError, match=r"workload: 256 decode slots and batches of .* need .* GB: describe a share"
    ):
        parse_scenario(text.replace("warmup: 50", "warmup: 0").replace("promptsPerStep: 16", "promptsPerStep: 5000000"))


def test_no_lengths_at_all() -> None:
    with pytest.raises(
        ScenarioError, match=r"workload.responseTokens: describe lengths in one way, .* has none of them"
    ):
        parse_scenario(TEXT.replace("{lognormal: {median: 300, sigma: 0.8, max: 4000}}", "{}"))


def test_one_step_off_cannot_be_bounded_to_no_staleness() -> None:
    text = TEXT.replace("mode: async", "mode: one-step-off").replace("{bound: none, max: 4}", "{bound: drop, max: 0}")
    with pytest.raises(ScenarioError, match=r"staleness.max: one-step-off trains samples that are one version old"):
        parse_scenario(text)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ScenarioError) as error:
        parse_scenario(TEXT.replace("inFlight: 256", "inFlight: 1").replace("capacity: 32", "capacity: 1"), "s.yaml")
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("s.yaml: ") for line in lines)


@pytest.mark.parametrize("text", ["", "- 1", "hello", "3"])
def test_what_is_no_mapping_is_no_scenario(text: str) -> None:
    with pytest.raises(ScenarioError, match="a scenario is a mapping"):
        parse_scenario(text)


def test_a_file_is_named_in_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("mode: async")
    with pytest.raises(ScenarioError, match=r"job.yaml: samplers: missing"):
        load_scenario(path)
    with pytest.raises(FileNotFoundError):
        load_scenario(tmp_path / "none.yaml")


def test_reading_a_scenario_does_not_load_the_compiler() -> None:
    code = "import sys, rljob_planner, rljob_planner.scenario, rljob_planner.lengths; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_examples_run_and_match_their_schemas(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    jsonschema.validate(json.loads(json.dumps(document)), schemas.schema("scenario"))
    report = simulate_scenario(load_scenario(path)).to_json()
    jsonschema.validate(json.loads(json.dumps(report)), schemas.schema("simulation-result"))


def test_there_are_examples_of_more_than_one_mode() -> None:
    assert {load_scenario(path).mode.value for path in FILES} >= {"sync", "async"}


def test_the_report_has_the_promised_keys() -> None:
    report: dict[str, Any] = simulate_scenario(
        parse_scenario(TEXT.replace("300\n", "20\n").replace("50\n", "5\n"))
    ).to_json()
    assert list(report) == [
        "period", "staleness", "rho", "samplerUtilization", "trainerUtilization", "meanRunning", "meanInFlight",
        "queueGroups", "tokensPerSecond", "droppedGroups", "wastedTokens", "trainedMeanLength",
    ]  # fmt: skip
    assert list(report["period"]) == ["mean", "p10", "p50", "p90"]
    assert list(report["staleness"]) == ["mean", "p95", "max"]
    assert list(report["queueGroups"]) == ["mean", "max"]
    assert json.loads(json.dumps(report)) == report


@pytest.mark.parametrize("name", schemas.SCHEMAS)
def test_schemas_are_those_of_the_models(name: str) -> None:
    assert schemas.path(name).read_text(encoding="utf-8") == schemas.text(name), "run: python -m dev.schemas"


def test_the_schema_rejects_what_the_model_rejects() -> None:
    document = yaml.safe_load(TEXT.replace("1e-8", "1.0e-8"))
    jsonschema.validate(document, schemas.schema("scenario"))
    document["samplers"]["maxRuning"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schemas.schema("scenario"))
