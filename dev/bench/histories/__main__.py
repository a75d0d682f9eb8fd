"""``python -m dev.bench.histories``: runs many random histories and counts what went wrong.

Prints ``{histories, violations, unconverged}`` and, for those that went wrong, the command that runs each of them again. The exit code is 1
if there is any; so it should be with ``--mutant``, which breaks the operator to see whether it is caught.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from dev.bench.histories.history import drawn, run, shortened
from dev.bench.histories.many import Outcome, outcomes, seed_of
from dev.bench.histories.mutants import MUTANTS
from dev.bench.histories.shape import Shape

_SHOWN = 10
"""Examples in the output: who mends one mends many."""

_EVERY_S = 10.0


def main(
    n: Annotated[int, typer.Option("--n", min=1, help="Histories to run.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other histories.")] = 0,
    mutant: Annotated[str | None, typer.Option(help=f"Break the operator: {', '.join(MUTANTS)}.")] = None,
    output: Annotated[str, typer.Option("-o", "--output", help="text or json.")] = "text",
    processes: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    only: Annotated[int | None, typer.Option(help="Run the one history of this seed and show its steps.")] = None,
    shorten: Annotated[bool, typer.Option(help="With --only: leave out what the verdict does not need.")] = False,
) -> None:
    """Runs random histories and judges them."""
    if mutant is not None and mutant not in MUTANTS:
        raise typer.BadParameter(
            f"there is no mutant {mutant!r}: choose among {', '.join(MUTANTS)}", param_hint="--mutant"
        )
    if only is not None:
        _show(only, mutant, shorten=shorten)
        return
    began = last = time.monotonic()
    bad: list[Outcome] = []
    done = passes = moves = 0
    virtual_s = 0.0
    for outcome in outcomes(range(seed_of(seed, 0), seed_of(seed, 0) + n), mutant, processes):
        done, passes, moves = done + 1, passes + outcome.verdict.passes, moves + outcome.verdict.moves
        virtual_s += outcome.verdict.virtual_s
        if outcome.verdict.kind is not None:
            bad.append(outcome)
            wrong = outcome.verdict.violations[0] if outcome.verdict.violations else outcome.verdict.unrest
            if len(bad) <= _SHOWN:
                print(f"seed {outcome.seed}: {wrong}", file=sys.stderr, flush=True)
        now = time.monotonic()
        if now - last > _EVERY_S:
            last = now
            left_s = (now - began) / done * (n - done)
            print(
                f"{done} of {n} histories, {len(bad)} went wrong, about {left_s:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
    report = _report(done, bad, seed, mutant)
    report |= {
        "seconds": round(time.monotonic() - began, 1),
        "passes": passes,
        "moves": moves,
        "virtualHours": round(virtual_s / 3600, 1),
    }
    print(json.dumps(report, indent=2) if output == "json" else _text(report))
    raise typer.Exit(1 if bad else 0)


def _report(done: int, bad: list[Outcome], seed: int, mutant: str | None) -> dict[str, Any]:
    suffix = "" if mutant is None else f" --mutant {mutant}"
    return {
        "histories": done,
        "violations": sum(bool(o.verdict.violations) for o in bad),
        "unconverged": sum(o.verdict.unrest is not None for o in bad),
        "seed": seed,
        "mutant": mutant,
        "examples": [
            {
                "seed": o.seed,
                "what": o.verdict.violations[0] if o.verdict.violations else o.verdict.unrest,
                "replay": f"python -m dev.bench.histories --only {o.seed} --shorten{suffix}",
            }
            for o in sorted(bad, key=lambda o: o.seed)[:_SHOWN]
        ],
    }


def _text(report: dict[str, Any]) -> str:
    lines = [
        f"{report['histories']} histories ({report['virtualHours']} h of virtual time, {report['moves']} moves decided, "
        f"{report['passes']} passes) in {report['seconds']} s: {report['violations']} violations, {report['unconverged']} not at rest"
    ]
    lines += [f"  {e['what']}\n    {e['replay']}" for e in report["examples"]]
    return "\n".join(lines)


def _show(seed: int, mutant: str | None, *, shorten: bool) -> None:
    shape, steps = Shape.drawn(seed), drawn(seed)
    verdict = run(shape, steps, mutant)
    if shorten and verdict.kind is not None:
        steps = shortened(shape, steps, verdict.kind, mutant, tell=lambda left: print(f"{left} steps", file=sys.stderr))
        verdict = run(shape, steps, mutant)
    jobs = [
        (m["metadata"]["name"], m["spec"]["gpus"], m["spec"]["trainer"]["kind"], m["spec"]["trainer"]["resize"])
        for m in shape.jobs
    ]
    print(f"{shape.nodes} nodes of {shape.gpus_per_node} GPUs; jobs {jobs}")
    print("\n".join(str(step) for step in steps))
    print("\n".join(verdict.violations) or verdict.unrest or "all is well")
    raise typer.Exit(0 if verdict.kind is None else 1)


if __name__ == "__main__":
    typer.run(main)
