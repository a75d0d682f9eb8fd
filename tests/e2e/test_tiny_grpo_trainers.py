"""The tiny GRPO job's trainers as processes of their own, with torch: they regroup at a step boundary, survive losses, and resume.

The samplers are doubles that answer at random: what they write does not matter here.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.controlplane.ports import free_ports
from tests.unit.tiny_grpo_double import EOS, Double, double

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("examples/tiny-grpo", "runtime")),
    "OMP_NUM_THREADS": "1",
    "POD_IP": "127.0.0.1",
}
PATIENCE_S = 240.0


class Trainers:
    """The job's shared directory, its layout, and its trainer processes by ordinal."""

    def __init__(self, python: Path, directory: Path, sampler: Double) -> None:
        self.python, self.directory, self.sampler = python, directory, sampler
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.ports = dict(enumerate(free_ports(3)))
        self.generation = 0
        subprocess.run(
            [python, "-m", "tiny_grpo.model", directory / "model", "--until=0"],
            env=ENVIRONMENT,
            check=True,
            timeout=180,
        )

    def announce(self, replicas: int) -> int:
        self.generation += 1
        one = {"gpusPerReplica": 1}
        layout = {
            "generation": self.generation,
            "phase": "steady",
            "samplers": {
                **one, "replicas": 1, "tensorParallel": 1, "maxRunning": 8,
                "endpoints": [{"pod": "s", "url": self.sampler.url}],
            },
            "trainers": {**one, "replicas": replicas, "dp": replicas, "tp": 1, "pp": 1, "ep": 1, "rendezvous": ""},
            "inFlightCap": 16,
            "maxStaleness": 1,
            "draining": [],
            "checkpoint": False,
        }  # fmt: skip
        partial = self.directory / "new.json"
        partial.write_text(json.dumps(layout))
        (self.directory / "layout").mkdir(exist_ok=True)
        partial.replace(self.directory / "layout" / "layout.json")
        return self.generation

    def start(self, ordinal: int) -> None:
        log = (self.directory / f"trainer-{ordinal}.log").open("ab")
        self.processes[ordinal] = subprocess.Popen(
            [
                self.python, "-m", "tiny_grpo.train", f"--layout={self.directory / 'layout'}",
                f"--shared={self.directory}", "--steps=100000", "--prompts-per-step=2", "--samples-per-prompt=4",
                "--length-trace=6", f"--port={self.ports[ordinal]}",
            ],
            env={**ENVIRONMENT, "POD_NAME": f"job-trainers-{ordinal}"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def kill(self, ordinal: int) -> None:
        self.processes[ordinal].kill()
        self.processes[ordinal].wait()

    def history(self) -> list[dict[str, Any]]:
        file = self.directory / "history.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def acknowledged(self, ordinal: int) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[ordinal]}/metrics", timeout=5) as answer:
                found = re.search(r"^rljob_layout_generation (\S+)$", answer.read().decode(), re.MULTILINE)
        except (urllib.error.URLError, OSError):
            return 0
        return int(float(found[1])) if found else 0

    def wait(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def trained_by(self, world: int) -> None:
        """Wait until steps that start from now on are trained by ``world`` processes."""
        steps = len(self.history())
        self.wait(lambda: len(self.history()) > steps + 2 and self.history()[-1]["trainers"] == world)

    def logs(self) -> str:
        return "\n".join(f"{f.name}:\n{f.read_text()[-1500:]}" for f in sorted(self.directory.glob("*.log")))


@pytest.fixture
def trainers(vllm_python: Path, tmp_path: Path) -> Iterator[Trainers]:
    rng = random.Random(0)
    with double() as sampler:
        sampler.tokens = lambda: [*(rng.randint(7, 106) for _ in range(6)), EOS]
        made = Trainers(vllm_python, tmp_path, sampler)
        try:
            yield made
        finally:
            for process in made.processes.values():
                process.kill()
                process.wait()


def test_trainers_join_and_leave_at_step_boundaries(trainers: Trainers) -> None:
    trainers.announce(1)
    trainers.start(0)
    trainers.trained_by(1)

    two = trainers.announce(2)
    trainers.trained_by(1)
    assert trainers.acknowledged(0) == two - 1, "a layout was acknowledged before its trainers were there"
    trainers.start(1)
    trainers.trained_by(2)
    trainers.wait(lambda: [trainers.acknowledged(i) for i in (0, 1)] == [two, two])

    one = trainers.announce(1)
    trainers.wait(lambda: [trainers.acknowledged(i) for i in (0, 1)] == [one, one])
    trainers.trained_by(1)
    versions = [line["version"] for line in trainers.history()]
    assert versions == list(range(1, len(versions) + 1)), "a version was lost or trained twice"


def test_a_trainer_that_dies_costs_no_step(trainers: Trainers) -> None:
    trainers.announce(2)
    trainers.start(0)
    trainers.start(1)
    trainers.trained_by(2)
    trainers.kill(1)
    trainers.trained_by(1)
    trainers.start(1)
    trainers.trained_by(2)
    versions = [line["version"] for line in trainers.history()]
    assert versions == list(range(1, len(versions) + 1))


def test_a_leader_that_dies_resumes_from_its_last_step(trainers: Trainers) -> None:
    trainers.announce(2)
    trainers.start(0)
    trainers.start(1)
    trainers.trained_by(2)
    trainers.kill(0)
    before = trainers.history()[-1]["version"]
    trainers.start(0)
    trainers.trained_by(2)
    versions = [line["version"] for line in trainers.history()]
    # The step under way may have been written to the checkpoint and not to the history.
    resumed = versions[versions.index(before) + 1]
    assert before < resumed <= before + 2
    assert trainers.sampler.version == str(versions[-1]) or int(trainers.sampler.version) == versions[-1] + 1


SAME_STEP = """
import pathlib, random, sys, torch
from tiny_grpo.learner import Learner, scored
from tiny_grpo.samples import Group, Sample, Span
from tiny_grpo.task import EOS, Kind, problem
import torch.distributed as dist

rank, directory = int(sys.argv[1]), pathlib.Path(sys.argv[2])
torch.set_num_threads(1)
rng = random.Random(0)
groups = []
for _ in range(3):
    answers = [tuple(rng.randint(7, 106) for _ in range(rng.randint(1, 9))) for _ in range(3)]
    groups.append(Group(problem(Kind.SORT, 5, rng), tuple(
        Sample(a, tuple(-rng.uniform(3, 6) for _ in a), (Span(0, len(a)),), rng.random()) for a in answers)))
batch = scored(groups)
alone, shared = Learner(directory / "model", 1e-3), Learner(directory / "model", 1e-3)
dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=2)
one, two = alone.step(batch), shared.step(batch, rank, 2, dist.all_reduce)
for a, b in zip(alone.model.parameters(), shared.model.parameters()):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
for key, value in vars(one).items():
    assert abs(value - vars(two)[key]) < 1e-4, (key, value, vars(two)[key])
"""


def test_a_step_is_the_same_on_two_processes(vllm_python: Path, tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([vllm_python, "-m", "tiny_grpo.model", tmp_path / "model", "--until=0"], env=environment, check=True)
    both = [
        subprocess.Popen([vllm_python, "-c", SAME_STEP, str(rank), tmp_path], env=environment, stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    for process in both:
        _, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors.decode()
