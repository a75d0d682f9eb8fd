"""The command line: ``python -m dev.bench.drift [--trace FILE] [--only NAME] [--quick] [-o json]``."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from dev.bench.drift.bench import Played, play
from dev.bench.drift.controlled import ControlledError
from dev.bench.drift.page import page, table
from dev.bench.drift.picture import picture
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


def read(paths: Sequence[str]) -> list[TraceJson]:
    """The traces in files that ``-o json`` wrote; raises ``TraceError``."""
    found: list[TraceJson] = []
    for path in paths:
        try:
            found += DriftJson.model_validate_json(Path(path).read_text(encoding="utf-8")).traces
        except (OSError, ValidationError) as error:
            raise TraceError(f"{path}: is no output of python -m dev.bench.drift -o json: {error}") from None
    return found


def played(args: argparse.Namespace, began: float) -> Iterator[Played]:
    """Each trace that was asked for, under all policies; what is known is printed as soon as it is."""
    for run in runs(args):

        def say(text: str, name: str = run.name) -> None:
            print(f"[{time.monotonic() - began:5.0f} s] {name}: {text}", file=sys.stderr, flush=True)

        one = play(run, say, quick=args.quick)
        if args.output == "table":
            print(table(one.json) + "\n", flush=True)
        if args.decisions and one.controlled is not None:
            for version, code, message in one.controlled.decisions:
                print(f"  step {version}: {code}: {message}", file=sys.stderr)
        yield one


def main(argv: Sequence[str] | None = None) -> int:
    """Run the traces, print the table; exit code 1 for a trace that cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m dev.bench.drift", description=__doc__)
    parser.add_argument("--trace", action="append", default=[], metavar="FILE", help="a trace file (may be repeated)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help=f"one of {', '.join(NAMES)} (may be repeated)"
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of the steps")
    parser.add_argument("--decisions", action="store_true", help="also print what the operator decided (on stderr)")
    parser.add_argument(
        "--read", action="append", default=[], metavar="FILE", help="take results of -o json instead of running"
    )
    parser.add_argument("--picture", metavar="FILE", help="write an SVG of period and split over the steps")
    parser.add_argument("--page", metavar="FILE", help="put the results into a page, between its marks")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    args = parser.parse_args(argv)
    logging.getLogger("rljob_operator").setLevel(logging.ERROR)
    began = time.monotonic()
    try:
        traces = read(args.read) if args.read else [one.json for one in played(args, began)]
    except (TraceError, PlantError, ControlledError, PlanningError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result = DriftJson(traces=traces, seconds=round(time.monotonic() - began, 1))
    if args.picture:
        Path(args.picture).write_text(picture(traces), encoding="utf-8")
    if args.page:
        path = Path(args.page)
        path.write_text(page(path.read_text(encoding="utf-8"), traces), encoding="utf-8")
    if args.output == "json":
        print(json.dumps(result.model_dump(mode="json", by_alias=True), indent=2, ensure_ascii=False))
    elif args.read:
        print("\n\n".join(table(trace) for trace in traces))
    return 0


if __name__ == "__main__":
    sys.exit(main())
