"""How many jobs one operator carries: ``python -m dev.bench.scale [--jobs 200] [-o json]``.

Jobs of fifty pods each arrive one after the other on a real control plane whose nodes KWOK runs; after each of 25, 50, 100 and
200 of them come a wait until all are ready and a quiet time. The operator is a process of its own under the rights of an
installation and with an installation's clocks. Nothing is taken from its own word that can be seen from outside: children are
timed by a watch, from before the RLJob is sent until the last of them is seen; calls are counted by the API server (a FlowSchema
of its own counts what the operator sends and nothing else); memory and CPU time are those of the process. Only the time of a
pass is the operator's own, from its histogram.

The split of each job is pinned by its minima and maxima, so that every job has as many pods; nodes have 64 GPUs, so that the
heartbeats of nodes that only exist on paper do not eat the machine. Metrics come from a stand-in for Prometheus, so that every job is
read, decided on and reported each minute as in earnest. Jobs arrive at a stated pace: all at once they would measure
how fast this machine's controller manager creates ten thousand pods.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.bench.scale_metrics import RUNNING, SteadyMetrics
from dev.bench.scale_plane import CHILD_KINDS, OperatorProcess, Watched, Watcher, scale_plane
from dev.controlplane import ControlPlane, NodeSpec

ROWS = (25, 50, 100, 200)
"""Numbers of jobs at which everything is measured."""

NAMESPACE = "rl-team"
SAMPLERS = 48
TRAINERS = 2
TRAINER_GPUS = 8
GPUS = SAMPLERS + TRAINERS * TRAINER_GPUS

Json = dict[str, Any]


@dataclass(frozen=True)
class Clock:
    """How long the parts of a measurement last."""

    pace_s: float
    """Seconds between two RLJobs that arrive."""
    quiet_s: float
    """Seconds of a quiet time."""
    settle_s: float = 20.0
    """Seconds between the last job's readiness and the quiet time: status writes and events of the start are over by then."""
    start_timeout_s: float = 1200.0
    """How long the jobs of a row may take until all are ready."""


def job(name: str) -> Json:
    """An RLJob with a pinned split of fifty pods."""

    def template(container: str, port: int) -> Json:
        return {
            "spec": {
                "terminationGracePeriodSeconds": 30,
                "containers": [{"name": container, "image": "example.com/none:1", "ports": [{"containerPort": port}]}],
            }
        }

    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "gpus": GPUS,
            "nodes": {"tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]},
            "model": {"name": "Qwen/Qwen3-8B"},
            "workload": {
                "promptsPerStep": 64,
                "samplesPerPrompt": 8,
                "steps": 100000,
                "promptTokens": {"mean": 200},
                "responseTokens": {"mean": 2000, "cv": 1.0, "max": 16384},
            },
            "staleness": {"max": 4, "bound": "admission"},
            "sampler": {
                "gpusPerReplica": 1,
                "minReplicas": SAMPLERS,
                "maxReplicas": SAMPLERS,
                "maxRunning": RUNNING,
                "template": template("vllm", 8000),
            },
            "trainer": {
                "gpusPerReplica": TRAINER_GPUS,
                "minReplicas": TRAINERS,
                "maxReplicas": TRAINERS,
                "template": template("trainer", 9400),
            },
            # Read and decided on like any other; but a cap that is changed once, after some minutes, would be no quiet time.
            "rebalance": {"mode": "Initial"},
        },
    }


