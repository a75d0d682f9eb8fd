"""Whether a split fits on the nodes: GPUs are not a sum, since a replica needs all of its GPUs on one node.

A budget of 64 GPUs on eight nodes of which one has two GPUs taken holds seven trainers of eight GPUs, not seven and three
quarters. The search asks here before it simulates, and the operator before it promises.

The answer is exact. On one node the choice is how many trainers it gets; the samplers take what is left. Adding node after
node, the most samplers for every number of trainers is a small table, so no order of placement has to be guessed. Where a node
gives up no fewer samplers for its second trainer than for its first, as nearly always, the tables of all nodes merge at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_planner.errors import PlanningError

USUAL_GPUS_PER_NODE = 8

_IMPOSSIBLE = -(1 << 40)


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
    pool: str | None = None
    """The pool of ``sampler.pools`` that the node belongs to, None for a job without pools or a node of none."""


def frontier(
    rooms: Sequence[Room], sampler_gpus: int, trainer_gpus: int, most_trainers: int | None = None
) -> NDArray[np.int64]:
    """The most sampler replicas that fit beside 0, 1, 2, … trainer replicas; the array ends at the most trainers that fit."""
    kinds = Counter((room.free_gpus, room.samplers, room.trainers) for room in rooms if room.free_gpus > 0)
    best = np.zeros(1, dtype=np.int64)
    rough: list[NDArray[np.int64]] = []
    for (free, samplers, trainers), count in kinds.items():
        here = np.array(
            [
                (free - b * trainer_gpus) // sampler_gpus if samplers else 0
                for b in range((free // trainer_gpus if trainers else 0) + 1)
            ],
            dtype=np.int64,
        )
        if np.any(np.diff(here, n=2) > 0):
            rough.append(_of_many(here, count, _end(most_trainers)))
            continue
        # Each further trainer on a node costs no fewer samplers than the one before, so the cheapest places come first.
        costs = np.sort(np.concatenate([np.diff(best), np.tile(np.diff(here), count)]))[::-1]
        best = best[0] + count * here[0] + np.concatenate([[0], np.cumsum(costs)])[: _end(most_trainers)]
    for table in rough:
        best = _joined(best, table)[: _end(most_trainers)]
    return best


def _of_many(here: NDArray[np.int64], count: int, end: int | None) -> NDArray[np.int64]:
    """The table of ``count`` equal nodes, up to ``end``.

    Two halves of them can share any number of trainers so evenly that they differ by no more than one node holds (deal the nodes
    out by their trainers, in turn), so that each doubling looks at as many pairs as a node has places, and no more.
    """
    if count == 1:
        return here[:end]
    half = _of_many(here, count // 2, end)
    both = np.full(2 * len(half) - 1, _IMPOSSIBLE, dtype=np.int64)
    for more in range(min(len(here), len(half))):
        pairs = half[more:] + half[: len(half) - more]
        np.maximum(both[more : more + 2 * len(pairs) : 2], pairs, out=both[more : more + 2 * len(pairs) : 2])
    return (_joined(both[:end], here) if count % 2 else both)[:end]


def _joined(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The table of the nodes of both tables together."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    both = np.full(len(one) + len(other) - 1, _IMPOSSIBLE, dtype=np.int64)
    for at, samplers in enumerate(short.tolist()):
        np.maximum(both[at : at + len(long)], long + samplers, out=both[at : at + len(long)])
    return both


def _end(most_trainers: int | None) -> int | None:
    return None if most_trainers is None else most_trainers + 1


def packs(
    rooms: Sequence[Room], sampler_gpus: int, sampler_replicas: int, trainer_gpus: int, trainer_replicas: int
) -> bool:
    """Whether these replicas fit on the nodes, each whole on one node that may run its role."""
    best = frontier(rooms, sampler_gpus, trainer_gpus, trainer_replicas)
    return len(best) > trainer_replicas and int(best[trainer_replicas]) >= sampler_replicas


def placeable_gpus(rooms: Sequence[Room], sampler_gpus: int, trainer_gpus: int, budget: int) -> int:
    """The most GPUs of the budget that replicas of these sizes can hold at once, in any mixture of the roles."""
    best = frontier(rooms, sampler_gpus, trainer_gpus, budget // trainer_gpus)
    held = 0
    for trainers, samplers in enumerate(best.tolist()):
        left = budget - trainers * trainer_gpus
        held = max(held, trainers * trainer_gpus + min(samplers, left // sampler_gpus) * sampler_gpus)
    return held


NO_GROUPS = "a replica is one pod on one node, and no groups of pods are made, such as a LeaderWorkerSet"
"""Why no replica is wider than a node."""


def too_wide(widths: Mapping[str, int], widest: Mapping[str, int], free: str = "") -> str | None:
    """Which replica no node can hold, and what to write instead; None if there is none.

    ``widths``: GPUs of a replica by role. ``widest``: by role the GPUs of the widest node that its pods may run on; a role without
    such nodes is another matter. ``free`` is put behind that number, where it is what a node has free and not what it has.
    """
    for role, gpus in widths.items():
        most = widest.get(role, 0)
        if 0 < most < gpus:
            remedy = (
                "trainer pods work together across nodes, so"
                if role == "trainer"
                else "for a model that needs more, take nodes with larger GPUs or an fp8 model, else"
            )
            return (
                f"a {role} replica of {gpus} GPUs is wider than any node that it may run on, the widest has {most}{free}: {NO_GROUPS}; "
                f"{remedy} write spec.{role}.gpusPerReplica: {most} or less"
            )
    return None


def rooms_of(nodes: str, accelerator: str | None = None) -> tuple[Room, ...]:
    """Nodes for an offline plan from a text such as ``8x8`` (nodes × GPUs), or several: ``8x8,2x4``.

    ``near=4x8,far=8x8`` names the pools that they belong to. Raises ValueError with an example if the text is something else.
    """
    rooms: list[Room] = []
    for part in nodes.split(","):
        match = re.fullmatch(r"\s*(?:([-a-z0-9]+)\s*=)?\s*(\d+)\s*[x×]\s*(\d+)\s*", part)
        if match is None or not (0 < int(match[2]) <= 100_000 and 0 < int(match[3]) <= 1024):
            raise ValueError(
                f"{nodes!r} does not describe nodes: write nodes × GPUs of a node, such as 8x8, or 8x8,2x4"
            )
        rooms += [
            Room(f"node-{len(rooms) + i}", int(match[3]), accelerator, pool=match[1]) for i in range(int(match[2]))
        ]
    return tuple(rooms)


def default_rooms(gpus: int, accelerator: str | None = None, gpus_per_node: int | None = None) -> tuple[Room, ...]:
    """The budget in nodes of as many GPUs as this accelerator's have (8 if that is not known), the last of them with what remains."""
    size = gpus_per_node or _gpus_per_node(accelerator)
    full, rest = divmod(gpus, size)
    sizes = [size] * full + ([rest] if rest else [])
    return tuple(Room(f"node-{i}", free, accelerator) for i, free in enumerate(sizes))


def _gpus_per_node(accelerator: str | None) -> int:
    from rljob_planner.hardware import gpu

    if accelerator is None:
        return USUAL_GPUS_PER_NODE
    try:
        return gpu(accelerator).gpus_per_node
    except PlanningError:
        return USUAL_GPUS_PER_NODE
