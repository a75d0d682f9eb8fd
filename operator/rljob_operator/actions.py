"""What a pass does to the cluster: children, the layout, deletion costs, gates and events.

Each action compares before it writes, so a pass over a job that is as it should be sends nothing. All of them follow from
the persisted status, never from something that only this process knows. And each write speaks of the version that was
compared: where somebody else wrote in between, the pass ends with a conflict and the next one compares again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable
from typing import Any

from rljob_operator import children, gate
from rljob_operator.cluster import EVENTS, PODS, Api, ClusterError, Json, preconditions, resource_of, version_of
from rljob_operator.fence import held_by_another
from rljob_operator.layout import LAYOUT_FILE
from rljob_operator.rebalance import Targets, timestamp
from rljob_operator.view import View
from rljob_planner.api import GROUP, KIND, VERSION
from rljob_planner.api.spec import RLJob
from rljob_planner.split import Split

logger = logging.getLogger(__name__)

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
LAYOUT_ANNOTATION = "rljob.dev/layout-generation"
"""Touched on pods when the layout changes: kubelets then sync the volume at once instead of within their period."""

VICTIM_COST = "-1000"


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
        self._untouched: dict[str, int] = {}
        """Layout generation that pods are still to be told of, by uid."""

    async def apply_children(self, job: RLJob, split: Split, targets: Targets) -> tuple[str, ...]:
        """Brings workloads and Services to their desired state; returns what somebody else had edited, in words."""
        edits: list[str] = []
        workloads = (
            children.sampler_workload(job, split, targets.samplers),
            children.trainer_workload(job, split, targets.trainers),
        )
        for desired in (*children.services(job), *workloads):
            kind, name = desired["kind"], desired["metadata"]["name"]
            live = self._view.child(self._uid, kind, name)
            if live is not None:
                if not children.workload_differs(live, desired):
                    continue
                edited = children.edited_fields(live, desired)
                if edited:
                    edits.append(f"{kind} {name}: {', '.join(edited)}")
            await self._apply(desired, live)
        return tuple(edits)

    async def apply_companion(self, desired: Json) -> str | None:
        """Brings an object that is no part of the split to its desired state; returns what somebody else had edited, in words."""
        kind, name = desired["kind"], desired["metadata"]["name"]
        live = self._view.child(self._uid, kind, name)
        edited: tuple[str, ...] = ()
        if live is not None:
            if not children.workload_differs(live, desired):
                return None
            edited = children.edited_fields(live, desired)
        await self._apply(desired, live)
        return f"{kind} {name}: {', '.join(edited)}" if edited else None

    async def remove(self, child: Json) -> None:
        """Deletes a child that the spec no longer asks for, if there is one; ``child`` names kind, namespace and name."""
        meta = child["metadata"]
        live = self._view.child(self._uid, child["kind"], meta["name"])
        if live is not None and not live["metadata"].get("deletionTimestamp"):
            await self._cluster.delete(resource_of(child), meta["namespace"], meta["name"], preconditions(live))

    def published(self, job: RLJob) -> dict[str, Any] | None:
        """The layout that the API server holds; None if there is none, or one that somebody made unreadable.

        While the view lags behind what this process wrote, that counts.
        """
        live = self._view.child(self._uid, "ConfigMap", children.layout_name(job))
        if live is None:
            # Deleted by somebody, or not seen yet: writing it again is right in both cases.
            self._layout = None
            return None
        if self._layout is not None and version_of(live) < self._layout_version:
            return self._layout
        return readable_layout((live.get("data") or {}).get(LAYOUT_FILE))

    async def publish_layout(self, job: RLJob, text: str, generation: int, pods: Iterable[Json]) -> None:
        """Writes the layout; ``touch`` then tells the pods."""
        live = self._view.child(self._uid, "ConfigMap", children.layout_name(job))
        written = await self._apply(children.layout_config_map(job, text), live)
        self._layout, self._layout_version = readable_layout(text), version_of(written)
        held = (pod for pod in pods if gate.is_held(pod) and not gate.is_terminating(pod))
        self._untouched = {gate.uid_of(pod): generation for pod in held}

    async def touch(self, pods: Iterable[Json]) -> bool:
        """Touches the pods that a new layout concerns, so that their volumes follow soon; False while some are still to be touched.

        A restart forgets those: their volumes then follow within the kubelet's own period.
        """
        if not self._untouched:
            return True
        there = {gate.uid_of(pod): pod for pod in pods}
        for uid, generation in tuple(self._untouched.items()):
            pod = there.get(uid)
            done = pod is None or gate.is_terminating(pod)
            if pod is not None and not done:
                done = await self._patch_pod(pod, {LAYOUT_ANNOTATION: str(generation)})
            if done:
                del self._untouched[uid]
        return not self._untouched

    async def price_victims(self, pods: Iterable[Json], victims: Collection[str]) -> None:
        """Gives the victims the lowest deletion cost, so that the scale-down that follows removes them and no others.

        A victim of an earlier move that was rolled back is none any more. Raises a conflict where a pod has changed: no scale-down may
        follow before all are priced.
        """
        for pod in pods:
            meta = pod["metadata"]
            priced = (meta.get("annotations") or {}).get(DELETION_COST) == VICTIM_COST
            if (meta["name"] in victims) == priced:
                continue
            if not await self._patch_pod(pod, {DELETION_COST: None if priced else VICTIM_COST}):
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
        self, job: RLJob, gpu_resources: Collection[str], granted: Collection[str], pods: Iterable[Json]
    ) -> bool:
        """Lifts the gates that were granted, by the pods as the view shows them; False while some are still to be lifted.

        A grant is room already given, so that it matters little when it is used. Only a budget that was lowered since holds it back.
        """
        pods = tuple(pods)
        room = job.spec.gpus - gate.held_gpus(pods, gpu_resources)
        waiting = set(gate.unlifted_grants(pods, granted))
        for pod in pods:
            gpus = gate.pod_gpus(pod, gpu_resources)
            if gate.uid_of(pod) not in waiting or gate.is_terminating(pod) or gate.is_terminal(pod) or gpus > room:
                continue
            meta = pod["metadata"]
            try:
                await self._cluster.merge(PODS, meta["namespace"], meta["name"], gate.lift_patch(pod))
            except ClusterError as error:
                if not (error.conflict or error.status == 404):
                    raise
                logger.info("%s/%s changed before its gate was lifted", meta["namespace"], meta["name"])
            else:
                waiting.discard(gate.uid_of(pod))
                room -= gpus
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
        """Posts an event on the RLJob with the metadata ``meta``; the same words in a row are said once."""
        if self._said.get(reason) == message:
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
        mine = self._written.get(key)
        if live is not None and mine is not None and version_of(mine) > version_of(live):
            live = mine
        try:
            written = await self._cluster.apply(_on(desired, live))
        except ClusterError as error:
            if not (error.conflict and live is None):
                raise
            found = await self._cluster.get(resource_of(desired), desired["metadata"]["namespace"], key[1])
            if found is None or held_by_another(found, self._view.token):
                raise
            # The view has not shown it yet, or it is none of ours: then the API server says so.
            written = await self._cluster.apply(_on(desired, found))
        self._written[key] = written
        return written

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
