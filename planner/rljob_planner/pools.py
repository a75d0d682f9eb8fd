"""Samplers that span node pools: where they fit beside the trainers, which pools come first, and what the mixed fleet is worth.

The pools differ in speed, in KV room and in what fits on them. Faster pools are filled first, since a GPU of theirs makes more tokens;
trainers that may run on a pool's nodes take the places whose loss costs the least rollout.

A mixed fleet is simulated as a fleet of equal replicas, each the mean of all. Requests go to the replica that runs the fewest, so
all replicas run about as many whatever their speed, and the rate of the fleet with n samples on each is Σ 1/t_i(n): the mean replica's
iteration takes the harmonic mean of the replicas' at every n, exactly at the mean context and to first order around it. What this
leaves out is the spread: a sample on a slow pool takes longer than the mean, so the tail of staleness is somewhat longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rljob_planner.api.spec import RLJobSpec
from rljob_planner.placement import Room, default_rooms, frontier
from rljob_planner.simulate import DecodeCost
from rljob_planner.split import PoolSplit


@dataclass(frozen=True)
class PoolSpeed:
    """A pool for samplers of one width."""

    name: str
    rate: float
    """Iterations of a full replica per second times its running samples: tokens/s of one replica."""
    most: int | None
    """Most replicas that the spec allows there, None for any number."""


def allocations(
    rooms: Sequence[Room], speeds: Sequence[PoolSpeed], width: int, trainer_gpus: int, most_trainers: int
) -> NDArray[np.int64]:
    """The most samplers of ``width`` GPUs in each pool beside 0, 1, 2, … trainers: an array (trainers + 1, pools).

    Each further trainer goes where it costs the least rollout. On every pool a further trainer costs no less than the one before
    (``placement.frontier`` says when that is not so), so that taking the cheapest place each time is best.
    """
    groups: list[tuple[int | None, float, NDArray[np.int64]]] = []
    for at, pool in enumerate(speeds):
        here = [room for room in rooms if room.samplers and room.pool == pool.name]
        table = frontier(here, width, trainer_gpus, most_trainers)
        groups.append((at, pool.rate, table if pool.most is None else np.minimum(table, pool.most)))
    names = {pool.name for pool in speeds}
    rest = [r for r in rooms if not r.samplers or r.pool not in names]
    places = sum(room.free_gpus // trainer_gpus for room in rest if room.trainers)
    groups.append((None, 0.0, np.zeros(min(places, most_trainers) + 1, dtype=np.int64)))

    taken = [0] * len(groups)
    now = np.array([table[0] for at, _, table in groups if at is not None], dtype=np.int64)
    found = [now.copy()]
    while len(found) <= most_trainers:
        open_groups = [g for g, (_, _, table) in enumerate(groups) if taken[g] + 1 < len(table)]
        if not open_groups:
            break

        def loss(g: int) -> tuple[float, int]:
            _, rate, table = groups[g]
            return rate * float(table[taken[g]] - table[taken[g] + 1]), -g

        best = min(open_groups, key=loss)
        taken[best] += 1
        column, _, table = groups[best]
        if column is not None:
            now[column] = table[taken[best]]
        found.append(now.copy())
    return np.array(found)


def chosen(most: Sequence[int], speeds: Sequence[PoolSpeed], replicas: int) -> tuple[PoolSplit, ...]:
    """So many replicas dealt out to the pools, the fastest first; ``most`` is what each pool holds, in the order of ``speeds``."""
    left, found = replicas, dict.fromkeys((pool.name for pool in speeds), 0)
    for at in sorted(range(len(speeds)), key=lambda at: (-speeds[at].rate, at)):
        found[speeds[at].name] = min(left, int(most[at]))
        left -= found[speeds[at].name]
    return tuple(PoolSplit(name=name, replicas=count) for name, count in found.items())


def mixed(parts: Sequence[tuple[int, DecodeCost]], context_tokens: float, operating: float) -> DecodeCost:
    """The cost of the mean replica of a fleet; ``parts`` are replicas and their cost, ``operating`` the samples that one usually runs."""
    total = sum(count for count, _ in parts)
    n = np.arange(len(parts[0][1].fixed_s), dtype=np.float64)
    resident = n * context_tokens

    def seconds(cost: DecodeCost, running: NDArray[np.float64], tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        at = np.minimum(running.astype(np.int64), len(cost.fixed_s) - 1)
        memory = cost.memory_s[at] + cost.memory_s_per_token * tokens
        compute = cost.compute_s[at] + cost.compute_s_per_token * tokens
        return np.asarray(cost.fixed_s[at] + np.maximum(memory, compute))

    each = [(count / total, seconds(cost, n, resident)) for count, cost in parts]
    rate = np.zeros_like(n)
    for share, s in each:
        rate += share / np.maximum(s, 1e-12)
    mean = 1.0 / rate
    here = max(1, min(len(n) - 1, round(operating)))
    slope = sum(
        (share * (mean[here] / s[here]) ** 2 * cost.memory_s_per_token)
        for (share, s), (_, cost) in zip(each, parts, strict=True)
    )
    # Where few run, less may be resident than the slope at the usual number supposes; no iteration takes less than nothing.
    table = np.maximum(mean - slope * resident, 0.0)

    def average(values: Sequence[float]) -> float:
        return sum(count * value for (count, _), value in zip(parts, values, strict=True)) / total

    return DecodeCost(
        fixed_s=np.zeros_like(table),
        memory_s=table,
        compute_s=np.zeros_like(table),
        memory_s_per_token=float(slope),
        compute_s_per_token=0.0,
        prefill_s_per_sample=average([cost.prefill_s_per_sample for _, cost in parts]),
        recompute_s_per_token=average([cost.recompute_s_per_token for _, cost in parts]),
    )


def rooms_for(spec: RLJobSpec) -> tuple[Room, ...]:
    """Nodes for a job of which nobody says any: the budget in nodes of a usual size.

    Of a job with pools each pool has as many GPUs as it may use, beside nodes for the trainers.
    """
    rooms = default_rooms(spec.gpus, spec.accelerator)
    if not spec.sampler.pools:
        return rooms
    found = [replace(room, node=f"trainer-{room.node}", samplers=False) for room in rooms]
    for pool in spec.sampler.pools:
        most = spec.gpus if pool.max_gpus is None else min(spec.gpus, pool.max_gpus)
        for room in default_rooms(most, pool.accelerator or spec.accelerator):
            found.append(replace(room, node=f"{pool.name}-{room.node}", trainers=False, pool=pool.name))
    return tuple(found)


def words(pools: Sequence[PoolSplit]) -> str:
    """The pools of a split for people, such as ``8 samplers in near, 4 in far``."""
    named = [f"{p.replicas} in {p.name}" for p in pools]
    return f"samplers: {', '.join(named)}"


def mixed_note(unlike: Sequence[str]) -> str:
    """What to say of a fleet of unlike GPUs; empty for a fleet of one kind."""
    if len(unlike) < 2:
        return ""
    return (
        f"samplers on {' and '.join(unlike)} are simulated as replicas of their mean speed: the rate is that of the mixed fleet, but "
        "samples on the slower GPUs take longer than the mean, so that the stalest samples are somewhat staler than stated"
    )
