"""The real trackers, where they are installed: that the functions which a bridge wraps are where it looks for them, with the parameters that it reads.

``pip install wandb tensorboardX tensorboard torch mlflow-skinny`` beside the development tools makes all of these run. None of them is
among these tools: together they are larger than all the rest, and nothing else needs them.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [module for module in modules if not installed(module)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


BRIDGE = 'from rljob_runtime import Reporter, bridge; b = bridge("skyrl", reporter=Reporter(sparse=True))'
LOOK = """
for family in b.reporter.registry.collect():
    for sample in family.samples:
        if sample.name in ("rljob_sample_staleness_versions_count", "rljob_weight_sync_seconds_sum", "rljob_bridge_errors_total"):
            print(sample.name, sample.value)
"""
HEARD = {
    "rljob_sample_staleness_versions_count": 3.0,
    "rljob_weight_sync_seconds_sum": 1.5,
    "rljob_bridge_errors_total": 0.0,
}


def heard(tmp_path: Path, code: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", code + LOOK],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "runtime"),
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        name: float(value) for name, value in (line.split() for line in done.stdout.splitlines() if "rljob_" in line)
    }


WANDB = """
import wandb
{before}
run = wandb.init(project="p")
{after}
for step in (1, 2, 3):
    wandb.log({{"async/staleness_mean": 0.5, "async/staleness_max": 1}}, step=step, commit=False)
    run.log({{"timing/sync_weights": 0.5}}, step=step, commit=True)
run.finish()
"""


@needs("wandb")
@pytest.mark.parametrize("when", ["before", "after"])
def test_wandb_is_heard_whether_the_run_was_started_before_or_after(tmp_path: Path, when: str) -> None:
    code = WANDB.format(**{"before": "", "after": "", when: BRIDGE})
    assert heard(tmp_path, code) == HEARD


WRITER = """
from {module} import SummaryWriter
writer = SummaryWriter("runs")
for step in (1, 2, 3):
    for key, value in (("async/staleness_mean", 0.5), ("async/staleness_max", 1), ("timing/sync_weights", 0.5)):
        writer.add_scalar(key, value, step)
writer.close()
"""


@pytest.mark.parametrize(
    "module",
    [
        pytest.param("tensorboardX", marks=needs("tensorboardX")),
        pytest.param("torch.utils.tensorboard", marks=needs("torch", "tensorboard")),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["bridge-first", "writer-first"])
def test_a_summary_writer_is_heard(tmp_path: Path, module: str, first: bool) -> None:
    writer = WRITER.format(module=module)
    code = f"{BRIDGE}\n{writer}" if first else f"import {module}\n{BRIDGE}\n{writer}"
    assert heard(tmp_path, textwrap.dedent(code)) == HEARD


MLFLOW = """
{before}
import mlflow
{after}
with mlflow.start_run():
    for step in (1, 2, 3):
        mlflow.log_metrics({{"async/staleness_mean": 0.5, "async/staleness_max": 1}}, step=step)
        mlflow.log_metric("timing/sync_weights", 0.5, step=step)
"""


@needs("mlflow")
@pytest.mark.parametrize("when", ["before", "after"])
def test_mlflow_is_heard(tmp_path: Path, when: str) -> None:
    assert heard(tmp_path, MLFLOW.format(**{"before": "", "after": "", when: BRIDGE})) == HEARD
