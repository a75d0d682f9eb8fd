"""``python -m dev.processes``: one node, until SIGTERM or Ctrl-C; all that its pods run ends with it.

Use ``dev.processes.local`` to start it beside a plane.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path

from dev.processes.api import Api
from dev.processes.node import NodeDescription, ProcessesNode


def main() -> int:
    """Parse the command line and be a node."""
    parser = argparse.ArgumentParser(prog="python -m dev.processes", description="A node whose pods are processes.")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="shows the identity system:node:NAME")
    parser.add_argument("--name", required=True, help="name of the node")
    parser.add_argument("--folder", type=Path, required=True, help="for files of pods, while they live")
    parser.add_argument("--logs", type=Path, required=True, help="for the output of containers; it stays")
    parser.add_argument("--resource", action="append", default=[], metavar="NAME=QUANTITY", help="capacity, repeated")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="label of the node, repeated")
    parser.add_argument(
        "--volume-lag", type=float, default=1.0, help="seconds until a ConfigMap's change is in the files"
    )
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    pairs = [dict(entry.split("=", 1) for entry in entries) for entries in (args.resource, args.label)]
    description = NodeDescription(args.name, pairs[0], pairs[1], args.volume_lag)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_run(description, args.kubeconfig, args.folder, args.logs))
    return 0


async def _run(description: NodeDescription, kubeconfig: Path, folder: Path, logs: Path) -> None:
    me = asyncio.current_task()
    assert me is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, me.cancel)
    api = Api(kubeconfig)
    try:
        await ProcessesNode(description, api, folder, logs).run()
    finally:
        await api.close()


if __name__ == "__main__":
    sys.exit(main())
