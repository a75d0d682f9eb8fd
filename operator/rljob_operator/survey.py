"""One look at one node: what it has, who holds it, and which of the job's pods it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_operator import products
from rljob_operator.census import Census, Share
from rljob_operator.eligibility import (
    gpu_resources,
    is_node_ready,
    nodes_of,
    pool_of,
    selects,
    untolerated_taints,
)
from rljob_operator.gate import SAMPLER, TRAINER, natural
from rljob_operator.quantity import QuantityError, whole
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.placement import Room

_ROLES = (SAMPLER, TRAINER)
_NAMED = 5

CLAIMS_LABEL = "rljob.dev/resource-claims"
"""Label by which an administrator says of a node what the resource claims of its pods are of."""

CLAIMS_OF_OTHER_DEVICES = "no-gpus"
"""Its value where they hold no GPUs, but network cards, say."""


@dataclass
class Notes:
    """Notes under way: nodes are collected by what is the matter with them, so that 300 cordoned nodes make one sentence."""

    nodes: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Names of nodes by what is said of one and of several."""
    other: list[str] = field(default_factory=list)
    """Sentences about anything else."""

    def node(self, name: str, is_so: str, are_so: str) -> None:
        """Note something of a node, in the words for one node and for several."""
        names = self.nodes.setdefault((is_so, are_so), [])
        if name not in names:
            names.append(name)

    def sentences(self) -> tuple[str, ...]:
        """All notes, those about nodes first, each once."""
        about_nodes = [
            f"node {names[0]} {is_so}" if len(names) == 1 else f"nodes {_listed(names)} {are_so}"
            for (is_so, are_so), names in self.nodes.items()
        ]
        return tuple(dict.fromkeys([*about_nodes, *self.other]))


@dataclass
class Site:
    """A node that a selector of the job allows, looked at for one resource."""

    node: Mapping[str, Any]
    """The node as the API server returns it."""
    resource: str
    """The extended resource that is counted."""
    allocatable: int
    """GPUs that the node offers."""
    own_gpus: int
    """GPUs that the job's own pods hold there."""
    others_gpus: int
    """GPUs that other pods hold there."""
    own_roles: frozenset[str]
    """Roles of the job's own pods there."""
    matching: tuple[str, ...]
    """Roles whose selectors allow the node."""
    open_to: tuple[str, ...] = ()
    """Roles whose new pods the node takes now."""
    keeps: bool = True
    """Whether the job's pods that run there may stay."""
    reserved: int = 0
    """GPUs set aside for other jobs."""
    pool: str | None = None
    """The pool of ``sampler.pools`` that the node belongs to."""
    whole_gpus: bool = True
    """Whether what the node counts are whole GPUs, and not slices or shares of them."""

    @property
    def name(self) -> str:
        """The node's name."""
        return str((self.node.get("metadata") or {}).get("name", ""))

    @property
    def product(self) -> str | None:
        """The GPU's product name by the node's labels, None if they don't say it."""
        return products.product_of(_labels(self.node), self.resource)

    @property
    def unclaimed(self) -> int:
        """GPUs that nobody holds and that are set aside for nobody."""
        return max(0, self.allocatable - self.others_gpus - self.own_gpus - self.reserved)

    def room(self) -> Room | None:
        """What the job may use there, what it holds included; None if that is nothing.

        Where no new pod may go but running ones may stay, the room is as large as what the job holds, for the roles that
        hold it.
        """
        roles: Iterable[str] = self.open_to
        free = max(0, self.allocatable - self.others_gpus - self.reserved)
        if not self.open_to:
            roles = self.own_roles
            free = min(free, self.own_gpus) if self.keeps else 0
        if not free:
            return None
        return Room(
            node=self.name,
            free_gpus=free,
            accelerator=self.product,
            samplers=SAMPLER in roles,
            trainers=TRAINER in roles,
            pool=self.pool,
        )


def survey(spec: RLJobSpec, nodes: Iterable[Mapping[str, Any]], uid: str, census: Census, notes: Notes) -> list[Site]:
    """The nodes that a selector of the job with ``uid`` allows, in order of their names; what is the matter with them goes to ``notes``.

    ``census`` counts all pods of the cluster. A node appears once for each resource that the roles count and that it is asked for.
    """
    resources = sorted(gpu_resources(spec))
    sites = []
    for node in sorted(nodes, key=_order):
        held = census.on_node(str((node.get("metadata") or {}).get("name", "")))
        for resource in resources:
            site = _look(spec, node, resource, uid, held, notes)
            if site is not None:
                _open(spec, site, notes)
                _close_uncountable(site, census.with_claims(site.name, uid), notes)
                sites.append(site)
    return sites


