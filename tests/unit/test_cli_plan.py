from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from rljob_operator.cli import app

ROOT = Path(__file__).resolve().parents[2]
SMALL_FILE = ROOT / "crds" / "samples" / "math-short.yaml"
SMALL = SMALL_FILE.read_text(encoding="utf-8")
SCENARIO = ROOT / "planner" / "rljob_planner" / "data" / "scenarios" / "async.yaml"


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=text)


@cache
def planned(*arguments: str, text: str = SMALL) -> dict[str, Any]:
    result = run("plan", "-", "-o", "json", *arguments, text=text)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def said(*arguments: str, text: str | None = SMALL, code: int = 2) -> str:
    result = run(*arguments, text=text)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert all(line.startswith("rljob: ") for line in result.stderr.splitlines())
    return result.stderr


def test_each_role_may_have_nodes_and_gpus_of_its_own() -> None:
    options = (
        "--sampler-nodes",
        "2x8",
        "--trainer-nodes",
        "1x8",
        "--sampler-accelerator",
        "H20",
        "--trainer-accelerator",
    )
    found = planned(*options, "H100", "--budget", "24")
    split = found["split"]
    assert split["samplers"]["replicas"] * split["samplers"]["gpusPerReplica"] <= 16
    assert split["trainers"]["replicas"] * split["trainers"]["gpusPerReplica"] <= 8
    assert found["synchronousPeriod"] is None
    title = " ".join(run("plan", "-", *options, "H100", "--budget", "24", text=SMALL).stdout.split())
    assert "2 nodes of 8 GPUs for samplers and 1 node of 8 GPUs for" in title
    assert "24 GPUs (h20-sxm-96gb and h100-sxm-80gb)" in title


def test_nodes_of_both_roles_may_be_joined_by_nodes_of_one() -> None:
    # 4 GPUs for either role and 8 for samplers alone: one trainer of 4 is all that fits, with no GPU left beside the samplers.
    split = planned("--nodes", "1x4", "--sampler-nodes", "1x8")["split"]
    assert split["trainers"]["replicas"] == 1
    assert split["samplers"]["replicas"] * split["samplers"]["gpusPerReplica"] == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--sampler-nodes", "2x8"),
            "--sampler-nodes: no node is left for trainers: write --trainer-nodes, or --nodes",
        ),
        (("--trainer-nodes", "2x8"), "--trainer-nodes: no node is left for samplers"),
        (("--sampler-nodes", "two", "--trainer-nodes", "1x8"), "--sampler-nodes: 'two' does not describe nodes"),
        (("--sampler-accelerator", "H20"), "say on which nodes, with --sampler-nodes and --trainer-nodes"),
        (
            ("--nodes", "2x8", "--trainer-accelerator", "H20"),
            "--trainer-accelerator: say on which nodes, with --trainer-nodes",
        ),
        (
            ("--sampler-nodes", "2x8", "--trainer-nodes", "1x8", "--sampler-accelerator", "H2000"),
            "--sampler-accelerator: ",
        ),
        (("--lengths", "/nowhere.jsonl"), "--lengths: /nowhere.jsonl: no such file or directory"),
        (("--calibration", "/nowhere.yaml"), "/nowhere.yaml: no such file or directory"),
        (("--namespace", "rl"), "--namespace: is of live jobs"),
        (("--context", "here"), "--context: is of live jobs"),
        (("--live", "math"), "either a FILE or --live NAME"),
    ],
)
def test_options_that_make_no_sense_are_an_error(options: tuple[str, ...], words: str) -> None:
    assert words in said("plan", "-", *options)


def test_a_plan_needs_a_job() -> None:
    assert "say which job: a FILE with an RLJob, - for stdin, or NAME" in said("plan", text=None)


def test_any_job_of_a_file_can_be_planned() -> None:
    second = SMALL.replace("math-short", "another").replace("gpus: 16", "gpus: 24")
    text = f"{SMALL}\n---\n{second}"
    result = run("plan", "-", "-o", "json", text=text)
    assert "stdin has 2 RLJobs, of which math-short is taken: --job takes another, another" in result.stderr
    assert (
        run("plan", "-", "--job", "another", text=text)
        .stdout.splitlines()[0]
        .startswith("another: Qwen/Qwen3-8B (8.19B, sampled in bf16) on 24 GPUs")
    )
    assert "has no RLJob called third: there are math-short, another" in said("plan", "-", "--job", "third", text=text)


def test_a_budget_replaces_that_of_the_file() -> None:
    found = planned("--budget", "8")
    split = found["split"]
    assert split["samplers"]["replicas"] * split["samplers"]["gpusPerReplica"] <= 4
    assert " on 24 GPUs (" in run("plan", "-", "--budget", "24", text=SMALL).stdout.splitlines()[0]


