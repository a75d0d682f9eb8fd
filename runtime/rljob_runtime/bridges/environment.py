"""Sets up the bridge that ``RLJOB_BRIDGE`` names; imported by ``rljob_bridge.pth`` at the start of every Python process.

A Python that does not start is worse than one that is not watched: so whatever is wrong is said on stderr, and that is all.
"""

from __future__ import annotations

import os
import sys


def set_up() -> None:
    """Set up the bridge that the environment names, if it names one. Never raises."""
    name = os.environ.get("RLJOB_BRIDGE", "")
    if not name:
        return
    try:
        from rljob_runtime.bridges import bridge

        bridge(name)
    except Exception as error:
        sys.stderr.write(f"rljob_runtime: RLJOB_BRIDGE={name} has no effect: {error}\n")


set_up()
