"""A real node to look at: ``python -m dev.realnode`` starts a plane with one, installs the chart and stays until Ctrl-C.

``python -m dev.realnode down`` puts the machine back after one that was killed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dev.controlplane import ControlPlane
from dev.installed import RELEASE, SYSTEM, install
from dev.realnode import RealNode, missing
from dev.realnode.image import stored
from dev.realnode.node import take_down
from dev.trial import IMAGE, TAG, VALUES


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m dev.realnode", description="A real node on this machine. It needs root."
    )
    parser.add_argument("command", nargs="?", choices=("up", "down"), default="up", help="up stays until Ctrl-C")
    if parser.parse_args(argv).command == "down":
        print("the machine is as it was" if take_down() else "there was nothing to put back")
        return 0
    if reason := missing():
        print(f"error: {reason}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="rljob-image-") as scratch:
            print("building the image", flush=True)
            archive = stored(Path(scratch, "build"), f"{IMAGE}:{TAG}", Path(scratch, "image.tar"))
            with ControlPlane.start(log=print) as plane, RealNode.start(plane, images=[archive]):
                install(plane, VALUES)
                plane.kubectl("rollout", "status", f"deployment/{RELEASE}", "-n", SYSTEM, "--timeout=300s")
                print(plane.kubectl("get", "nodes,pods", "-A", "-o", "wide").stdout)
                print(f"export KUBECONFIG={plane.kubeconfig}\nCtrl-C ends it", flush=True)
                signal.pause()
    except KeyboardInterrupt:
        print("ended; the machine is as it was")
    return 0


if __name__ == "__main__":
    sys.exit(main())
