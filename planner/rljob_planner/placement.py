"""Whether a split fits on the nodes: GPUs are not a sum, since a replica needs all of its GPUs on one node.

A budget of 64 GPUs on eight nodes of which one has two GPUs taken holds seven trainers of eight GPUs, not seven and three
quarters. The search asks here before it simulates, and the operator before it promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """What one node can give to a job."""

    node: str
    """The node's name."""
    free_gpus: int
    """GPUs that the job may use there: allocatable less what others requested."""
    accelerator: str | None = None
    """The GPU's product name, None if the node does not say."""
    samplers: bool = True
    """Whether sampler pods may run there (selector, taints)."""
    trainers: bool = True
    """Whether trainer pods may run there."""
