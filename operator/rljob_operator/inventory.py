"""What a job may use, from nodes, pods and quotas as the API server shows them.

GPUs are not a sum: a replica of eight needs eight free on one node that its pods may run on. So the inventory is a list of
rooms, one a node, and the budget beside it, which a quota may lower. What the job itself holds counts as free, since the
planner is asked how to split it anew. Everything that is left out is left out with a note, because "no node" alone helps
nobody: what people need to read is which node, and why not.

What can't be known is never counted as free. A node without the resource has none; one whose numbers can't be read is left
out; pods of others that wait for a node compete, and are reported rather than guessed at.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_operator import reservation
from rljob_operator.census import Census
from rljob_operator.eligibility import gpu_resources, nodes_of, selects, template_of, tolerations_of
from rljob_operator.gate import SAMPLER, TRAINER, Pod, pod_gpus
from rljob_operator.holders import Holder, holders_of, in_words
from rljob_operator.quota import Neighbour, QuotaRoom, quota_rooms
from rljob_operator.reservation import Claim, claims_of, minima_of
from rljob_operator.survey import Notes, Site, survey
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.placement import Room

__all__ = ["Inventory", "QuotaRoom", "shortage", "take_inventory"]

_ROLES = (SAMPLER, TRAINER)


@dataclass(frozen=True)
class Inventory:
    """What the cluster can give to a job right now."""

    rooms: tuple[Room, ...]
    """Nodes with GPUs that the job may use, what it holds there included. A node appears twice if the roles count
    different resources."""
    matching_nodes: int
    """Nodes that a selector of the job allows, whether or not they can take pods now."""
    quota: QuotaRoom | None
    """The tightest ResourceQuota that covers the job's pods, None if none does."""
    budget: int
    """GPUs that the job may hold: ``spec.gpus``, or what the quota leaves if that is less."""
    taken_by_others: int
    """GPUs on the matching nodes that other pods hold or that are set aside for other jobs."""
    sampler_accelerator: str | None
    """The GPU product of the samplers' nodes: ``spec.accelerator`` if it is said, the most common product if the nodes
    differ, None if they don't say."""
    trainer_accelerator: str | None
    """The GPU product of the trainers' nodes, in the same way."""
    notes: tuple[str, ...]
    """What was left out and why, sentences for people."""
    holders: tuple[Holder, ...] = ()
    """Who has the GPUs that are taken, the largest first."""
    widest: Mapping[str, int] = field(default_factory=dict)
    """By role the GPUs of the widest node that its pods may run on, whoever holds them now; nodes that count slices are none."""

    @property
    def placeable_gpus(self) -> int:
        """GPUs of the budget that the rooms hold, were every replica one GPU wide."""
        return min(self.budget, sum(room.free_gpus for room in self.rooms))


