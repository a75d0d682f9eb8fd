from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner, Result

import rljob_planner
from dev import schemas
from rljob_operator.cli import app
from rljob_planner import search
from rljob_planner import simulate as simulation
from rljob_planner.api.spec import RLJob
from rljob_planner.placement import default_rooms
from rljob_planner.report import why

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "crds" / "samples").glob("*.yaml"))
SMALL = (ROOT / "crds" / "samples" / "math-short.yaml").read_text(encoding="utf-8")
SCENARIOS = Path(rljob_planner.__file__).parent / "data" / "scenarios"

PLAN_KEYS = [
    "split", "period", "staleness", "runTime", "cost", "synchronousPeriod", "oneStepOffPeriod", "speedup", "bottleneck",
    "confidence", "candidates", "neighbours", "lengthSweep", "elasticity", "pareto", "sandboxes", "notes",
]  # fmt: skip


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=text)


@cache
def planned(*arguments: str, text: str = SMALL) -> dict[str, Any]:
    result = run("plan", "-", "-o", "json", *arguments, text=text)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def said(*arguments: str, text: str | None = None) -> str:
    """What an input that is wrong is answered with."""
    result = run(*arguments, text=text)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_every_sample_plans_and_matches_the_schema(path: Path) -> None:
    result = run("plan", str(path), "--output", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    jsonschema.validate(found, schemas.schema("plan"))
    budget = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["gpus"]
    for split in [found["split"], *(c["split"] for c in found["candidates"])]:
        s, t = split["samplers"], split["trainers"]
        used = max if split["mode"] == "sync" else sum
        assert used((s["replicas"] * s["gpusPerReplica"], t["replicas"] * t["gpusPerReplica"])) <= budget


def test_a_plans_json_has_the_promised_keys() -> None:
    found = planned()
    assert list(found) == PLAN_KEYS
    assert list(found["split"]) == ["mode", "samplers", "trainers", "inFlight"]
    assert list(found["split"]["samplers"]) == ["replicas", "gpusPerReplica", "tensorParallel"]
    assert list(found["split"]["trainers"]) == ["replicas", "gpusPerReplica", "dp", "tp", "pp", "ep"]
    assert list(found["period"]) == ["mean", "p10", "p50", "p90"]
    assert list(found["staleness"]) == ["mean", "p95", "max", "ratioVariance"]
    assert list(found["runTime"]) == ["p10", "p50", "p90"]
    assert list(found["candidates"][0]) == ["split", "period", "staleness", "feasible", "reason", "ratioVariance"]
    assert list(found["neighbours"][0]) == list(found["candidates"][0])
    assert list(found["lengthSweep"][0]) == ["factor", "split", "period", "meanTokens"]
    assert list(found["elasticity"]) == ["decode", "train", "sync", "tail"]
    assert found["speedup"] == pytest.approx(found["synchronousPeriod"] / found["period"]["mean"], rel=1e-5)
    assert found["candidates"][0]["split"] == found["split"]
    assert all(c["reason"] for c in found["candidates"][1:])


def test_yaml_says_the_same_as_json() -> None:
    result = run("plan", "-", "-o", "yaml", text=SMALL)
    assert yaml.safe_load(result.stdout) == planned()


def test_a_report_for_people_says_what_and_why() -> None:
    result = run("plan", "-", text=SMALL)
    assert result.exit_code == 0
    best = planned()["split"]
    s, t = best["samplers"], best["trainers"]
    label = f"{s['replicas']}×{s['gpusPerReplica']} samplers + {t['replicas']}×{t['gpusPerReplica']} trainers"
    for words in (
        "math-short: Qwen/Qwen3-8B (8.19B, sampled in bf16) on 16 GPUs (h100-sxm-80gb), 2 nodes of 8 GPUs, 300 steps",
        label,
        f"at most {best['inFlight']} samples in flight",
        "1 trainer fewer",
        "1 trainer more",
        "limit 2 under bound admission",
        "p90",
        "for the run",
        "not measured: times rest on data sheets",
        "Best split at other response lengths",
        "10 % faster decoding: period −",
        "in -o json",
    ):
        assert words in result.stdout
    assert "Traceback" not in result.output


def test_a_number_format_in_the_name_of_the_model_is_not_taken_silently() -> None:
    named = SMALL.replace("    name: Qwen/Qwen3-8B\n", "    name: Qwen/Qwen3-8B-FP8\n")
    assert named != SMALL
    words = (
        "the name Qwen/Qwen3-8B-FP8 says fp8, but samplers are planned with bf16 weights: spec.model.weights says which"
    )
    assert words in run("plan", "-", "-o", "json", text=named).stderr
    stated = named.replace("    name: Qwen/Qwen3-8B-FP8\n", "    name: Qwen/Qwen3-8B-FP8\n    weights: fp8\n")
    assert run("plan", "-", "-o", "json", text=stated).stderr == ""


def test_a_job_that_should_stay_synchronous_hears_that_first() -> None:
    # With max 0 only samples of the newest version are trained, so side by side one half always waits for the other.
    text = SMALL.replace("max: 2  ", "max: 0  ")
    assert text != SMALL
    found = planned(text=text)
    assert found["split"]["mode"] == "sync"
    assert found["speedup"] < 1
    assert found["period"]["mean"] == found["synchronousPeriod"]
    assert found["staleness"] == {"mean": 0, "p95": 0, "max": 0, "ratioVariance": 0}
    assert found["candidates"][0]["split"]["mode"] == "async"
    report = run("plan", "-", text=text).stdout
    assert report.splitlines()[2].startswith("Stay synchronous")
    assert "it would deploy the best asynchronous split" in " ".join(report.split())


def test_nodes_and_accelerator_may_be_given() -> None:
    assert planned("--nodes", "4x4")["split"]["samplers"]["gpusPerReplica"] <= 4
    faster = planned("--accelerator", "B200")
    assert faster["period"]["mean"] < planned()["period"]["mean"]


def test_gpus_without_a_price_have_no_cost() -> None:
    assert planned("--accelerator", "H20")["cost"] is None
    assert "unknown: there is no price" in run("plan", "-", "--accelerator", "H20", text=SMALL).stdout


def test_the_first_job_of_a_file_counts() -> None:
    second = SMALL.replace("math-short", "another").replace("gpus: 16", "gpus: 24")
    text = f"kind: ConfigMap\nmetadata: {{name: x}}\n---\n{SMALL}\n---\n{second}"
    assert "math-short: Qwen/Qwen3-8B (8.19B" in run("plan", "-", text=text).stdout


def test_a_list_as_kubectl_prints_it_is_looked_into() -> None:
    job = yaml.safe_load(SMALL)
    job["metadata"] |= {"namespace": "rl", "uid": "u", "managedFields": [{"manager": "kubectl"}]}
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [{"kind": "Pod"}, job]})
    assert planned(text=text)["split"] == planned()["split"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gpus: 16 ", 'gpus: "16" ', "stdin: spec.gpus: write a whole number, without quotes"),
        (
            "promptsPerStep",
            "promptPerStep",
            "spec.workload.promptPerStep: there is no such field: did you mean promptsPerStep?",
        ),
        ("max: 8192", "max: 800", "spec.workload.responseTokens.mean: responseTokens.mean is above"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-9B", "near are Qwen/Qwen3-8B"),
        ("H100-SXM", "H10-SXM", "write one of"),
        ("    steps: 300\n", "", "spec.workload.steps: is missing"),
        ("kind: RLJob", "kind: Pod", "kind: is 'Pod': write RLJob"),
        ("bound: admission", "bound: [1", "not valid YAML"),
        ("gpus: 16 ", "gpus: 16\n  gpus: 8 ", "the key gpus stands here twice"),
    ],
)
def test_what_is_wrong_in_a_job_is_said(old: str, new: str, words: str) -> None:
    assert old in SMALL
    message = said("plan", "-", text=SMALL.replace(old, new, 1))
    assert words in message
    assert all(line.startswith("rljob: ") for line in message.splitlines())


