"""Node pools that samplers may span: each with nodes of its own, perhaps other GPUs, and a limit."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from rljob_planner.api.base import ApiModel, Int, Rule
from rljob_planner.api.nodes import Toleration

MOST_POOLS = 16


class SamplerPool(ApiModel):
    """One pool of nodes for samplers."""

    name: str = Field(
        min_length=1,
        max_length=30,
        pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="Name of the pool, unique in the job.",
    )
    selector: dict[str, str] = Field(
        min_length=1,
        max_length=32,
        description="Labels of the pool's nodes, such as a zone, in place of spec.nodes.selector; a node is of the first pool that fits.",
    )
    tolerations: tuple[Toleration, ...] = Field(
        default=(), max_length=32, description="Tolerations added to those of spec.nodes."
    )
    accelerator: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="The GPU's name, for nodes without the label nvidia.com/gpu.product; spec.accelerator if absent.",
    )
    max_gpus: Int | None = Field(
        default=None,
        alias="maxGPUs",
        ge=0,
        le=1_000_000,
        description="Most GPUs of the pool that samplers may hold; as many as there are if absent. 0 takes no new ones.",
    )


POOL_RULES: tuple[Rule, ...] = (
    Rule(
        rule="!has(self.pools) || !has(self.nodes)",
        message=(
            "sampler.pools and sampler.nodes both say where samplers run: keep pools, each with its selector and tolerations, or "
            "nodes; the GPU resource of pools is that of spec.nodes"
        ),
        holds=lambda sampler: not sampler.pools or sampler.nodes is None,
        field="nodes",
    ),
)
"""Rules of a sampler side that speaks of pools."""


def _named_apart(pools: tuple[SamplerPool, ...]) -> tuple[SamplerPool, ...]:
    """The twin of the list's map key in the CRD."""
    names = [pool.name for pool in pools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PydanticCustomError(
            "duplicate", "two pools are called {name}: give each its own name", {"name": twice[0]}
        )
    return pools


Pools = Annotated[tuple[SamplerPool, ...], AfterValidator(_named_apart)]
"""Pools with names of their own."""
