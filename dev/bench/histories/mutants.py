"""Broken operators: each undoes one thing that keeps the promises, and the check must catch it.

A check that has never failed proves little. So each rule of the transaction has a mutant that drops it, as earlier tools of
this kind did; the patches are made here and nowhere else, for the time of one history.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

from dev.virtual.cluster import Connection
from rljob_operator import asked, byhand, gate, lifecycle, phases, waits
from rljob_operator.acting import Acting
from rljob_operator.actions import Actions
from rljob_operator.cluster import PODS, ClusterError, Json
from rljob_operator.passes import Pass
from rljob_operator.rebalance import Targets
from rljob_operator.waits import DONE, Wait
from rljob_planner.api.status import MovePhase, MoveStatus
from rljob_planner.split import Split


@contextmanager
def _patched(*patches: tuple[Any, str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for target, name, new in patches:
            stack.enter_context(mock.patch.object(target, name, new))
        yield


def _everywhere(function: Callable[..., Any], new: Callable[..., Any]) -> list[tuple[Any, str, Any]]:
    """Patches that put ``new`` wherever a module of the operator has ``function`` under some name."""
    return [
        (module, name, new)
        for path, module in list(sys.modules.items())
        if path.startswith("rljob_operator.")
        for name, value in list(vars(module).items())
        if value is function
    ]


@contextmanager
def _grow_before_gone() -> Iterator[None]:
    """The receiver grows while the donor's pods still terminate, and the gate counts those as gone."""
    is_held, wait_of, targets = gate.is_held, waits.wait_of, phases.targets

    def held(pod: gate.Pod) -> bool:
        return is_held(pod) and not gate.is_terminating(pod)

    def at_once(split: Split, move: MoveStatus | None) -> Targets:
        if move is not None and move.phase is MovePhase.SHRINK:
            return Targets(move.to_split.samplers.replicas, move.to_split.trainers.replicas)
        return targets(split, move)

    def wait(move: MoveStatus, *args: Any, **options: Any) -> Wait:
        return DONE if move.phase is MovePhase.SHRINK else wait_of(move, *args, **options)

    with _patched(*_everywhere(is_held, held), *_everywhere(targets, at_once), *_everywhere(wait_of, wait)):
        yield


@contextmanager
def _gate_counts_only_running() -> Iterator[None]:
    """The gate counts pods that are bound, and not those that the scheduler may bind at any moment."""

    def held(pod: gate.Pod) -> bool:
        return bool((pod.get("spec") or {}).get("nodeName")) and not gate.has_ended(pod)

    with _patched(*_everywhere(gate.is_held, held)):
        yield


@contextmanager
def _gate_from_view() -> Iterator[None]:
    """Room is counted in the view, which may lag, and not in the API server."""

    async def listed(self: Actions, namespace: str) -> list[Json]:
        return self._view.pods_of(self._uid, namespace)

    class Looks:
        """Stands in for the API server where the gate asks it."""

        def __init__(self, actions: Actions) -> None:
            self._actions, self._cluster = actions, actions._cluster

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cluster, name)

        async def list(self, _kind: object, namespace: str, *_: object) -> list[Json]:
            return await listed(self._actions, namespace)

    async def grant(self: Actions, *args: Any) -> tuple[str, ...]:
        return tuple(await _with(self, Looks(self), original_grant, *args))

    async def lift(self: Actions, *args: Any) -> bool:
        return bool(await _with(self, Looks(self), original_lift, *args))

    original_grant, original_lift = Actions.grant, Actions.lift_gates
    with _patched((Actions, "grant", grant), (Actions, "lift_gates", lift)):
        yield


async def _with(actions: Actions, cluster: Any, method: Callable[..., Any], *args: Any) -> Any:
    kept, actions._cluster = actions._cluster, cluster
    try:
        return await method(actions, *args)
    finally:
        actions._cluster = kept


@contextmanager
def _lift_without_grant() -> Iterator[None]:
    """Gates are lifted as soon as there is room, without a grant in the status: what is on its way is forgotten."""

    async def lift(self: Acting, this: Pass, targets: Targets) -> None:
        actions = self._actions
        pods = await actions._cluster.list(PODS, this.key[0], f"{gate.UID_LABEL}={actions._uid}")
        names = actions.liftable(this.job, targets, this.gpu_resources, pods, ())
        for pod in pods:
            if gate.name_of(pod) in names:
                try:
                    await actions._cluster.merge(PODS, this.key[0], gate.name_of(pod), gate.lift_patch(pod))
                except ClusterError as error:
                    if not (error.conflict or error.status == 404):
                        raise

    with _patched((Acting, "_lift", lift)):
        yield


@contextmanager
def _no_resource_version() -> Iterator[None]:
    """Writes no longer speak of the version that they were decided on."""
    merge, put_status = Connection.merge, Connection.put_status

    def bare(obj: Mapping[str, Any]) -> Json:
        meta = {k: v for k, v in (obj.get("metadata") or {}).items() if k not in ("uid", "resourceVersion")}
        return {**obj, "metadata": meta}

    async def merged(self: Connection, resource: Any, namespace: str, name: str, patch: Json, **sub: Any) -> Json:
        return await merge(self, resource, namespace, name, bare(patch), **sub)

    async def put(self: Connection, resource: Any, namespace: str, name: str, obj: Json) -> Json:
        return await put_status(self, resource, namespace, name, bare(obj))

    with _patched((Connection, "merge", merged), (Connection, "put_status", put)):
        yield


@contextmanager
def _shrink_to_nothing() -> Iterator[None]:
    """The donor is scaled to nothing before it gets its new size, and nothing holds it at its minimum."""

    def smaller(before: Split, after: Split) -> Targets:
        one, other = before.samplers.replicas, after.samplers.replicas
        return Targets(0 if other < one else one, min(before.trainers.replicas, after.trainers.replicas))

    def unheld(_spec: object, _status: object, wished: Targets, _workloads: object) -> Targets:
        return wished

    with _patched(*_everywhere(phases._smaller, smaller), *_everywhere(lifecycle._above_minima, unheld)):
        yield


@contextmanager
def _grants_ignored() -> Iterator[None]:
    """Room is counted without the gates whose lift was granted and not seen yet."""

    def committed(pods: Any, gpu_resource: Any, granted: Collection[str]) -> int:
        del granted
        return gate.held_gpus(pods, gpu_resource)

    with _patched(*_everywhere(gate.committed_gpus, committed)):
        yield


@contextmanager
def _request_forgotten() -> Iterator[None]:
    """Nothing is known of a request once its move is over, and no end of a move makes one old."""
    objection = byhand.objection

    def unanswered(this: Pass) -> byhand.MoveRequest | byhand.Unreadable | None:
        return byhand.read(this.raw["metadata"]) if this.now.rebalance is None else None

    def unreserved(spec: Any, status: Any, request: Any, **known: Any) -> str | None:
        moves = status.moves.model_copy(update={"last_ended_at": None})
        return objection(spec, status.model_copy(update={"moves": moves}), request, **known)

    with _patched(*_everywhere(asked.unanswered, unanswered), *_everywhere(byhand.objection, unreserved)):
        yield


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "grow-before-gone": _grow_before_gone,
    "gate-counts-only-bound": _gate_counts_only_running,
    "gate-from-view": _gate_from_view,
    "lift-without-grant": _lift_without_grant,
    "grants-ignored": _grants_ignored,
    "no-resource-version": _no_resource_version,
    "shrink-to-nothing": _shrink_to_nothing,
    "request-forgotten": _request_forgotten,
}
"""By name; each patches the operator while it is entered."""
