"""Which GPU each role runs on, from what the user said and what the nodes say.

A split has one GPU type a role: its times are those of that type. Nodes of two types for one role would make the prediction
wrong in a way that no calibration repairs, so that is an error with a remedy rather than an average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_planner.api.spec import RLJobSpec
from rljob_planner.errors import PlanningError
from rljob_planner.hardware import Gpu, gpu
from rljob_planner.placement import Room


@dataclass(frozen=True)
class Accelerators:
    """The GPU type of each role."""

    sampler: Gpu
    """That of all samplers; where they span pools, of the first pool that has nodes."""
    trainer: Gpu
    pools: tuple[tuple[str, Gpu], ...] = ()
    """The GPU type of each of ``sampler.pools`` that is known, in the order of the spec."""

    def of_pool(self, name: str) -> Gpu:
        """The GPU type of a pool; that of the samplers if the pool's is not known."""
        return dict(self.pools).get(name, self.sampler)


def accelerators_of(spec: RLJobSpec, rooms: Sequence[Room]) -> Accelerators:
    """The GPU type of each role: what its nodes say, and ``spec.accelerator`` for nodes that say nothing.

    A name in ``spec.accelerator`` that the nodes contradict gives way to the nodes, where they agree with each other. Raises
    PlanningError ``UnknownAccelerator`` or ``MixedAccelerators``.
    """
    stated = None if spec.accelerator is None else gpu(spec.accelerator)
    if spec.sampler.pools:
        pools = _of_pools(spec, stated, rooms)
        return Accelerators(
            pools[0][1] if pools else _of_role("sampler", stated, []),
            _of_role("trainer", stated, [r for r in rooms if r.trainers]),
            pools,
        )
    return Accelerators(
        _of_role("sampler", stated, [r for r in rooms if r.samplers]),
        _of_role("trainer", stated, [r for r in rooms if r.trainers]),
    )


def _of_pools(spec: RLJobSpec, stated: Gpu | None, rooms: Sequence[Room]) -> tuple[tuple[str, Gpu], ...]:
    """The GPU type of each pool that has nodes, or says which GPU it has; those with nodes first."""
    with_nodes, without = [], []
    for pool in spec.sampler.pools:
        here = [r for r in rooms if r.samplers and r.pool == pool.name and r.free_gpus > 0]
        own = stated if pool.accelerator is None else gpu(pool.accelerator)
        if here:
            with_nodes.append((pool.name, _of_role(f"sampler of pool {pool.name}", own, here)))
        elif own is not None:
            without.append((pool.name, own))
    return (*with_nodes, *without)


def _of_role(role: str, stated: Gpu | None, rooms: Sequence[Room]) -> Gpu:
    products = sorted({r.accelerator for r in rooms if r.free_gpus > 0 and r.accelerator is not None})
    found: dict[str, Gpu] = {}
    for product in products:
        try:
            known = gpu(product)
        except PlanningError:
            if stated is None:
                raise
            continue
        found[known.name] = known
    if len(found) > 1:
        raise PlanningError(
            "MixedAccelerators",
            f"the nodes that may run {role}s have different GPUs ({', '.join(sorted(found))}): choose one of them with "
            f"{role}.nodes.selector, such as nvidia.com/gpu.product",
        )
    if found:
        return next(iter(found.values()))
    if stated is None:
        raise PlanningError(
            "UnknownAccelerator",
            f"no node that may run {role}s says which GPU it has: set spec.accelerator, such as H100-SXM, or label the nodes "
            "with nvidia.com/gpu.product",
        )
    return stated