class Bench:
    """One run over a plane: jobs are added row by row and stay."""

    def __init__(self, plane: ControlPlane, operator: OperatorProcess, watcher: Watcher, clock: Clock) -> None:
        self._plane, self._operator, self._watcher, self._clock = plane, operator, watcher, clock
        self._sent: dict[str, float] = {}

    def row(self, jobs: int) -> Json:
        """Brings the number of jobs to ``jobs`` and measures."""
        passes = self._operator.passes()
        cpu_s = self._operator.cpu_s()
        began, before = time.monotonic(), len(self._sent)
        for index in range(before, jobs):
            due = began + (index - before) * self._clock.pace_s
            time.sleep(max(0.0, due - time.monotonic()))
            name = f"job-{index:03d}"
            self._sent[name] = time.monotonic()
            self._plane.api.request("POST", f"/apis/rljob.dev/v1alpha1/namespaces/{NAMESPACE}/rljobs", job(name))
            if index % 10 == 9:
                self._say(f"{index + 1} jobs sent")
        self._until_ready(jobs)
        started_s = time.monotonic() - began
        time.sleep(self._clock.settle_s)
        starting = self._operator.passes()
        starting_cpu_s = self._operator.cpu_s()
        calls, quiet = self._operator.calls(), time.monotonic()
        time.sleep(self._clock.quiet_s)
        calls, quiet_s = self._operator.calls() - calls, time.monotonic() - quiet
        idle = self._operator.passes() - starting
        new = [name for name in self._sent if int(name.removeprefix("job-")) >= before]
        children = [self._watcher.complete_at(name) - self._sent[name] for name in new]
        return {
            "jobs": jobs,
            "childrenP99Seconds": round(quantile(children, 0.99), 3),
            "reconcileP99Seconds": round((starting - passes).p99_s, 3),
            "idleCallsPerJobMinute": round(calls / jobs / quiet_s * 60.0, 2),
            "operatorRssMiB": round(self._operator.rss_mib(), 1),
            "operatorCpuSeconds": round(starting_cpu_s - cpu_s, 1),
            "pods": self._watcher.counted(Watched.PODS),
            "childrenP50Seconds": round(quantile(children, 0.5), 3),
            "idleReconcileP99Seconds": round(idle.p99_s, 3),
            "idleCpuShare": round((self._operator.cpu_s() - starting_cpu_s) / quiet_s, 3),
            "passes": round((starting - passes).count),
            "readySeconds": round(started_s, 1),
        }

    def _until_ready(self, jobs: int) -> None:
        deadline, said = time.monotonic() + self._clock.start_timeout_s, time.monotonic()
        while (ready := self._watcher.counted(Watched.READY_JOBS)) < jobs:
            self._plane.supervisor.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{ready} of {jobs} jobs are Running; logs are in {self._plane.data_dir / 'logs'}")
            if time.monotonic() - said > 20.0:
                said = time.monotonic()
                self._say(f"{ready} of {jobs} jobs are running")
            time.sleep(0.5)

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def quantile(values: list[float], q: float) -> float:
    """The quantile ``q`` of values that are not empty, by the nearest rank: with 25 of them the 99th percentile is the largest."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(q * len(ranked)))]


def measure(jobs: int, clock: Clock, log: Path | None = None) -> Iterator[Json]:
    """The rows for up to ``jobs`` jobs, one after the other; nothing is left running."""
    nodes = NodeSpec(count=jobs, gpus_per_node=GPUS, product="NVIDIA-H100-80GB-HBM3", name_prefix="big")
    stop = threading.Event()
    # As the image does: a process that compiles the simulator for itself keeps its compiler in memory.
    subprocess.run([sys.executable, "-c", "from rljob_planner.simulate import warm_up; warm_up()"], check=True)
    with scale_plane(nodes, NAMESPACE) as plane:
        watcher = Watcher(plane, NAMESPACE, stop)
        metrics = SteadyMetrics(watcher.pods_of)
        try:
            with tempfile.TemporaryDirectory() as folder:
                operator = OperatorProcess.start(plane, log or Path(folder) / "operator.log", metrics.url)
                bench = Bench(plane, operator, watcher, clock)
                for row in (*(n for n in ROWS if n < jobs), jobs):
                    yield bench.row(row)
        finally:
            stop.set()
            metrics.close()


def main() -> None:
    """Prints a table, or JSON with ``-o json``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--jobs", type=int, default=200, help="jobs of the last row; rows at 25, 50, 100 and 200 before it"
    )
    parser.add_argument("--pace", type=float, default=2.0, metavar="SECONDS", help="between two jobs that arrive")
    parser.add_argument("--quiet", type=float, default=90.0, metavar="SECONDS", help="length of a quiet time")
    parser.add_argument("--log", type=Path, help="where the operator's log goes; kept nowhere by default")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    rows = []
    for row in measure(arguments.jobs, Clock(arguments.pace, arguments.quiet), arguments.log):
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    result = {
        "rows": rows,
        "paceSeconds": arguments.pace,
        "quietSeconds": arguments.quiet,
        "podsPerJob": SAMPLERS + TRAINERS,
        "childKinds": list(CHILD_KINDS),
    }
    if arguments.output == "json":
        print(json.dumps(result, indent=1))
        return
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
