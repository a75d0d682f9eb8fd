"""Starts torchrun in a trainer pod, in the shape that the layout says.

The number of pods is the operator's to change, so it stands in no pod template: it is read from the layout when the pod starts.

``restart``: torchrun's world is as large as the layout says, and fixed. For a change, a checkpoint is written, all pods go, and new ones start here.
``elastic``: torchrun takes any number of pods up to ``--most``; pods that come and go make it start the workers anew in the pods that stay.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence

from rljob_runtime import DEFAULT_DIRECTORY, Layout, LayoutWatcher


def command(layout: Layout, *, shape: str, most: int, processes: int, program: Sequence[str]) -> list[str]:
    """The command line of torchrun for this pod."""
    nodes = str(layout.trainers.replicas) if shape == "restart" else f"1:{most}"
    options = {
        "nnodes": nodes,
        "nproc-per-node": str(processes),
        "rdzv-backend": "c10d",
        # In a cluster the first pod of the StatefulSet, which is the last to go: it keeps the rendezvous.
        "rdzv-endpoint": layout.trainers.rendezvous,
        "rdzv-id": os.environ.get("RLJOB_UID", "torch-elastic"),
        # What a pod that was killed costs the others: 3 s until it is missed, and 3 s for more to come before the new world is complete.
        "rdzv-conf": "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=3",
        "monitor-interval": "0.5",
        # A pod that goes makes the workers of the others fail, and that is no fault of theirs.
        "max-restarts": "3" if shape == "restart" else "1000",
    }
    address = os.environ.get("POD_IP")
    if address:
        options["local-addr"] = address
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--{name}={value}" for name, value in options.items()),
        *program,
    ]


def main() -> None:
    """Wait for the layout, then become torchrun, so that a signal to the container reaches it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shape", choices=("restart", "elastic"), required=True, help="spec.trainer.resize of the RLJob"
    )
    parser.add_argument("--most", type=int, default=64, help="most pods (elastic)")
    parser.add_argument("--processes", type=int, default=1, help="processes of this pod: its GPUs")
    parser.add_argument("--layout", default=DEFAULT_DIRECTORY)
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the training script and its arguments")
    asked = parser.parse_args()
    with LayoutWatcher(asked.layout) as watcher:
        layout = watcher.wait_for(0)
    if asked.processes > 1:
        # All processes of the pod report on one page.
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", tempfile.mkdtemp(prefix="rljob-metrics-"))
    # Processes of an earlier round don't tell one that joins later where the shared store is, and it would wait in vain.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    line = command(layout, shape=asked.shape, most=asked.most, processes=asked.processes, program=asked.program)
    os.execv(line[0], line)


if __name__ == "__main__":
    main()
