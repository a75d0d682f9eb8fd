"""``python -m dev.e2e``: run it; exit code 0 if every promise was kept."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from pathlib import Path

from dev.controlplane import BuildError, ensure_built
from dev.e2e.job import Wishes
from dev.e2e.nodes import node_of
from dev.e2e.outcome import broken_promises, result
from dev.e2e.parts import ROOT
from dev.e2e.run import WAYS, Run, clean


def main() -> int:
    """Parse the command line, run, and report."""
    parser = argparse.ArgumentParser(prog="python -m dev.e2e", description="The whole promise on real parts.")
    parser.add_argument("--node", choices=("auto", "real", "processes"), default="auto", help="where pods run")
    parser.add_argument("--output", type=Path, default=ROOT / ".demo", help="folder for e2e.json and the logs")
    parser.add_argument("--limit", type=float, default=1100.0, help="seconds after which it is given up")
    parser.add_argument("--removals", type=int, default=len(WAYS), help="samplers that are removed under load")
    parser.add_argument(
        "--grace", type=int, metavar="SECONDS", help="grace period of samplers; with 1 samples are cut, and this fails"
    )
    args = parser.parse_args()
    # kill ends it as Ctrl-C does: everything is stopped on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    output = args.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    clean(output)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    try:
        node = node_of(args.node)
        say(
            f"pods run {'in containers under a real kubelet' if node.kind == 'real' else 'as processes of this machine'}"
        )
        ensure_built()
        ways = [WAYS[i % len(WAYS)] for i in range(args.removals)]
        run = Run(node, output, say, limit_s=args.limit, ways=ways, wishes=Wishes(grace_s=args.grace))
    except (BuildError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        run.run()
    except KeyboardInterrupt:
        print(f"\nstopped; logs are in {output}", file=sys.stderr)
        return 130
    except Exception as error:
        # Whatever it was: the figures so far are written, and say so.
        traceback.print_exc()
        run.findings.broken.append(f"{type(error).__name__}: {error}")
    (output / "e2e.json").write_text(json.dumps(result(run.findings), indent=2) + "\n", encoding="utf-8")
    broken = broken_promises(run.findings)
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    say(f"{'not ' if broken else ''}everything held; figures in {output / 'e2e.json'}, logs beside it")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