@pytest.mark.parametrize("budget", ["0", "-8", "many"])
def test_a_budget_is_a_positive_number(budget: str) -> None:
    result = run("plan", "-", "--budget", budget, text=SMALL)
    assert result.exit_code == 2
    assert "--budget" in result.stderr


def test_right_input_without_a_possible_split_has_an_exit_code_of_its_own() -> None:
    message = said("plan", "-", "--nodes", "4x2", code=3)
    assert message.startswith("rljob: stdin: ")
    assert said("plan", "-", text=SMALL.replace("Qwen/Qwen3-8B", "Qwen/Qwen3-235B-A22B"), code=3)


def test_lengths_of_a_log_replace_those_of_the_file(tmp_path: Path) -> None:
    draw = random.Random(1)
    log = tmp_path / "run.jsonl"
    lines = (json.dumps({"response_length": min(8192, int(draw.lognormvariate(7.0, 0.9)))}) for _ in range(3000))
    log.write_text("\n".join(lines), encoding="utf-8")
    result = run("plan", "-", "--lengths", str(log), "-o", "json", text=SMALL)
    assert result.exit_code == 0, result.stderr
    assert "rljob: response lengths from 3,000 samples of the log, as lognormal" in result.stderr
    # Responses of 1600 tokens instead of 900.
    assert json.loads(result.stdout)["period"]["mean"] > 1.4 * planned()["period"]["mean"]
    assert "as lognormal: mean 1," in run("plan", "-", "--lengths", str(log), text=SMALL).stdout


def test_a_tail_that_a_log_cannot_support_is_warned_of(tmp_path: Path) -> None:
    log = tmp_path / "few.jsonl"
    log.write_text("\n".join(str(n) for n in (120, 300, 310, 500, 800, 1400, 90, 260, 700, 3000)), encoding="utf-8")
    result = run("plan", "-", "--lengths", str(log), "-o", "json", text=SMALL)
    assert result.exit_code == 0, result.stderr
    assert "careful: " in result.stderr


def test_a_calibration_makes_the_plan_follow_measured_speeds(tmp_path: Path) -> None:
    file = tmp_path / "calibration.yaml"
    file.write_text(
        "{rljobCalibration: 1, samplers: {factor: 0.5}, trainers: {factor: 0.5}, residual: 0.04}", encoding="utf-8"
    )
    found = planned("--calibration", str(file))
    assert found["period"]["mean"] > 1.2 * planned()["period"]["mean"]
    assert found["confidence"] == pytest.approx(0.04)


def test_a_calibration_in_the_job_itself_is_planned_with(tmp_path: Path) -> None:
    inline = {"rljobCalibration": 1, "samplers": {"factor": 0.5}, "trainers": {"factor": 0.5}, "residual": 0.04}
    job = yaml.safe_load(SMALL)
    job["spec"]["calibration"] = {"inline": inline}
    file = tmp_path / "calibration.yaml"
    file.write_text(yaml.safe_dump(inline), encoding="utf-8")
    assert planned(text=yaml.safe_dump(job)) == planned("--calibration", str(file))
    job["spec"]["calibration"] = {"inline": {"rljobCalibration": 2}}
    assert "spec.calibration.inline: rljobCalibration" in said("plan", "-", text=yaml.safe_dump(job))