def take_inventory(
    spec: RLJobSpec,
    uid: str,
    nodes: Iterable[Mapping[str, Any]],
    pods: Iterable[Pod] | Census,
    quotas: Iterable[Mapping[str, Any]],
    other_jobs: Iterable[Mapping[str, Any]],
) -> Inventory:
    """The inventory of the job with ``uid``.

    ``nodes`` are all nodes, ``pods`` all pods of the cluster or their census, ``quotas`` the ResourceQuotas of the job's namespace alone,
    ``other_jobs`` the RLJobs of all namespaces as the API returns them (the job itself may be among them; if it is not, all come
    before it). What others have been promised and have no node for is set aside, on the most free node first; ``reservation`` says
    who is promised what.

    A node that takes no new pods (cordoned, or with a taint that keeps new pods away) stays a room as large as what the job
    holds there: a cordon is no reason to move what runs.
    """
    census = Census.of(pods)
    nodes, quotas, jobs = tuple(nodes), tuple(quotas), sorted(_that_hold(other_jobs, uid), key=reservation.rank)
    notes = Notes()
    spec = _readable(spec, notes)
    sites = survey(spec, nodes, uid, census, notes)
    names, reserving, reserved = {}, set(), Counter[str]()
    left = sum(site.unclaimed for site in sites)
    before = {_uid(job) for job in reservation.ahead(jobs, uid)}
    for job in jobs:
        other, name = _uid(job), reservation.name_of(job)
        names[other] = name
        if other == uid:
            continue
        claims, about = claims_of(job, census)
        notes.other.extend(about)
        if not claims and other in before and left > 0 and not reservation.has_split(job):
            claims = minima_of(job, nodes)
        for claim in claims:
            reserving.add(other)
            gpus = _reserve(claim, sites)
            reserved[name] += gpus
            left -= gpus
    resources = gpu_resources(spec)
    _note_waiting(census, {uid, *reserving}, resources, notes)
    _note_unchecked(spec, _ROLES, notes)
    rooms_under, about_quotas = quota_rooms(
        quotas,
        templates={r: template_of(spec, r) for r in _ROLES},
        resources=resources,
        uid=uid,
        census=census,
        neighbours=_neighbours(jobs, uid) if quotas else (),
    )
    notes.other.extend(about_quotas)
    quota = min(rooms_under, key=lambda room: room.gpus, default=None)
    accelerators = {role: _accelerator(spec, role, sites, notes) for role in _ROLES}
    # Whether a lost node still computes nobody knows, so what the job's pods hold there is held.
    unreachable = sum(site.own_gpus for site in sites if not site.keeps)
    return Inventory(
        rooms=tuple(room for site in sites if (room := site.room()) is not None),
        matching_nodes=len({site.name for site in sites}),
        quota=quota,
        budget=max(0, min(spec.gpus if quota is None else min(spec.gpus, quota.gpus), spec.gpus - unreachable)),
        taken_by_others=sum(min(s.allocatable, s.others_gpus + s.reserved) for s in sites),
        sampler_accelerator=accelerators[SAMPLER],
        trainer_accelerator=accelerators[TRAINER],
        notes=notes.sentences(),
        holders=holders_of(sites, census, uid, names, reserved),
        widest={
            role: max((s.allocatable for s in sites if role in s.matching and s.whole_gpus), default=0)
            for role in _ROLES
        },
    )


def shortage(spec: RLJobSpec, inventory: Inventory) -> str | None:
    """None if the job's minima fit, else a sentence that says what is missing and what to do.

    Fits means: within the budget, and packed onto the rooms exactly (trainers where samplers can't go, and so on), not by a
    sum of free GPUs.
    """
    samplers, sampler_width = spec.sampler.min_replicas, spec.sampler.gpus_per_replica or 1
    trainers, trainer_width = spec.trainer.min_replicas, spec.trainer.gpus_per_replica
    need = samplers * sampler_width + trainers * trainer_width
    asks = (
        f"needs at least {_fleet(samplers, 'sampler', sampler_width)} and {_fleet(trainers, 'trainer', trainer_width)}, "
        f"each replica on one node"
    )
    lower = "lower minReplicas or gpusPerReplica of spec.sampler or spec.trainer"
    if need > spec.gpus:
        return f"{asks}: {need} GPUs, but the budget is {spec.gpus}: raise spec.gpus to {need} or more, or {lower}"
    quota = inventory.quota
    if quota is not None and need > quota.gpus:
        return (
            f"{asks}: {need} GPUs, but ResourceQuota {quota.name} leaves {quota.gpus} to the job: raise the quota's "
            f"requests.{nodes_of(spec, TRAINER).gpu_resource} by {need - quota.gpus} or more, or {lower}"
        )
    fitting = _most_samplers(inventory.rooms, trainers, trainer_width, sampler_width)
    if fitting is not None and fitting >= samplers:
        return None
    return f"{asks}; {_what_is_free(spec, inventory, trainers, trainer_width)}{in_words(inventory.holders)}"


