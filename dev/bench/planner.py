"""How fast the planner is, and where its time goes: ``python -m dev.bench.planner [-o json]``.

Every number is measured in this run on this machine, the pure-Python simulator's included: a ratio of two numbers from
different days says nothing. Where other work shares the machine, wall time says more about that; so CPU time and the load stand beside it. What a user waits for is a fresh process, so that is timed too, with machine code in numba's cache
as after an installation. Each search is timed in a process of its own, so that its memory is its own, and its code is loaded first.

The jobs are one mixture of experts and one dense model under each staleness bound. They grow with their budget: a job of 4096 GPUs
trains 64 times as many prompts a step as one of 64.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev.bench.simulator import seconds, simulation_speed

if TYPE_CHECKING:
    from rljob_planner.api.spec import RLJobSpec
    from rljob_planner.outcome import Plan

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "crds" / "samples"

BOUNDS = ("admission", "none", "hold", "drop")
MODELS = ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    simulated_steps: int
    reference_steps: int
    budgets: tuple[int, ...]
    """GPUs of the jobs that are searched, ascending; the first and the last under every bound."""
    bounds: tuple[str, ...]
    processes: int
    """Fresh processes of which the median counts; 0: none."""
    compiles: bool
    """Whether the simulator is compiled once more, into an empty cache."""


FULL = Size(8_000, 24, (64, 256, 1024, 4096), BOUNDS, 5, True)
TINY = Size(60, 3, (16,), ("admission",), 0, False)


def job(gpus: int, model: str, bound: str) -> RLJobSpec:
    """The benchmark's job for a budget: long answers, 16 samples a prompt, as many prompts a step as GPUs."""
    from rljob_planner.api.spec import RLJobSpec

    template = {"spec": {"containers": [{"name": "main", "image": "example.com/image"}]}}
    return RLJobSpec.model_validate(
        {
            "gpus": gpus,
            "accelerator": "H100-SXM",
            "model": {"name": model},
            "workload": {
                "promptsPerStep": gpus,
                "samplesPerPrompt": 16,
                "steps": 500,
                "promptTokens": {"mean": 300},
                "responseTokens": {"mean": 3000, "cv": 1.1, "max": 32768},
            },
            "staleness": {"max": 4, "bound": bound},
            "queue": {"capacity": 4 * gpus, "overflow": "block"},
            "sampler": {"template": template},
            "trainer": {"template": template},
        }
    )


def search(gpus: int, model: str, bound: str) -> dict[str, Any]:
    """One full search in this process: its time, and the memory of the process at its peak."""
    from rljob_planner.placement import default_rooms
    from rljob_planner.search import plan
    from rljob_planner.simulate import warm_up

    warm_up()
    spec = job(gpus, model, bound)
    rooms = default_rooms(gpus)
    worked = time.process_time()
    took = seconds(lambda: plan(spec, rooms), times=2)
    worked = (time.process_time() - worked) / 2
    where, found = stages(spec, rooms)
    return {
        "gpus": gpus,
        "model": model,
        "bound": bound,
        "seconds": took,
        "cpuSeconds": worked,
        "peakMiB": peak_mib(),
        "split": found.split.label(),
        "where": where,
    }


STAGES = {
    "screening": "line_up",
    "quickAndFull": "winners",
    "synchronous": "synchronous",
    "oneStepOff": "one_step_off",
    "neighbours": "settled",
    "lengthSweep": "length_sweep",
    "elasticity": "elasticity",
    "pareto": "pareto",
}
"""Functions of ``rljob_planner.search`` whose time is told apart."""


def stages(spec: RLJobSpec, rooms: Sequence[Any]) -> tuple[dict[str, float], Plan]:
    """Seconds of a plan by stage (one that runs inside another counts there), and the plan."""
    from unittest import mock

    from rljob_planner import search as module

    spent = dict.fromkeys(STAGES, 0.0)
    active: list[str] = []

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if active:
                return function(*args, **kwargs)
            active.append(name)
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] += time.perf_counter() - began
                active.pop()

        return call

    patches = {function: timed(name, getattr(module, function)) for name, function in STAGES.items()}
    with ExitStack() as stack:
        for function, patched in patches.items():
            stack.enter_context(mock.patch.object(module, function, patched))
        began = time.perf_counter()
        found = module.plan(spec, rooms)
        whole = time.perf_counter() - began
    return {**spent, "rest": whole - sum(spent.values())}, found


def peak_mib() -> float:
    """Most memory that this process has had resident."""
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage says begins with the size of the parent
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024.0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1024.0**2