def test_all_problems_of_a_job_are_said_at_once() -> None:
    message = said("plan", "-", text=SMALL.replace("    steps: 300\n", "").replace("gpus: 16 ", "gpus: many "))
    assert len(message.splitlines()) == 2


def test_a_job_without_a_gpu_type_may_name_one() -> None:
    text = "\n".join(line for line in SMALL.splitlines() if "accelerator" not in line)
    assert "--accelerator" in said("plan", "-", text=text)
    assert planned("--accelerator", "H100", text=text) == planned()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file or directory"),
        (b"", "there is nothing in it"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
        (b"[1, 2]", "this is no RLJob"),
        (b"a: 2026-99-99", "not valid YAML"),
        (b"[" * 5000, "not valid YAML"),
    ],
)
def test_a_file_that_is_no_job_is_an_error(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    if content is not None:
        path.write_bytes(content)
    message = said("plan", str(path))
    assert words in message
    assert str(path) in message


def test_a_folder_is_no_job(tmp_path: Path) -> None:
    assert "is a directory" in said("plan", str(tmp_path))


def test_the_two_kinds_of_files_are_told_apart() -> None:
    scenario = SCENARIOS / "async.yaml"
    assert f"rljob simulate {scenario}" in said("plan", str(scenario))
    assert "rljob plan stdin" in said("simulate", "-", text=SMALL)


@pytest.mark.parametrize("nodes", ["8", "8x", "0x8", "8x0", "axb", "8x8;2x4"])
def test_nodes_that_make_no_sense_are_an_error(nodes: str) -> None:
    assert "--nodes" in said("plan", "-", "--nodes", nodes, text=SMALL)


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda p: p.stem)
def test_scenarios_are_simulated(path: Path) -> None:
    result = run("simulate", str(path), "-o", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    jsonschema.validate(found, schemas.schema("simulation-result"))
    assert yaml.safe_load(run("simulate", str(path), "-o", "yaml").stdout) == found
    report = run("simulate", str(path)).stdout
    for words in ("Period", "Staleness", "Bottleneck", "trained response tokens a second"):
        assert words in report


def test_a_scenario_that_is_wrong_is_an_error() -> None:
    message = said("simulate", "-", text="mode: asink\nsampler: 1\n")
    assert "'asink' is not one of 'sync', 'one-step-off' or 'async'" in message
    assert "did you mean samplers" in message
    assert all(line.startswith("rljob: stdin: ") for line in message.splitlines())


def test_a_scenario_that_never_ends_is_an_error() -> None:
    text = (SCENARIOS / "async.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text) | {"staleness": {"bound": "hold", "max": 0}}
    assert "never publishes" in said("simulate", "-", text=json.dumps(document))


def test_help_has_examples() -> None:
    assert "--nodes 4x8,2x4" in run("plan", "--help").stdout
    assert "rljob simulate scenario.yaml" in run("simulate", "--help").stdout
    assert "operator" in run("--help").stdout


def test_whoever_waits_for_the_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[bool] = []
    monkeypatch.setattr(simulation, "is_compiled", lambda: False)
    monkeypatch.setattr(simulation, "warm_up", lambda: warmed.append(True))
    result = run("simulate", str(SCENARIOS / "sync.yaml"), "-o", "json")
    assert warmed == [True]
    assert "Compiling the simulator" in result.stderr
    assert json.loads(result.stdout)


def test_an_uncompiled_simulator_is_noticed(tmp_path: Path) -> None:
    code = "from rljob_planner.simulate import is_compiled; print(is_compiled())"
    env = {"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["plan", "--help"], ["operator", "--help"]])
def test_help_and_version_load_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom rljob_operator.cli import app\n"
        f"try:\n    app({arguments!r})\nexcept SystemExit as end:\n    assert end.code in (0, None), end.code\n"
        "heavy = {'numba', 'numpy', 'kopf', 'kubernetes', 'aiohttp', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    if arguments == ["version"]:
        assert ran.stdout.strip() == f"rljob {rljob_planner.__version__}"


def test_the_operator_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.split(".")[0] == "rljob_operator" and name != "rljob_operator.cli"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kopf", None)
    assert "pip install 'rljob-operator[operator]'" in said("operator", "run")


def test_the_operator_ends_without_a_cluster_to_connect_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    result = run("operator", "run")
    assert result.exit_code == 2
    assert "rljob: the operator has no cluster to connect to: " in result.stderr
    assert "set KUBECONFIG" in result.stderr


def test_the_operator_says_which_variable_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLJOB_OPERATOR_SCRAPE_INTERVAL", "soon")
    assert "RLJOB_OPERATOR_SCRAPE_INTERVAL: 'soon' is not a duration" in said("operator", "run")


def test_a_report_keeps_what_a_user_wrote() -> None:
    result = run("plan", "-", text=SMALL.replace("name: math-short", "generateName: '[bold]math-'"))
    assert result.stdout.startswith("[bold]math-: Qwen/Qwen3-8B (8.19B")


@pytest.mark.parametrize(
    ("bottleneck", "rho", "words"),
    [
        ("samplers", 1.3, "the staleness limit holds samplers back: left alone they would outrun the trainer (ρ 1.30)"),
        ("samplers", 0.8, "samplers are the bottleneck: the trainer waits for samples"),
        ("trainers", 1.3, "the trainer is the bottleneck"),
        ("sandboxes", 0.5, "too few sandboxes gate the samplers"),
        ("balanced", 1.0, "neither side is far ahead"),
    ],
)
def test_a_report_says_what_bounds_the_period(bottleneck: str, rho: float, words: str) -> None:
    spec = RLJob.model_validate(yaml.safe_load(SMALL)).spec
    plan = replace(search.plan(spec, default_rooms(16), detail=False), bottleneck=bottleneck, rho=rho)
    assert why(plan).startswith(words)
