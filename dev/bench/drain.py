"""``python -m dev.bench.drain``: a hundred busy samplers are taken away, and every sample is accounted for.

The first part takes samplers of a real job (``dev.e2e``) by evictions and deletions while they are busy. With time to finish nothing may be
lost or cut. The second part leaves them too little: then samples are cut, and each that a server's log shows as taken and never answered
has to be counted as cut by the trainer, server by server. The trainer may count more: of a sample that was sent to a server as that was
killed, nobody can tell whether it was begun.

A sampler takes half a minute to start, so a hundred take the better part of an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dev.controlplane import ComponentError, ensure_built
from dev.e2e import parts
from dev.e2e.job import Wishes
from dev.e2e.nodes import node_of
from dev.e2e.parts import ROOT
from dev.e2e.run import Run, clean
from dev.e2e.world import World

TOKENS = parts.LONG_TOKENS
"""Mean response: long enough that a busy sampler always has something to lose."""

TOO_SHORT_S = 1
"""A grace period in which no sample is finished but those that are about to be."""


class DrainRun(Run):
    """A job whose samplers are taken away, and nothing else."""

    def _stages(self, world: World) -> None:
        self._remove(world)


def drained(node: str, output: Path, removals: int, *, grace_s: int | None, limit_s: float) -> dict[str, Any]:
    """One part; returns its figures. Raises what ended it early."""
    output.mkdir(parents=True, exist_ok=True)
    clean(output)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    ways = [("eviction", "deletion")[i % 2] for i in range(removals)]
    wishes = Wishes(response_tokens=TOKENS, lengths=str(TOKENS), mode="Initial", by_hand=False, grace_s=grace_s)
    run = DrainRun(node_of(node), output, say, limit_s=limit_s, ways=ways, wishes=wishes)
    found = run.run()
    took = sorted(r.took_s for r in found.removals if r.took_s is not None)
    return {
        "removals": len(found.removals),
        "samplesRunning": sum(r.running for r in found.removals),
        "samplesLost": found.account.lost,
        "samplesCut": found.cut_in_removals,
        "samplesUnanswered": found.unanswered_in_removals,
        "samplesUncounted": found.compared_in_removals.uncounted,
        "samplesCutNotedByNone": found.compared_in_removals.noted_by_none,
        "samplesCutInLog": found.cut_by_log_in_removals,
        "samplesUnaccounted": found.account.unaccounted,
        "drainSeconds": {"least": took[0], "median": took[len(took) // 2], "most": took[-1]} if took else None,
        "account": asdict(found.account),
        "seconds": round(found.seconds, 1),
    }


def failures(fits: dict[str, Any], cuts: dict[str, Any] | None) -> list[str]:
    """What was promised and is not so."""
    said = [
        f"with time to finish: {fits[key]} {words}"
        for key, words in (
            ("samplesLost", "samples were lost"),
            ("samplesCut", "samples were cut"),
            ("samplesUnanswered", "samples were taken by a server and never answered"),
            ("samplesUnaccounted", "samples are missing from the account"),
        )
        if fits[key]
    ]
    if cuts is None:
        return said
    if not cuts["samplesCut"]:
        said.append("with too little time nothing was cut: so the count proves nothing")
    if cuts["samplesCut"] != cuts["samplesCutInLog"]:
        said.append(
            f"with too little time the trainer counted {cuts['samplesCut']} cut samples, and its log names {cuts['samplesCutInLog']}"
        )
    said += [
        f"with too little time: {cuts[key]} samples {words}"
        for key, words in (
            ("samplesLost", "were lost"),
            ("samplesUncounted", "were taken and never answered, and not counted as cut"),
            ("samplesUnaccounted", "are missing from the account"),
        )
        if cuts[key]
    ]
    return said


def main() -> int:
    """Parse the command line, run both parts, and report."""
    parser = argparse.ArgumentParser(prog="python -m dev.bench.drain", description="Busy samplers are taken away.")
    parser.add_argument("--node", choices=("auto", "real", "processes"), default="processes", help="where pods run")
    parser.add_argument("--removals", type=int, default=100, help="with time to finish (default: %(default)s)")
    parser.add_argument("--cuts", type=int, default=10, help="with too little time; 0 leaves that part out")
    parser.add_argument(
        "--output", type=Path, default=ROOT / ".demo" / "drain", help="folder for drain.json and the logs"
    )
    parser.add_argument("--limit", type=float, default=7200.0, help="seconds after which a part is given up")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    output = args.output.absolute()
    try:
        ensure_built()
        fits = drained(args.node, output / "fits", args.removals, grace_s=None, limit_s=args.limit)
        cuts = None
        if args.cuts:
            cuts = drained(args.node, output / "cuts", args.cuts, grace_s=TOO_SHORT_S, limit_s=args.limit)
    except KeyboardInterrupt:
        print(f"\nstopped; logs are in {output}", file=sys.stderr)
        return 130
    except (ComponentError, RuntimeError, TimeoutError) as error:
        print(f"error: {error}\nlogs are in {output}", file=sys.stderr)
        return 1
    told = {"timeToFinish": fits, "tooLittleTime": cuts}
    (output / "drain.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(told, indent=2))
    broken = failures(fits, cuts)
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