def child(code: str, **environment: str) -> str:
    """What a fresh Python process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def children_cpu_s() -> float:
    """CPU seconds of the processes that this one has started and seen end."""
    times = os.times()
    return times.children_user + times.children_system


def process_speed(size: Size) -> dict[str, Any]:
    """Wall time of ``rljob plan`` as a fresh process, and what of it is start-up."""
    if size.processes == 0:
        return {"planProcessSeconds": None, "importSeconds": None, "loadSeconds": None, "planProcesses": []}
    command = [sys.executable, "-m", "rljob_operator.cli", "plan", "-o", "json"]
    processes: list[dict[str, Any]] = []
    for file in sorted(SAMPLES.glob("*.yaml")):
        say(f"rljob plan {file.name}")
        found: list[float] = []
        worked = children_cpu_s()
        for _ in range(size.processes):
            began = time.perf_counter()
            subprocess.run([*command, str(file)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            found.append(time.perf_counter() - began)
        worked = (children_cpu_s() - worked) / size.processes
        processes.append(
            {"file": file.name, "seconds": statistics.median(found), "least": min(found), "cpuSeconds": worked}
        )
    start = (
        "import time; a = time.perf_counter()\n"
        "import rljob_operator.cli, rljob_planner.api.reading, rljob_planner.search, yaml\n"
        "b = time.perf_counter()\n"
        "from rljob_planner.simulate import warm_up; warm_up()\n"
        "print(b - a, time.perf_counter() - b)"
    )
    runs = [[float(x) for x in child(start).split()] for _ in range(size.processes)]
    imports, loads = (statistics.median(column) for column in zip(*runs, strict=True))
    return {
        "planProcessSeconds": max(p["seconds"] for p in processes),
        "importSeconds": imports,
        "loadSeconds": loads,
        "planProcesses": processes,
    }


def compile_speed(size: Size) -> dict[str, Any]:
    """Seconds to compile the simulator into an empty cache, and to load it from there."""
    if not size.compiles:
        return {"compileSeconds": None, "cachedLoadSeconds": None}
    code = (
        "import time; from rljob_planner.simulate import warm_up\n"
        "a = time.perf_counter(); warm_up(); print(time.perf_counter() - a)"
    )
    with tempfile.TemporaryDirectory() as cache:
        say("compiling the simulator into an empty cache")
        first = float(child(code, NUMBA_CACHE_DIR=cache))
        again = min(float(child(code, NUMBA_CACHE_DIR=cache)) for _ in range(3))
    return {"compileSeconds": first, "cachedLoadSeconds": again}


def search_speed(size: Size) -> dict[str, Any]:
    """Every search in a process of its own."""
    searches: list[dict[str, Any]] = []
    for gpus in size.budgets:
        for model in MODELS:
            for bound in size.bounds if gpus in (size.budgets[0], size.budgets[-1]) else size.bounds[:1]:
                say(f"searching {gpus} GPUs, {model}, bound {bound}")
                code = f"import json; from dev.bench.planner import search; print(json.dumps(search({gpus}, {model!r}, {bound!r})))"
                searches.append(json.loads(child(code)))
    growth = [
        {"gpus": gpus, "seconds": max(s["seconds"] for s in searches if s["gpus"] == gpus and s["bound"] == BOUNDS[0])}
        for gpus in size.budgets
    ]
    by_budget = {gpus: max(s["seconds"] for s in searches if s["gpus"] == gpus) for gpus in size.budgets}
    slowest = max((s for s in searches if s["gpus"] == size.budgets[0]), key=lambda s: s["seconds"])
    return {
        "search64Seconds": by_budget.get(64),
        "search4096Seconds": by_budget.get(4096),
        "growth": growth,
        "peakMiB": max(s["peakMiB"] for s in searches),
        "where": slowest["where"],
        "searches": searches,
    }


def measure(size: Size = FULL) -> dict[str, Any]:
    """All measurements, in seconds and MiB; None: not measured."""
    load = os.getloadavg()[0]
    say("simulating, fast and plainly")
    found = (
        simulation_speed(size.simulated_steps, size.reference_steps)
        | search_speed(size)
        | process_speed(size)
        | compile_speed(size)
    )
    where = {"import": found["importSeconds"], "load": found["loadSeconds"], **found["where"]}
    return {
        **found,
        "where": where,
        "python": sys.version.split()[0],
        "cpus": os.cpu_count(),
        "loadBefore": load,
    }


def say(what: str) -> None:
    """Progress, on stderr: stdout is for the result."""
    print(what, file=sys.stderr, flush=True)


def table(found: dict[str, Any]) -> str:
    """The measurements for people."""

    def number(value: float | None, unit: str = "s") -> str:
        return "not measured" if value is None else f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2f} {unit}"

    lines = [
        ("simulated samples a second", number(found["samplesPerSecond"], "/s")),
        ("  of the plain simulator", number(found["obviousSamplesPerSecond"], "/s")),
        ("  how much faster", number(found["speedup"], "×")),
        ("search of 64 GPUs, the slowest", number(found["search64Seconds"])),
        ("search of 4096 GPUs, the slowest", number(found["search4096Seconds"])),
        ("memory at its peak", number(found["peakMiB"], "MiB")),
        ("rljob plan as a process, the slowest", number(found["planProcessSeconds"])),
        ("compiling the simulator, once", number(found["compileSeconds"])),
        ("loading it from the cache", number(found["cachedLoadSeconds"])),
        *((f"  where: {name}", number(value)) for name, value in found["where"].items()),
        *(
            (f"rljob plan {p['file']}", f"{number(p['seconds'])}, {number(p['cpuSeconds'])} of CPU")
            for p in found["planProcesses"]
        ),
        *(
            (
                f"search of {s['gpus']} GPUs, {s['model']}, {s['bound']}",
                f"{number(s['seconds'])}, {s['peakMiB']:.0f} MiB",
            )
            for s in found["searches"]
        ),
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m dev.bench.planner", description="How fast the planner is.")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how the result is printed")
    parser.add_argument("--tiny", action="store_true", help="measure next to nothing, to see that the benchmark works")
    chosen = parser.parse_args(arguments)
    found = measure(TINY if chosen.tiny else FULL)
    print(json.dumps(found, indent=2) if chosen.output == "json" else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
