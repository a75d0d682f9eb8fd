"""The example under a real torchrun: pods come and go, and the run ends in the weights of one that was never disturbed.

A pod is a process here with a layout folder and a port of metrics; what the operator writes and waits for, the test writes and waits for.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import rljob_runtime
from dev.controlplane.ports import free_ports
from rljob_runtime import Layout

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch-elastic"
STEPS = 400
LONG_S = 400.0
"""Nothing here takes so long on two busy cores."""


def layout_text(
    generation: int, port: int, trainers: int, *, draining: tuple[str, ...] = (), checkpoint: bool = False
) -> str:
    return json.dumps(
        {
            "generation": generation,
            "phase": "draining" if draining or checkpoint else "steady",
            "samplers": {"replicas": 0, "gpusPerReplica": 1, "tensorParallel": 1, "maxRunning": 1, "endpoints": []},
            "trainers": {
                "replicas": trainers,
                "gpusPerReplica": 1,
                "dp": trainers,
                "tp": 1,
                "pp": 1,
                "ep": 1,
                "rendezvous": f"127.0.0.1:{port}",
            },
            "inFlightCap": 1,
            "maxStaleness": 0,
            "draining": list(draining),
            "checkpoint": checkpoint,
        }
    )


class Pods:
    """Trainer pods as processes."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.layout, self.checkpoints = folder / "layout", folder / "checkpoints"
        for each in (self.layout, self.checkpoints):
            each.mkdir(parents=True)
        self.port = free_ports(1)[0]
        self.ports: dict[str, int] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def publish(self, text: str) -> None:
        partial = self.layout / "partial"
        partial.write_text(text)
        partial.rename(self.layout / "layout.json")

    def start(self, name: str, shape: str, *, processes: int = 1, steps: int = STEPS, pace_s: float = 0.05) -> None:
        (self.ports[name],) = free_ports(1)
        package = Path(rljob_runtime.__file__).parent.parent
        line = [
            *(
                str(self.python),
                str(EXAMPLE / "launch.py"),
                "--shape",
                shape,
                "--most",
                "4",
                "--processes",
                str(processes),
            ),
            *("--layout", str(self.layout), str(EXAMPLE / "train.py"), "--layout", str(self.layout)),
            *("--checkpoints", str(self.checkpoints), "--steps", str(steps), "--metrics-port", str(self.ports[name])),
            *("--pace", str(pace_s)),
        ]
        env = {**os.environ, "PYTHONPATH": str(package), "POD_IP": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(line, env=env, stdout=log, stderr=log, start_new_session=True)

    def metric(self, pod: str, name: str) -> float | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[pod]}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return None
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)

    def version(self) -> float:
        """What rank 0 says, in whichever pod it is; -1 while nobody does."""
        found = [self.metric(pod, "rljob_policy_version") for pod in self.running]
        return max((each for each in found if each is not None), default=-1.0)

    def acknowledged(self) -> float:
        """The minimum over the pods, as the operator takes it; -1 while one of them is silent."""
        found = [self.metric(pod, "rljob_layout_generation") for pod in self.running]
        return min(-1.0 if each is None else each for each in found)

    def wait(self, what: Callable[[], bool]) -> None:
        until = time.monotonic() + LONG_S
        while not what():
            assert time.monotonic() < until, self.logs()
            for name, process in self.running.items():
                assert process.poll() in (None, 0), f"{name} ended with {process.returncode}\n{self.logs()}"
            time.sleep(0.1)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.ports)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self.running.pop(name)
        process.send_signal(number)
        process.wait(LONG_S)

    def close(self) -> None:
        # By SIGTERM: torchrun ends its workers then, which are in sessions of their own and would outlive it otherwise.
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(LONG_S)
            finally:
                process.kill()


@pytest.fixture
def pods(vllm_python: Path, tmp_path: Path) -> Iterator[Callable[[str], Pods]]:
    made: list[Pods] = []

    def make(name: str) -> Pods:
        made.append(Pods(vllm_python, tmp_path / name))
        return made[-1]

    yield make
    for each in made:
        each.close()