def _readable(spec: RLJobSpec, notes: Notes) -> RLJobSpec:
    """The spec without templates that can't be read: they are reported where the children are made, not here."""
    for role in _ROLES:
        try:
            selects(spec, role, {})
            tolerations_of(spec, role)
            pod_gpus(template_of(spec, role), gpu_resources(spec))
            _note_unchecked(spec, (role,), Notes())
        except (AttributeError, KeyError, TypeError, ValueError):
            notes.other.append(f"spec.{role}.template can't be read, so its own demands on nodes are left out")
            side = getattr(spec, role).model_copy(update={"template": {}})
            spec = spec.model_copy(update={role: side})
    return spec


def _that_hold(jobs: Iterable[Mapping[str, Any]], uid: str) -> Iterator[Mapping[str, Any]]:
    """The jobs that are promised GPUs: those that adopt workloads hold none, and their workloads' pods count by themselves."""
    for job in jobs:
        if _uid(job) == uid or "targetRef" not in ((job.get("spec") or {}).get("sampler") or {}):
            yield job


def _reserve(claim: Claim, sites: Sequence[Site]) -> int:
    """Sets aside what a claim asks for as far as it is there; returns the GPUs."""
    # The most free node comes first, so whether it is allowed is only asked of the few that are looked at.
    by_room = [(-s.unclaimed, i) for i, s in enumerate(sites) if s.resource == claim.resource and s.open_to]
    heapq.heapify(by_room)
    left = claim.replicas
    # Fragments that are too narrow for the other job's replica help it in no way, so they stay free.
    while left and by_room and -by_room[0][0] >= claim.gpus_per_replica:
        _, i = heapq.heappop(by_room)
        if claim.allows(sites[i].node):
            sites[i].reserved += claim.gpus_per_replica
            left -= 1
            heapq.heappush(by_room, (-sites[i].unclaimed, i))
    return (claim.replicas - left) * claim.gpus_per_replica


def _neighbours(jobs: Sequence[Mapping[str, Any]], uid: str) -> tuple[Neighbour, ...]:
    """The other jobs of the namespace of the job with ``uid`` that have a split; none if it is not among ``jobs``, which are in order."""
    at = next((i for i, job in enumerate(jobs) if _uid(job) == uid), None)
    if at is None:
        return ()
    namespace = jobs[at]["metadata"].get("namespace")
    found = []
    for i, job in enumerate(jobs):
        if i == at or job["metadata"].get("namespace") != namespace or not reservation.has_split(job):
            continue
        spec = reservation.spec_of(job)
        gpus = reservation.split_gpus(job)
        found.append(Neighbour(_uid(job), gpus, gpus if spec is None else minima_gpus(spec), i > at))
    return tuple(found)


def minima_gpus(spec: RLJobSpec) -> int:
    """GPUs of the smallest split that a spec allows."""
    samplers = spec.sampler.min_replicas * (spec.sampler.gpus_per_replica or 1)
    return samplers + spec.trainer.min_replicas * spec.trainer.gpus_per_replica


def _uid(job: Mapping[str, Any]) -> str:
    return str((job.get("metadata") or {}).get("uid", ""))


def _accelerator(spec: RLJobSpec, role: str, sites: Sequence[Site], notes: Notes) -> str | None:
    if spec.accelerator is not None:
        return spec.accelerator
    if role == SAMPLER and spec.sampler.pools:
        # Each pool has its own, and the planner reads them from the rooms.
        return None
    candidates = [s for s in sites if role in s.open_to] or [s for s in sites if role in s.matching]
    gpus: Counter[str] = Counter()
    for site in candidates:
        if site.product is not None:
            gpus[site.product] += max(1, site.allocatable)
    ranked = sorted(gpus, key=lambda product: (-gpus[product], product))
    if len(ranked) > 1:
        shares = ", ".join(f"{product} ({gpus[product]} GPUs)" for product in ranked)
        notes.other.append(
            f"the nodes of {role} pods mix accelerators: {shares}; the plan is made for {ranked[0]}: "
            f"narrow spec.{role}.nodes.selector to one of them"
        )
    return ranked[0] if ranked else None


