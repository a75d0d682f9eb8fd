"""Makes the baseline that upgrades are tested from, out of the repository's own history: ``python -m tests.chart.baseline.make``.

The baseline is the last commit before the chart had templates: CRDs and rules of roles that were applied by kubectl, and the
operator. What a cluster held then is kept here as a chart, byte for byte, so that ``helm upgrade`` from it is real, together with the children
that the operator of that commit made of ``jobs.yaml``. Both are files of the repository: a clone without history still tests against them.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

COMMIT = "8a83c02"
"""The baseline."""

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CHART = HERE / "chart"
CHILDREN = HERE / "children.json"

_FILES = (
    "crds/rljob.dev_rljobs.yaml",
    "crds/rljob.dev_rljobprofiles.yaml",
    "charts/rljob-operator/files/clusterrole.yaml",
    "charts/rljob-operator/files/role.yaml",
)

_DUMP = """
import json, sys
from rljob_operator.children import sampler_workload, trainer_workload
from rljob_operator.companions import companions
from rljob_planner.api.spec import RLJob
from rljob_planner.split import SamplerSplit, Split, TrainerSplit

split = Split(
    mode="async",
    samplers=SamplerSplit(replicas=8, gpus_per_replica=2, tensor_parallel=2, max_running=64),
    trainers=TrainerSplit(replicas=2, gpus_per_replica=8, dp=16, tp=1, pp=1, ep=1),
    in_flight=512,
)
made = {}
for raw in json.load(sys.stdin):
    job = RLJob.model_validate(raw)
    children = [sampler_workload(job, split, 3), trainer_workload(job, split, 2), *companions(job, drivers=1, sandboxes=4)]
    made[raw["metadata"]["name"]] = [c for c in children if c["kind"] in ("Deployment", "StatefulSet")]
json.dump(made, sys.stdout)
"""


class NoHistoryError(RuntimeError):
    """The clone does not hold the baseline's commit."""


def jobs() -> list[dict[str, Any]]:
    """The jobs of ``jobs.yaml``, whole."""
    container = {"name": "main", "image": "registry.example/main:1"}
    found = []
    for each in yaml.safe_load((HERE / "jobs.yaml").read_text()):
        spec = each["spec"]
        base: dict[str, Any] = {
            "gpus": 32,
            "model": {"name": "Qwen/Qwen3-8B"},
            "workload": {
                "promptsPerStep": 16,
                "samplesPerPrompt": 8,
                "steps": 100,
                "promptTokens": {"mean": 200},
                "responseTokens": {"mean": 1000, "max": 8000},
                **spec.get("workload", {}),
            },
            "staleness": {"max": 4},
        }
        for role in ("sampler", "trainer"):
            base[role] = {"template": {"spec": {"containers": [container]}}, **spec.get(role, {})}
        metadata = {"name": each["name"], "namespace": "rl", "uid": f"uid-{each['name']}"}
        head = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": metadata}
        found.append({**head, "spec": {**spec, **base}})
    return found


@contextlib.contextmanager
def checkout(commit: str = COMMIT) -> Iterator[Path]:
    """The tree of a commit in a folder of its own; raises NoHistoryError in a clone that is too shallow for it."""
    got = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True, check=False)
    if got.returncode != 0:
        raise NoHistoryError(f"the clone does not hold the commit {commit}: git fetch --unshallow")
    with tempfile.TemporaryDirectory(prefix="baseline-") as folder:
        archive = Path(folder) / "tree.tar"
        archive.write_bytes(got.stdout)
        tree = Path(folder) / "tree"
        with tarfile.open(archive) as tar:
            # The first releases of Python 3.11 know no filter, and what was packed here needs none.
            tar.extractall(tree, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        yield tree


def python_path(tree: Path) -> str:
    """PYTHONPATH under which the packages of a tree are found before those that are installed."""
    return os.pathsep.join(str(tree / part) for part in ("planner", "operator", "runtime"))


def main() -> int:
    """Writes the chart's files and the children anew."""
    with checkout() as tree:
        for name in _FILES:
            (CHART / "files" / Path(name).name).write_bytes((tree / name).read_bytes())
        dumped = subprocess.run(
            [sys.executable, "-c", _DUMP],
            input=json.dumps(jobs()),
            text=True,
            capture_output=True,
            check=True,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": python_path(tree)},
        )
    CHILDREN.write_text(json.dumps(json.loads(dumped.stdout), indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
