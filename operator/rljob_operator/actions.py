"""What a pass does to the cluster: children, the layout, deletion costs, gates and events.

Each action compares before it writes, so a pass over a job that is as it should be sends nothing. All of them follow from
the persisted status, never from something that only this process knows. And each write speaks of the version that was
compared: where somebody else wrote in between, the pass ends with a conflict and the next one compares again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rljob_operator import children, gate, upgrade
from rljob_operator.cluster import EVENTS, PODS, Api, ClusterError, Json, preconditions, resource_of, version_of
from rljob_operator.companions import SANDBOX
from rljob_operator.fence import held_by_another
from rljob_operator.layout import LAYOUT_FILE
from rljob_operator.lifecycle import Workloads
from rljob_operator.pools import POOL_LABEL
from rljob_operator.rebalance import Targets, timestamp
from rljob_operator.together import together
from rljob_operator.trouble import owned_by, taken
from rljob_operator.view import View
from rljob_planner.api import GROUP, KIND, VERSION
from rljob_planner.api.pools import SamplerPool
from rljob_planner.api.spec import RLJob
from rljob_planner.api.status import MovePhase
from rljob_planner.split import Split

logger = logging.getLogger(__name__)

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
LAYOUT_ANNOTATION = "rljob.dev/layout-generation"
"""Touched on pods when the layout changes: kubelets then sync the volume at once instead of within their period."""

VICTIM_COST = "-1000"

DRAINED_COST = "-2000"
"""Of a victim that goes at once, while others still drain."""

WAY = frozenset({"MoveStarted", *(f"Move{phase.value}" for phase in MovePhase)})
"""Events of a move's way: each has an occasion of its own, though an earlier move may have told its in the same words."""


@dataclass(frozen=True)
class Applied:
    """What was found while the children were applied."""

    edits: tuple[str, ...] = ()
    """What somebody else had edited and was restored, in words."""
    held: tuple[str, ...] = ()
    """Workloads whose new template waits, by kind and name."""


Pin = Callable[[Sequence[Json]], Mapping[str, SamplerPool]]
"""The pool of each sampler whose gate is lifted now, by uid, from the job's pods; the others may run wherever their template says."""


def unpinned(_pods: Sequence[Json]) -> Mapping[str, SamplerPool]:
    """No pod is told where to run."""
    return {}