def _note_waiting(census: Census, known: Collection[str], resources: Iterable[str], notes: Notes) -> None:
    resources = tuple(resources)
    asked = [gpus for pod in census.waiting if pod.uid not in known and (gpus := pod.asks(resources))]
    if asked:
        pods = "1 pod of others waits" if len(asked) == 1 else f"{len(asked)} pods of others wait"
        notes.other.append(f"{pods} for a node and may take {sum(asked)} GPUs of what is free")


def _note_unchecked(spec: RLJobSpec, roles: Iterable[str], notes: Notes) -> None:
    for role in roles:
        pod_spec = template_of(spec, role).get("spec") or {}
        affinity = pod_spec.get("affinity") or {}
        rules = [
            kind
            for kind in ("podAffinity", "podAntiAffinity")
            if (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        ]
        if any(c.get("whenUnsatisfiable") != "ScheduleAnyway" for c in pod_spec.get("topologySpreadConstraints") or ()):
            rules.append("topologySpreadConstraints")
        if rules:
            notes.other.append(
                f"the plan does not check {' and '.join(rules)} of spec.{role}.template; fewer pods may fit"
            )


def _most_samplers(rooms: Sequence[Room], trainers: int, trainer_width: int, sampler_width: int) -> int | None:
    """Most samplers beside ``trainers`` trainers, exactly; None if not even the trainers fit.

    ``best[k]`` is the most samplers on the rooms seen so far beside k trainers there.
    """
    best: list[int | None] = [0] + [None] * trainers
    for room in rooms:
        most_here = room.free_gpus // trainer_width if room.trainers else 0
        seen = best.copy()
        best = [None] * (trainers + 1)
        for before, samplers in enumerate(seen):
            if samplers is None:
                continue
            for here in range(min(most_here, trainers - before) + 1):
                beside = (room.free_gpus - here * trainer_width) // sampler_width if room.samplers else 0
                k = before + here
                best[k] = max(best[k] or 0, samplers + beside)
    return best[trainers]


def _what_is_free(spec: RLJobSpec, inventory: Inventory, trainers: int, trainer_width: int) -> str:
    resource = nodes_of(spec, TRAINER).gpu_resource
    if inventory.matching_nodes == 0:
        return (
            f"no node with {resource} matches: change spec.nodes.selector or the template's node affinity, "
            f"label nodes, or add some"
        )
    if not inventory.rooms:
        why = f" ({'; '.join(inventory.notes[:3])})" if inventory.notes else ""
        return (
            f"none of the {inventory.matching_nodes} matching nodes has a free GPU, others hold "
            f"{inventory.taken_by_others}{why}: free GPUs or add nodes"
        )
    free = sum(room.free_gpus for room in inventory.rooms)
    widths = {
        TRAINER: max((room.free_gpus for room in inventory.rooms if room.trainers), default=0),
        SAMPLER: max((room.free_gpus for room in inventory.rooms if room.samplers), default=0),
    }
    sampler_width = spec.sampler.gpus_per_replica or 1
    for role, width in ((TRAINER, trainer_width), (SAMPLER, sampler_width)):
        if widths[role] < width:
            return (
                f"the widest free node for a {role} has {widths[role]}: free GPUs, lower "
                f"spec.{role}.gpusPerReplica, or add nodes"
            )
    fitting = sum(room.free_gpus // trainer_width for room in inventory.rooms if room.trainers)
    if fitting < trainers:
        return f"free nodes hold {fitting} of the {trainers} trainers: free GPUs, lower spec.trainer.minReplicas, or add nodes"
    return (
        f"beside the trainers the {free} free GPUs on {len(inventory.rooms)} nodes don't hold the samplers: free GPUs, "
        f"lower spec.sampler.minReplicas, or add nodes"
    )


def _fleet(replicas: int, role: str, width: int) -> str:
    gpus = "1 GPU" if width == 1 else f"{width} GPUs"
    return f"{replicas} {role}{'' if replicas == 1 else 's'} of {gpus}"
