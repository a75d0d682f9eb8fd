"""``python -m dev.demo``: run the demo; exit code 0 if it showed what it claims."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from dev.controlplane import BuildError, ComponentError, NodeSpec, ensure_built
from dev.demo.history import JobHistory, label
from dev.demo.ledger import PodLedger
from dev.demo.outcome import ENOUGH, LAST, Outcome, StepLog, mean, outcome, periods, staleness_summary
from dev.demo.planned import best_split
from dev.demo.timeline import page
from dev.demo.view import Picture, View, view_for
from dev.demo.world import HERE, ROOT, World
from dev.emulator.config import load
from dev.installed import HelmError
from dev.kubetools import ToolError

LOOK_EVERY_S = 0.5
NODES = NodeSpec(count=8, gpus_per_node=8)


def main() -> int:
    """Parse the command line, run, and report."""
    parser = argparse.ArgumentParser(prog="python -m dev.demo", description="The whole loop on this machine.")
    parser.add_argument("--output", type=Path, default=ROOT / ".demo", help="folder for the results (default: .demo)")
    parser.add_argument("--job", type=Path, default=HERE / "job.yaml", help="the RLJob to apply")
    parser.add_argument("--emulator", type=Path, default=HERE / "emulator.yaml", help="the hidden truth")
    parser.add_argument("--limit", type=float, default=250.0, help="longest time of the loop in seconds")
    args = parser.parse_args()
    # kill ends the demo as Ctrl-C does: everything is stopped on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shutil.rmtree(args.output, ignore_errors=True)
    args.output.mkdir(parents=True)
    try:
        ensure_built()
        return Demo(args.output, args.job, args.emulator, args.limit).run()
    except KeyboardInterrupt:
        print(f"\nstopped; logs are in {args.output}", file=sys.stderr)
        return 130
    except (BuildError, ComponentError, HelmError, TimeoutError, ToolError) as error:
        print(f"\nthe demo failed: {error}\nlogs are in {args.output}", file=sys.stderr)
        return 1


class Demo:
    """One run."""

    def __init__(self, output: Path, job_file: Path, emulator_file: Path, limit_s: float) -> None:
        """Prepare; ``limit_s`` bounds the loop's time."""
        self._output, self._job_file, self._emulator_file, self._limit_s = output, job_file, emulator_file, limit_s
        self._job: dict[str, Any] = yaml.safe_load(job_file.read_text())
        self._trace = load(emulator_file).lengths.trace
        self._history = JobHistory()
        self._ledger = PodLedger()
        self._steps = StepLog(output / "steps.jsonl")
        self._state: dict[str, Any] = {}
        self._loop_started_s: float | None = None
        self._began = time.monotonic()
        self._console = Console()

    def run(self) -> int:
        """Run from nothing to nothing; returns the exit code."""
        with self._view() as view:
            with World.start(self._output, NODES, self._job_file, self._emulator_file, view.say) as world:
                world.start_prometheus()
                world.install()
                view.say("installed the chart by helm")
                world.start_emulator()
                world.start_operator()
                view.say("Prometheus, the operator (as the chart starts it) and the job emulator run")
                view.say(f"what the operator knows, while this runs: {world.status_page_url}")
                world.follow_pods(self._ledger)
                world.follow_job(self._history)
                world.apply_job()
                view.say(f"applied {self._job_file.name}: {self._spec['gpus']} GPUs")
                self._watch(world, view)
                self._steps.poll()
                (self._output / "describe.txt").write_text(world.described())
            view.say("stopped everything; writing the results")
            result = self._conclude()
        return self._report(result)

    @property
    def _spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self._job["spec"]
        return spec

    @contextlib.contextmanager
    def _view(self) -> Iterator[View]:
        with view_for(self._console) as view:
            yield view

    def _watch(self, world: World, view: View) -> None:
        """Look until the demo has shown what it can, or its time is over."""
        while True:
            world.check()
            self._state = world.emulator_state() or self._state
            live = self._state.get("live") or {}
            if self._state.get("started"):
                self._loop_started_s = time.time() - float(live["t"])
            self._steps.poll()
            waiting_for = self._waiting_for()
            view.show(self._picture(waiting_for))
            if waiting_for is None:
                return
            # The loop's own time, so that a slow machine at the start does not cut the run short; but not for ever.
            if float(live.get("t", 0.0)) > self._limit_s or time.monotonic() - self._began > self._limit_s + 60.0:
                view.say(f"time is over, while waiting for {waiting_for}")
                return
            time.sleep(LOOK_EVERY_S)

    def _waiting_for(self) -> str | None:
        """What is still to be seen, None if nothing is."""
        if self._loop_started_s is None:
            return "all pods of the first split to be ready"
        if self._history.moving:
            return "the move under way to end"
        moves = self._history.moves
        if not any(move.committed for move in moves):
            return "a move: responses get longer"
        since = max((m.ended_s for m in moves if m.ended_s is not None), default=0.0) - self._loop_started_s
        left = ENOUGH - len(periods(self._steps.live, since=max(since, self._trace[-1][0])))
        return f"{left} more periods after the last move" if left > 0 else None

    def _picture(self, waiting_for: str | None) -> Picture:
        live = [s.period for s in self._steps.live if s.period is not None]
        shadow = [s.period for s in self._steps.shadow if s.period is not None]
        summary = staleness_summary(self._steps.live[-LAST:])
        return Picture(
            elapsed_s=time.monotonic() - self._began,
            status=self._history.status,
            state=self._state,
            gpus_held=self._ledger.held,
            gpu_budget=int(self._spec["gpus"]),
            period_live=mean(live[-LAST:]),
            period_shadow=mean(shadow[-LAST:]),
            periods_live=live,
            periods_shadow=shadow,
            staleness_mean=None if summary is None else summary["mean"],
            staleness_limit=int(self._spec["staleness"]["max"]),
            waiting_for="" if waiting_for is None else f"waiting for {waiting_for}",
        )

    def _conclude(self) -> Outcome:
        """Work out the result and write it down."""
        started_s = self._loop_started_s if self._loop_started_s is not None else time.time()
        concluded = outcome(
            live=self._steps.live,
            shadow=self._steps.shadow,
            moves=self._history.moves,
            started_s=started_s,
            plan=self._history.plan,
            best_at_start=best_split(self._spec, self._trace[0][1], NODES),
            best_at_end=best_split(self._spec, self._trace[-1][1], NODES),
            gpu_budget=int(self._spec["gpus"]),
            gpu_peak=self._ledger.peak,
            bound=str(self._spec["staleness"].get("bound", "admission")),
            staleness_limit=int(self._spec["staleness"]["max"]),
        )
        (self._output / "result.json").write_text(json.dumps(concluded.result, indent=2) + "\n")
        title = f"{self._job['metadata']['name']}: {self._spec['gpus']} GPUs, {self._spec['model'].get('name', 'own model')}"
        (self._output / "timeline.html").write_text(
            page(
                title=title,
                outcome=concluded,
                live=self._steps.live,
                shadow=self._steps.shadow,
                moves=self._history.moves,
                marks=self._history.marks,
                started_s=started_s,
            )
        )
        return concluded

    def _report(self, concluded: Outcome) -> int:
        r = concluded.result
        say = self._console.print
        for move in r["moves"]:
            say(f"moved at {move['t']:.0f} s: {label(move['from'])} → {label(move['to'])}", highlight=False)
            say(f"  {move['reason']}", highlight=False)
        if concluded.gain is not None and concluded.standard_errors is not None:
            say(
                f"period {r['periodAfterMove']:.2f} s after the move, {r['periodIfNeverMoved']:.2f} s had nothing moved: "
                f"{concluded.gain:.1%} shorter ({concluded.standard_errors:.1f} standard errors)",
                highlight=False,
            )
        if r["staleness"]:
            say(
                f"staleness mean {r['staleness']['mean']:.2f}, max {r['staleness']['max']:.0f}, limit {r['stalenessLimit']} "
                f"for {'every sample' if self._spec['staleness'].get('bound') == 'drop' else 'the mean'} · "
                f"at most {r['gpuPeak']} of {r['gpuBudget']} GPUs held",
                highlight=False,
            )
        say(
            f"results: {self._output / 'result.json'}, {self._output / 'timeline.html'}; what kubectl describe told at the end: "
            f"{self._output / 'describe.txt'}",
            highlight=False,
            soft_wrap=True,
        )
        for failure in concluded.failures:
            print(f"not shown: {failure}", file=sys.stderr)
        return 1 if concluded.failures else 0


if __name__ == "__main__":
    sys.exit(main())