def weights(of: Pods) -> list[float]:
    """The weights of the last checkpoint, and its version in front."""
    script = (
        "import json, sys, torch; s = torch.load(sys.argv[1]); "
        "print(json.dumps([s['version'], *torch.cat([p.flatten() for p in s['policy'].values()]).tolist()]))"
    )
    done = subprocess.run(
        [of.python, "-c", script, of.checkpoints / "checkpoint.pt"],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=True,
    )
    found: list[float] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(1200)
def test_pods_come_and_go_and_the_run_ends_as_if_they_had_not(pods: Callable[[str], Pods]) -> None:
    alone = pods("alone")
    alone.publish(layout_text(1, alone.port, 1))
    alone.start("t-0", "restart", pace_s=0.0)
    alone.wait(lambda: alone.running["t-0"].poll() == 0)
    expected = weights(alone)
    assert expected[0] == STEPS

    job = pods("job")
    job.publish(layout_text(1, job.port, 2))
    for pod in ("t-0", "t-1"):
        job.start(pod, "elastic")
    job.wait(lambda: job.acknowledged() == 1 and job.version() >= 3)
    assert "of 2 from version" in job.log("t-0")

    # One more: the others are started anew where they are.
    job.publish(layout_text(2, job.port, 3))
    job.start("t-2", "elastic")
    job.wait(lambda: job.acknowledged() == 2 and "of 3 from version" in job.log("t-2"))
    at = job.version()
    job.wait(lambda: job.version() > at)

    # One less, and not by its own will: announced, acknowledged by all, then stopped.
    job.publish(layout_text(3, job.port, 2, draining=("t-2",)))
    job.wait(lambda: job.acknowledged() == 3)
    at = job.version()
    job.stop("t-2")
    job.wait(lambda: job.version() > at + 3 and job.acknowledged() == 3)

    # The other shape, from the same checkpoint: all go after a checkpoint, one starts, with two processes.
    job.publish(layout_text(4, job.port, 1, checkpoint=True))
    job.wait(lambda: job.acknowledged() == 4)
    at = job.version()
    saved = weights(job)
    assert saved[0] == at, "nothing is trained after the checkpoint that was acknowledged"
    for pod in ("t-1", "t-0"):
        job.stop(pod)
    job.publish(layout_text(5, job.port, 1))
    job.start("t-0", "restart", processes=2, pace_s=0.0)
    job.wait(lambda: f"rank 1 of 2 from version {at:.0f}" in job.log("t-0"))
    job.wait(lambda: job.running["t-0"].poll() == 0)

    assert weights(job) == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.timeout(1200)
def test_processes_of_a_pod_speak_on_one_page(pods: Callable[[str], Pods]) -> None:
    job = pods("two")
    job.publish(layout_text(1, job.port, 1))
    job.start("t-0", "restart", processes=2, steps=5000)
    job.wait(lambda: job.acknowledged() == 1 and job.version() >= 2)
    job.publish(layout_text(2, job.port, 1))
    job.wait(lambda: job.acknowledged() == 2)


@pytest.fixture
def launch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("launch", EXAMPLE / "launch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("shape", "nodes"), [("restart", "3"), ("elastic", "1:8")])
def test_the_world_is_what_the_layout_says(
    launch: ModuleType, shape: str, nodes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLJOB_UID", "a-b")
    layout = Layout.parse(layout_text(1, 29500, 3))
    line = launch.command(layout, shape=shape, most=8, processes=4, program=["train.py", "--steps", "1"])
    assert line[0] == sys.executable
    assert {f"--nnodes={nodes}", "--nproc-per-node=4", "--rdzv-endpoint=127.0.0.1:29500", "--rdzv-id=a-b"} <= set(line)
    assert line[-3:] == ["train.py", "--steps", "1"]
