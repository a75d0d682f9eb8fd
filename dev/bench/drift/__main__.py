"""The command line: ``python -m dev.bench.drift [--trace FILE] [--only NAME] [--quick] [-o json]``."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dev.bench.drift.bench import Played, play
from dev.bench.drift.controlled import ControlledError
from dev.bench.drift.plant import PlantError
from dev.bench.drift.result import DriftJson, TraceJson
from dev.bench.drift.traces import NAMES, Run, TraceError, load, packaged
from rljob_planner.errors import PlanningError

QUICK = 0.25
"""Share of a trace's steps that ``--quick`` runs: the same drift, four times as fast."""


def runs(args: argparse.Namespace) -> list[Run]:
    """The traces that were asked for; raises ``TraceError``."""
    found = [load(path) for path in args.trace] + [packaged(name) for name in args.only]
    found = found or [packaged(name) for name in NAMES]
    return [run.shortened(QUICK) for run in found] if args.quick else found


def table(trace: TraceJson) -> str:
    """One trace in lines for people."""
    lines = [f"{trace.name} ({trace.steps} steps): {trace.effect}"]
    lines.append(
        f"  {'policy':<13}{'seconds':>10}{'ratio':>8}{'moves':>7}{'GPU-h':>9}{'staleness mean / max':>23}  split"
    )
    for p in trace.policies:
        path = [p.start, *p.move_steps]
        splits = " → ".join(f"{m.samplers}+{m.trainers}" + (f" @{m.step}" if m.step else "") for m in path[:8])
        lines.append(
            f"  {p.policy:<13}{p.total_seconds:>10,.0f}{p.ratio_to_clairvoyant:>8.3f}{p.moves:>7}{p.gpu_hours:>9,.0f}"
            f"{p.mean_staleness:>15.2f} / {p.max_staleness:<5}  {splits}{' …' if len(path) > 8 else ''}"
        )
    for aim in trace.aims:
        lines.append(f"  {'met   ' if aim.met else 'MISSED'} {aim.aim}: {aim.value:.4g} of at most {aim.limit:g}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the traces, print the table; exit code 1 for a trace that cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m dev.bench.drift", description=__doc__)
    parser.add_argument("--trace", action="append", default=[], metavar="FILE", help="a trace file (may be repeated)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help=f"one of {', '.join(NAMES)} (may be repeated)"
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of the steps")
    parser.add_argument("--decisions", action="store_true", help="also print what the operator decided (on stderr)")
    parser.add_argument("--picture", metavar="FILE", help="write an SVG of period and split over the steps")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    args = parser.parse_args(argv)
    logging.getLogger("rljob_operator").setLevel(logging.ERROR)
    began = time.monotonic()
    played: list[Played] = []
    try:
        for run in runs(args):
            here = run.name

            def say(text: str, here: str = here) -> None:
                print(f"[{time.monotonic() - began:5.0f} s] {here}: {text}", file=sys.stderr, flush=True)

            played.append(play(run, say, quick=args.quick))
            if args.output == "table":
                print(table(played[-1].json) + "\n", flush=True)
            controlled = played[-1].controlled
            if args.decisions and controlled is not None:
                for version, code, message in controlled.decisions:
                    print(f"  step {version}: {code}: {message}", file=sys.stderr)
    except (TraceError, PlantError, ControlledError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except PlanningError as error:
        print(f"error: {here}: the planner finds no split for this job: {error}", file=sys.stderr)
        return 1
    result = DriftJson(traces=[p.json for p in played], seconds=round(time.monotonic() - began, 1))
    if args.picture:
        from dev.bench.drift.picture import picture

        Path(args.picture).write_text(picture(played), encoding="utf-8")
    if args.output == "json":
        print(json.dumps(result.model_dump(mode="json", by_alias=True), indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
