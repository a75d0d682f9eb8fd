"""The samples of the frameworks: each is planned, and says the same to the planner as to its framework."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rljob_operator.cli import app
from rljob_runtime.bridges.exporter import PORT

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "crds" / "samples" / "frameworks").glob("*.yaml"))
PAGE = ROOT / "docs" / "samples.md"

NAMES = [path.stem for path in SAMPLES]


@cache
def sample(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / f"crds/samples/frameworks/{name}.yaml").read_text(encoding="utf-8"))
    return found


def containers(spec: dict[str, Any], role: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec[role]["template"]["spec"]["containers"] if role in spec else []
    return found


def words(name: str) -> str:
    """Everything that the containers of a sample are started with."""
    told = [c for role in ("sampler", "trainer", "driver") for c in containers(sample(name)["spec"], role)]
    return " ".join(word for c in told for word in (*c.get("command", ()), *c.get("args", ())))


def test_there_is_one_for_each_framework() -> None:
    assert NAMES == ["areal", "nemo-rl", "prime-rl", "skyrl", "verl", "vllm-torchrun"]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_planned_within_its_budget(path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(path), "-o", "json"])
    assert result.exit_code == 0, result.stderr
    split = json.loads(result.stdout)["split"]
    gpus = sum(split[side]["replicas"] * split[side]["gpusPerReplica"] for side in ("samplers", "trainers"))
    assert 0 < gpus <= sample(path.stem)["spec"]["gpus"]


@pytest.mark.parametrize(
    ("name", "argument", "path"),
    [
        ("verl", "actor_rollout_ref.rollout.n=", "workload.samplesPerPrompt"),
        ("verl", "tensor_model_parallel_size=", "sampler.gpusPerReplica"),
        ("verl", "rollout.n_gpus_per_node=", "sampler.gpusPerReplica"),
        ("verl", "trainer.n_gpus_per_node=", "trainer.gpusPerReplica"),
        ("verl", "data.max_response_length=", "workload.responseTokens.max"),
        ("nemo-rl", "grpo.num_prompts_per_step=", "workload.promptsPerStep"),
        ("nemo-rl", "grpo.num_generations_per_prompt=", "workload.samplesPerPrompt"),
        ("nemo-rl", "max_trajectory_age_steps=", "staleness.max"),
        ("nemo-rl", "resources.gpus_per_node=", "sampler.gpusPerReplica"),
        ("skyrl", "trainer.policy_mini_batch_size=", "workload.promptsPerStep"),
        ("skyrl", "generator.n_samples_per_prompt=", "workload.samplesPerPrompt"),
        ("skyrl", "max_staleness_steps=", "staleness.max"),
        ("skyrl", "policy_num_gpus_per_node=", "trainer.gpusPerReplica"),
        ("skyrl", "max_generate_length=", "workload.responseTokens.max"),
        ("areal", "train_dataset.batch_size=", "workload.promptsPerStep"),
        ("areal", "gconfig.n_samples=", "workload.samplesPerPrompt"),
        ("areal", "rollout.max_head_offpolicyness=", "staleness.max"),
        ("areal", "gconfig.max_new_tokens=", "workload.responseTokens.max"),
        ("areal", "cluster.n_gpus_per_node=", "trainer.gpusPerReplica"),
        ("prime-rl", "--nproc-per-node=", "trainer.gpusPerReplica"),
        ("vllm-torchrun", "--nproc-per-node=", "trainer.gpusPerReplica"),
    ],
)
def test_what_the_planner_is_told_is_what_the_framework_is_told(name: str, argument: str, path: str) -> None:
    value: Any = sample(name)["spec"]
    for key in path.split("."):
        value = value[key]
    (said,) = set(re.findall(re.escape(argument) + r"(\d+)", words(name)))
    assert int(said) == value


def bridge_of(container: dict[str, Any]) -> dict[str, str]:
    """The settings of a container's bridge."""
    return {v["name"]: v["value"] for v in container.get("env", ()) if v["name"].startswith("RLJOB_BRIDGE")}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vllm-torchrun"])
def test_what_logs_has_the_bridge_of_its_framework_and_a_port_that_is_scraped(name: str) -> None:
    spec = sample(name)["spec"]
    told = [container for role in ("sampler", "trainer", "driver") for container in containers(spec, role)]
    watched = [container for container in told if bridge_of(container)]
    # Ray chooses the pod of the process that logs; prime-rl's servers log nothing.
    assert len(watched) == (2 if name == "prime-rl" else len(told))
    for container in watched:
        settings = bridge_of(container)
        assert settings.pop("RLJOB_BRIDGE") == name
        assert {"name": "metrics", "containerPort": PORT} in container["ports"]
        stated = {
            "RLJOB_BRIDGE_SAMPLES_PER_PROMPT": spec["workload"]["samplesPerPrompt"],
            "RLJOB_BRIDGE_PROMPTS_PER_STEP": spec["workload"]["promptsPerStep"],
        }
        assert {key: int(value) for key, value in settings.items()}.items() <= stated.items()


@pytest.mark.parametrize("name", NAMES)
def test_no_image_is_of_a_registry_that_a_reader_may_not_have(name: str) -> None:
    text = (ROOT / f"crds/samples/frameworks/{name}.yaml").read_text(encoding="utf-8")
    for image in re.findall(r"image: (\S+)", text):
        assert "." not in image.partition("/")[0] or "/" not in image, image


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_of_each_sample_how_far_it_goes(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"(../crds/samples/frameworks/{name}.yaml)" in text
    mode = sample(name)["spec"]["rebalance"]["mode"]
    row = next(line for line in text.splitlines() if f"frameworks/{name}.yaml" in line and line.startswith("|"))
    assert f"`{mode}`" in row