def test_words_about_a_plan_stay_out_of_its_json(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    log.write_text("\n".join(str(400 + i) for i in range(500)), encoding="utf-8")
    result = run("plan", "-", "--lengths", str(log), "-o", "json", text=SMALL)
    assert json.loads(result.stdout)
    assert result.stderr.startswith("rljob: ")


@pytest.mark.parametrize(
    "command", ["plan", "simulate", "report", "compare", "completion", "lengths", "calibrate"], ids=lambda c: c
)
def test_every_command_shows_examples(command: str) -> None:
    text = " ".join(run(command, "--help").stdout.split())
    assert "Examples:" in text
    assert f"rljob {command} " in text


def test_help_documents_the_exit_codes() -> None:
    text = " ".join(run("--help").stdout.split())
    assert "2 the input is wrong" in text
    assert "3 the input is right, but no split" in text


@pytest.mark.parametrize(("name", "shown"), [("rljob", "rljob plan"), ("kubectl-rljob", "kubectl rljob plan")])
def test_the_plugin_of_kubectl_calls_itself_by_its_name(name: str, shown: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text("from rljob_operator.cli import main\nmain()\n", encoding="utf-8")
    ran = subprocess.run([sys.executable, str(script), "plan", "--help"], capture_output=True, text=True, check=True)
    assert f"Usage: {shown} [OPTIONS]" in ran.stdout


def test_the_module_runs_as_the_command_does() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "rljob_operator.cli", "version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("rljob ")


def test_a_plan_without_a_cluster_loads_no_client_of_one() -> None:
    code = (
        "import sys\nfrom rljob_operator.cli import app\n"
        f"try:\n    app(['plan', {str(SMALL_FILE)!r}, '-o', 'json'])\nexcept SystemExit as end:\n    assert end.code in (0, None)\n"
        "heavy = {'kopf', 'kubernetes', 'aiohttp', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_for_their_shell(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert f"_RLJOB_COMPLETE=complete_{shell}" in result.stdout


def test_the_completion_script_is_valid_and_completes(tmp_path: Path) -> None:
    script = tmp_path / "completion.sh"
    script.write_text(run("completion", "bash").stdout, encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    command = tmp_path / "rljob"
    command.write_text(f"#!{sys.executable}\nfrom rljob_operator.cli import main\nmain()\n", encoding="utf-8")
    command.chmod(0o755)
    for words, at, wanted in (
        ("rljob pla", 1, "plan"),
        ("rljob plan --trainer-n", 2, "--trainer-nodes"),
        ("rljob completion f", 2, "fish"),
    ):
        asked = f'source {script}; COMP_WORDS=({words}); COMP_CWORD={at}; _rljob_completion {command}; echo "${{COMPREPLY[@]}}"'
        ran = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
        assert wanted in ran.stdout.split(), (words, ran.stdout, ran.stderr)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["pla"], ["plan"]),
        (["plan", "--trainer-n"], ["--trainer-nodes"]),
        (["completion", "f"], ["fish"]),
        (["plan", "x.y"], []),
    ],
)
def test_kubectl_completes_the_plugins_words(words: list[str], wanted: list[str]) -> None:
    code = "from rljob_operator.cli import kubectl_complete; kubectl_complete()"
    ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [*wanted, ":0"]


def test_an_unknown_shell_is_an_error() -> None:
    result = run("completion", "tcsh")
    assert result.exit_code == 2
    assert "'bash'" in result.stderr


def test_a_job_without_templates_is_planned_and_hears_that_it_lacks_them() -> None:
    job = yaml.safe_load(SMALL)
    del job["spec"]["sampler"]["template"]
    del job["spec"]["trainer"]
    result = run("plan", "-", "-o", "json", text=yaml.safe_dump(job))
    assert result.exit_code == 0, result.stderr
    assert "stdin has no spec.sampler.template and no spec.trainer.template: a plan needs none" in result.stderr
    assert json.loads(result.stdout)["split"]["samplers"]["replicas"] >= 1


def test_a_template_with_a_mistake_in_it_is_no_template_left_out() -> None:
    job = yaml.safe_load(SMALL)
    job["spec"]["sampler"]["template"]["spec"]["containers"] = []
    result = run("plan", "-", text=yaml.safe_dump(job))
    assert result.exit_code == 2
    assert "spec.sampler.template.spec.containers: is empty: write at least 1" in result.stderr


def test_sandboxes_that_everything_waits_for_are_named_as_the_bottleneck() -> None:
    scenario = (SCENARIO.parent / "agentic.yaml").read_text(encoding="utf-8")
    few = run("simulate", "-", text=scenario)
    assert "sandboxes: 64 of 64 are in use" in " ".join(few.stdout.split())
    enough = yaml.safe_load(scenario)
    del enough["workload"]["environment"]["sandboxes"]
    assert "sandboxes: " not in run("simulate", "-", text=yaml.safe_dump(enough)).stdout


def test_waste_of_a_simulation_is_a_share() -> None:
    scenario = yaml.safe_load(SCENARIO.read_text(encoding="utf-8"))
    scenario["staleness"] = {"bound": "drop", "max": 1}
    text = yaml.safe_dump(scenario)
    said = " ".join(run("simulate", "-", text=text).stdout.split())
    result = json.loads(run("simulate", "-", "-o", "json", text=text).stdout)
    assert result["wastedTokens"] > 0
    assert f"% of the response tokens: {result['wastedTokens']:,} in" in said


def test_a_limit_that_holds_samplers_back_is_named_as_the_bottleneck() -> None:
    scenario = yaml.safe_load(SCENARIO.read_text(encoding="utf-8"))
    scenario["staleness"] = {"bound": "admission", "max": 1}
    scenario["trainer"] = {"perStep": 0.5, "perToken": 3.5e-5}
    text = yaml.safe_dump(scenario)
    result = json.loads(run("simulate", "-", "-o", "json", text=text).stdout)
    assert result["rho"] > 1.05
    assert result["trainerUtilization"] < 0.9
    assert "the staleness limit: left alone samplers would outrun" in " ".join(
        run("simulate", "-", text=text).stdout.split()
    )