def _look(
    spec: RLJobSpec, node: Mapping[str, Any], resource: str, uid: str, held: Mapping[str, Share], notes: Notes
) -> Site | None:
    status = node.get("status") or {}
    has_gpus = any(resource in (status.get(kind) or {}) for kind in ("allocatable", "capacity"))
    # Without a selector every CPU node matches; only where somebody asked for the node is its lack of GPUs news.
    if not (has_gpus or any(nodes_of(spec, r).selector for r in _ROLES)):
        return None
    roles = tuple(r for r in _ROLES if nodes_of(spec, r).gpu_resource == resource and selects(spec, r, node))
    if not roles or not (has_gpus or any(nodes_of(spec, r).selector for r in roles)):
        return None
    own = held.get(uid)
    try:
        site = Site(
            node=node,
            resource=resource,
            allocatable=whole((status.get("allocatable") or {}).get(resource, 0)),
            own_gpus=0 if own is None else own.of(resource),
            others_gpus=sum(share.of(resource) for other, share in held.items() if other != uid),
            own_roles=frozenset() if own is None else frozenset(own.roles),
            matching=roles,
            pool=None if (pool := pool_of(spec, node)) is None else pool.name,
        )
    except QuantityError as error:
        site = Site(node, resource, 0, 0, 0, frozenset(), roles)
        notes.other.append(f"node {site.name} is left out, since its GPUs can't be counted: {error}")
        return site
    if site.allocatable == 0:
        notes.node(site.name, f"has no allocatable {resource}", f"have no allocatable {resource}")
    return site


def _open(spec: RLJobSpec, site: Site, notes: Notes) -> None:
    if (site.node.get("metadata") or {}).get("deletionTimestamp"):
        site.keeps = False
        notes.node(site.name, "is being deleted", "are being deleted")
        return
    if not is_node_ready(site.node):
        site.keeps = False
        notes.node(site.name, "is not ready", "are not ready")
        return
    if (site.node.get("spec") or {}).get("unschedulable"):
        notes.node(site.name, "is cordoned", "are cordoned")
        return
    open_to = []
    for role in site.matching:
        taints = untolerated_taints(spec, role, site.node)
        if not taints:
            open_to.append(role)
        for taint in taints:
            what = f"the taint {taint}, which {role} pods don't tolerate (to use {{}}, add it to nodes.tolerations)"
            notes.node(site.name, f"has {what.format('it')}", f"have {what.format('them')}")
        if any(taint.endswith(":NoExecute") for taint in taints):
            site.keeps = False
    site.open_to = tuple(open_to)


def _close_uncountable(site: Site, claims: int, notes: Notes) -> None:
    """Closes a node to new pods where nobody can say how many whole GPUs are free on it: what runs there may stay.

    A claim may hold any device of the node, and the pod that uses it does not say which: what the device plugin counts and what a claim
    was given may be the same GPU.
    """
    if site.allocatable == 0:
        return
    labels = _labels(site.node)
    instead = products.not_whole(labels, site.resource)
    if instead is not None:
        site.open_to = ()
        site.whole_gpus = False
        counts, count = instead.partition(" ")[::2]
        remedy = (
            "a replica needs whole GPUs, so leave {} out with nodes.selector or have the device plugin count whole ones"
        )
        notes.node(site.name, f"{counts} {count}: {remedy.format('it')}", f"count {count}: {remedy.format('them')}")
    if claims and labels.get(CLAIMS_LABEL) != CLAIMS_OF_OTHER_DEVICES:
        site.open_to = ()
        what = "pods of others with resource claims, which may hold any of {} GPUs"
        remedy = f"if they hold none, say so with the label {CLAIMS_LABEL}={CLAIMS_OF_OTHER_DEVICES}"
        notes.node(site.name, f"has {what.format('its')}: {remedy}", f"have {what.format('their')}: {remedy}")


def _labels(node: Mapping[str, Any]) -> Mapping[str, str]:
    return (node.get("metadata") or {}).get("labels") or {}


def _order(node: Mapping[str, Any]) -> tuple[str | int, ...]:
    return natural(str((node.get("metadata") or {}).get("name", "")))


def _listed(names: Sequence[str]) -> str:
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"