class Actions:
    """The writes of one job's passes."""

    def __init__(self, cluster: Api, view: View, uid: str) -> None:
        self._cluster = cluster
        self._view = view
        self._uid = uid
        self._said: dict[str, str] = {}
        self._layout: dict[str, Any] | None = None
        self._layout_version = 0
        self._written: dict[tuple[str, str], Json] = {}
        """Children as this process wrote them last, by kind and name."""
        self._alike: dict[tuple[str, str], tuple[str, str]] = {}
        """Version of a child and identity of the desired state that were compared last and did not differ, by kind and name."""
        self._untouched: dict[str, int] = {}
        """Layout generation that pods are still to be told of, by uid."""

    async def apply_children(
        self, job: RLJob, split: Split, targets: Targets, *, hold_templates: bool = False
    ) -> Applied:
        """Brings workloads and Services to their desired state.

        With ``hold_templates`` a workload whose pods would be rolled keeps its template for now, and is only scaled.
        """
        edits: list[str] = []
        held: list[str] = []
        # Trainers first: their pods are the wider ones, and should be there when gates are lifted.
        workloads = (
            children.trainer_workload(job, split, targets.trainers),
            children.sampler_workload(job, split, targets.samplers),
        )
        for desired in (*children.services(job), *workloads):
            kind, name = desired["kind"], desired["metadata"]["name"]
            live, wished = self._live(desired), desired
            if live is not None:
                # Comparing is most of an idle pass, and the same two compare the same again.
                pair = (str(live["metadata"]["resourceVersion"]), upgrade.identity(desired))
                if self._alike.get((kind, name)) == pair:
                    continue
                before = None
                if name == children.samplers_name(job) and kind == "Deployment":
                    before = partial(children.sampler_workload, job, split, targets.samplers, bare=True)
                change = upgrade.change(live, desired, before)
                if not change.differing:
                    self._alike[kind, name] = pair
                    continue
                wished = change.desired
                # What somebody did to running pods is undone at once; a record that he has spoilt is no reason to roll them now.
                if any(path.startswith("spec.") for path in change.edited) or (
                    change.edited and not (hold_templates and change.rolls)
                ):
                    edits.append(f"{kind} {name}: {', '.join(change.edited)}")
                elif hold_templates and change.rolls:
                    held.append(f"{kind} {name}")
                    await self._scale(desired, live, int(desired["spec"]["replicas"]))
                    continue
            await self._apply(wished, live)
        return Applied(tuple(edits), tuple(held))

    async def strangers(self, job: RLJob, split: Split) -> list[Json]:
        """The objects that have the names of the job's children and are none of its own."""
        found = []
        for wished in (
            children.layout_config_map(job, ""),
            *children.services(job),
            children.sampler_workload(job, split, 0),
            children.trainer_workload(job, split, 0),
        ):
            meta = wished["metadata"]
            obj = await self._cluster.get(resource_of(wished), meta["namespace"], meta["name"])
            if obj is not None and not owned_by(obj, self._uid):
                found.append(obj)
        return found

    async def scale(self, job: RLJob, workloads: Workloads, targets: Targets, *, down_only: bool = False) -> None:
        """Gives the workloads that are there these numbers of pods and changes nothing else of them.

        What frees GPUs must not hang on a template that can't be applied any more.
        """
        kinds = ("Deployment", job.spec.trainer.kind.value)
        wanted = (targets.samplers, targets.trainers)
        for live, kind, replicas in zip(workloads, kinds, wanted, strict=True):
            if live is not None and not (down_only and replicas > int(live["spec"].get("replicas", 1))):
                workload = {"apiVersion": "apps/v1", "kind": kind, "metadata": live["metadata"]}
                await self._scale(workload, dict(live), replicas)

    async def _scale(self, obj: Json, live: Json, replicas: int) -> None:
        latest = self._latest(obj, live)
        if latest is None or int(latest["spec"].get("replicas", 1)) == replicas:
            return
        meta = obj["metadata"]
        patch = {"metadata": preconditions(latest), "spec": {"replicas": replicas}}
        written = await self._cluster.merge(resource_of(obj), meta["namespace"], meta["name"], patch)
        self._written[obj["kind"], meta["name"]] = written

    async def apply_companion(self, desired: Json) -> str | None:
        """Brings an object that is no part of the split to its desired state; returns what somebody else had edited, in words."""
        kind, name = desired["kind"], desired["metadata"]["name"]
        live = self._live(desired)
        edited: tuple[str, ...] = ()
        if live is not None:
            change = upgrade.change(live, desired)
            if not change.differing:
                return None
            desired, edited = change.desired, change.edited
        await self._apply(desired, live)
        return f"{kind} {name}: {', '.join(edited)}" if edited else None

    async def remove(self, child: Json) -> None:
        """Deletes a child that the spec no longer asks for, if there is one; ``child`` names kind, namespace and name."""
        meta = child["metadata"]
        live = self._live(child)
        if live is not None and not live["metadata"].get("deletionTimestamp"):
            await self._cluster.delete(resource_of(child), meta["namespace"], meta["name"], preconditions(live))

    def published(self, job: RLJob) -> dict[str, Any] | None:
        """The layout that the API server holds; None if there is none, or one that somebody made unreadable.

        While the view lags behind what this process wrote, that counts.
        """
        live = self._live_layout(job)
        if live is None:
            # Deleted by somebody, or not seen yet: writing it again is right in both cases.
            self._layout = None
            return None
        if self._layout is not None and version_of(live) < self._layout_version:
            return self._layout
        return readable_layout((live.get("data") or {}).get(LAYOUT_FILE))

    async def publish_layout(self, job: RLJob, text: str, generation: int, pods: Iterable[Json] | None) -> None:
        """Writes the layout; ``touch`` then tells the pods, if they are given: None is for what is no news to them."""
        live = self._live_layout(job)
        written = await self._apply(children.layout_config_map(job, text), live)
        self._layout, self._layout_version = readable_layout(text), version_of(written)
        if pods is None:
            return
        # Sandboxes see no layout, and there may be hundreds.
        told = (pod for pod in pods if gate.role_of(pod) != SANDBOX)
        held = (pod for pod in told if gate.is_held(pod) and not gate.is_terminating(pod))
        self._untouched = {gate.uid_of(pod): generation for pod in held}

    async def touch(self, pods: Iterable[Json]) -> bool:
        """Touches the pods that a new layout concerns, so that their volumes follow soon; False while some are still to be touched.

        A restart forgets those: their volumes then follow within the kubelet's own period.
        """
        if not self._untouched:
            return True
        there = {gate.uid_of(pod): pod for pod in pods}

        async def touched(uid: str) -> None:
            pod = there.get(uid)
            gone = pod is None or gate.is_terminating(pod)
            if pod is None or gone or await self._patch_pod(pod, {LAYOUT_ANNOTATION: str(self._untouched[uid])}):
                del self._untouched[uid]

        await together(touched, tuple(self._untouched))
        return not self._untouched

    async def price_victims(
        self, pods: Iterable[Json], victims: Collection[str], drained: Collection[str] = ()
    ) -> None:
        """Gives the victims the lowest deletion cost, so that the scale-down that follows removes them and no others.

        Those that are ``drained`` go before the other victims. A victim of an earlier move that was rolled back is none any more. Raises a conflict where a pod has changed: no scale-down may
        follow before all are priced.
        """
        for pod in pods:
            meta = pod["metadata"]
            price = (meta.get("annotations") or {}).get(DELETION_COST)
            wished = VICTIM_COST if meta["name"] in victims else None
            if meta["name"] in drained:
                wished = DRAINED_COST
            # A cost that is none of ours is the owner's wish among the pods that stay.
            if wished == price or (wished is None and price not in (VICTIM_COST, DRAINED_COST)):
                continue
            if not await self._patch_pod(pod, {DELETION_COST: wished}):
                raise ClusterError(409, "Conflict", f"pod {meta['name']} changed before it was priced")

    @staticmethod
    def liftable(
        job: RLJob,
        targets: Targets,
        gpu_resources: Collection[str],
        pods: Iterable[Json],
        granted: Collection[str],
    ) -> tuple[str, ...]:
        """Names of the pods whose gates the budget has room to lift besides those granted, as far as ``pods`` tell."""
        return gate.pods_to_lift(
            pods,
            budget=job.spec.gpus,
            gpu_resource=gpu_resources,
            wanted={gate.SAMPLER: targets.samplers, gate.TRAINER: targets.trainers},
            granted=granted,
        )

    async def grant(
        self, job: RLJob, targets: Targets, gpu_resources: Collection[str], granted: Collection[str]
    ) -> tuple[str, ...]:
        """The grants as they should stand in the status: those that wait for their lift, and new ones as far as there is room.

        The pods are read from the API server, after the status that ``granted`` comes from, and not from the view: one that lags behind
        would spend the same GPUs twice. Nothing is lifted before the answer is in the status.
        """
        pods = await self._cluster.list(PODS, str(job.metadata["namespace"]), f"{gate.UID_LABEL}={self._uid}")
        waiting = gate.unlifted_grants(pods, granted)
        names = set(self.liftable(job, targets, gpu_resources, pods, waiting))
        return (*waiting, *(gate.uid_of(pod) for pod in pods if gate.name_of(pod) in names))

    async def lift_gates(
        self, job: RLJob, gpu_resources: Collection[str], granted: Collection[str], pin: Pin = unpinned
    ) -> bool:
        """Lifts the gates that were granted; False while some are still to be lifted. ``pin`` says which pool a sampler goes to.

        A grant is room already given, so that it matters little when it is used. Only a budget that was lowered since holds all of them
        back until what was granted fits it again. That is counted by the API server's word: a view that lags shows room where a lift
        of a moment ago has taken it, and any of the grants may be used at this moment by a request that is still on its way.
        """
        pods = await self._cluster.list(PODS, str(job.metadata["namespace"]), f"{gate.UID_LABEL}={self._uid}")
        waiting = set(gate.unlifted_grants(pods, granted))
        if gate.committed_gpus(pods, gpu_resources, granted) > job.spec.gpus:
            return False

        pools = pin(pods)

        async def lift(pod: Json) -> None:
            meta, pool = pod["metadata"], pools.get(gate.uid_of(pod))
            selector, labels = ({}, {}) if pool is None else (pool.selector, {POOL_LABEL: pool.name})
            try:
                patch = gate.lift_patch(pod, selector=selector, labels=labels)
                await self._cluster.merge(PODS, meta["namespace"], meta["name"], patch)
            except ClusterError as error:
                if not (error.conflict or error.status == 404):
                    raise
                logger.info("%s/%s changed before its gate was lifted", meta["namespace"], meta["name"])
            else:
                waiting.discard(gate.uid_of(pod))

        living = [pod for pod in pods if not (gate.is_terminating(pod) or gate.is_terminal(pod))]
        # The widest first: samplers that are bound before them may leave no node with room for a trainer.
        for wide in (True, False):
            mine = [pod for pod in living if (gate.role_of(pod) == gate.TRAINER) is wide]
            await together(lift, [pod for pod in mine if gate.uid_of(pod) in waiting])
        return not waiting

    async def try_pods(self, job: RLJob, split: Split) -> ClusterError | None:
        """Asks the API server whether it would admit the pods, by a dry run; returns its refusal, if any."""
        for pod in children.trial_pods(job, split):
            try:
                await self._cluster.create(PODS, pod["metadata"]["namespace"], pod, dry_run=True)
            except ClusterError as error:
                if error.rejected:
                    return error
                raise
        return None

    async def say(self, meta: Json, kind: str, reason: str, message: str, *, now_s: float) -> None:
        """Posts an event on the RLJob with the metadata ``meta``; the same words in a row are said once, but those of a move's way each time."""
        if reason not in WAY and self._said.get(reason) == message:
            return
        self._said[reason] = message
        logger.info("%s/%s: %s: %s", meta["namespace"], meta["name"], reason, message)
        seed = f"{self._uid}/{reason}/{message}/{now_s}".encode()
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "namespace": meta["namespace"],
                "name": f"{meta['name']}.{hashlib.sha256(seed).hexdigest()[:16]}",
            },
            "involvedObject": {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": self._uid,
                "resourceVersion": meta["resourceVersion"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "source": {"component": "rljob-operator"},
            "reportingComponent": "rljob-operator",
            "firstTimestamp": timestamp(now_s),
            "lastTimestamp": timestamp(now_s),
            "count": 1,
        }
        try:
            await self._cluster.create(EVENTS, meta["namespace"], body)
        except ClusterError as error:
            # An event is a courtesy: a namespace that is being deleted or a missing right must not stop the job.
            logger.warning("event %s on %s/%s was not posted: %s", reason, meta["namespace"], meta["name"], error)

    async def _apply(self, desired: Json, live: Json | None) -> Json:
        """Applies a child over the version that was compared, or creates it where there was none."""
        key = (desired["kind"], desired["metadata"]["name"])
        live = self._latest(desired, live)
        try:
            written = await self._cluster.apply(_on(desired, live))
        except ClusterError as error:
            if not (error.conflict and live is None):
                raise
            found = await self._cluster.get(resource_of(desired), desired["metadata"]["namespace"], key[1])
            if found is None or held_by_another(found, self._view.token):
                raise
            if not owned_by(found, self._uid):
                raise taken([found]) from error
            # The view has not shown it yet.
            written = await self._cluster.apply(_on(desired, found))
        self._written[key] = written
        return written

    def _live(self, child: Json) -> Json | None:
        """A child as the view shows it; ``child`` names kind, namespace and name."""
        meta = child["metadata"]
        return self._view.child(self._uid, child["kind"], meta["name"], meta["namespace"])

    def _live_layout(self, job: RLJob) -> Json | None:
        return self._view.child(self._uid, "ConfigMap", children.layout_name(job), str(job.metadata["namespace"]))

    def _latest(self, obj: Json, live: Json | None) -> Json | None:
        """The newer of what the view shows and what this process wrote last."""
        mine = self._written.get((obj["kind"], obj["metadata"]["name"]))
        if live is not None and mine is not None and version_of(mine) > version_of(live):
            return mine
        return live

    async def _patch_pod(self, pod: Json, annotations: Json) -> bool:
        """Annotates a pod as it was read; False if it has changed since. A pod that is gone is fine."""
        meta = pod["metadata"]
        patch = {"metadata": {**preconditions(pod), "annotations": annotations}}
        try:
            await self._cluster.merge(PODS, meta["namespace"], meta["name"], patch)
        except ClusterError as error:
            if error.conflict:
                return False
            if error.status != 404:
                raise
        return True


def _on(desired: Json, live: Json | None) -> Json:
    """A desired object as a change of the version ``live``."""
    if live is None:
        return desired
    return {**desired, "metadata": {**desired["metadata"], **preconditions(live)}}


def readable_layout(text: str | None) -> dict[str, Any] | None:
    """A layout as the operator writes it; None for what it could not have written."""
    try:
        layout = json.loads(text or "")
        int(layout["generation"])
        [endpoint["pod"] for endpoint in layout["samplers"]["endpoints"]]
    except (ValueError, TypeError, KeyError):
        return None
    return dict(layout)
