"""What a job may use, from nodes, pods and quotas as the API server shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_planner.api.spec import RLJobSpec
from rljob_planner.placement import Room


@dataclass(frozen=True)
class QuotaRoom:
    """What a ResourceQuota leaves to a job."""

    name: str
    """The quota's name."""
    gpus: int
    """GPUs that the job may hold under this quota, its own usage included."""


@dataclass(frozen=True)
class Inventory:
    """What the cluster can give to a job right now."""

    rooms: tuple[Room, ...]
    matching_nodes: int
    quota: QuotaRoom | None
    budget: int
    taken_by_others: int
    sampler_accelerator: str | None
    trainer_accelerator: str | None
    notes: tuple[str, ...]

    @property
    def placeable_gpus(self) -> int:
        """GPUs of the budget that free nodes can hold, were every replica one GPU wide."""
        return min(self.budget, sum(room.free_gpus for room in self.rooms))


def take_inventory(
    spec: RLJobSpec,
    uid: str,
    nodes: Iterable[Mapping[str, Any]],
    pods: Iterable[Mapping[str, Any]],
    quotas: Iterable[Mapping[str, Any]],
    other_jobs: Iterable[Mapping[str, Any]],
) -> Inventory:
    """The inventory of the job with ``uid``.

    ``nodes``: all nodes. ``pods``: all pods of the cluster. ``quotas``: the ResourceQuotas of the job's namespace alone.
    ``other_jobs``: all RLJobs as the API returns them (the job itself may be among them: then those that are younger are left out).
    """
    raise NotImplementedError


def shortage(spec: RLJobSpec, inventory: Inventory) -> str | None:
    """None if the job's minima fit, else a sentence that says what is missing and what to do."""
    raise NotImplementedError
