"""What keeps a deposed leader from writing.

A Lease says who leads; it stops nobody who does not know yet that he was deposed, such as a process that was suspended for a
minute, or whose requests were held up on their way. So three things hold for everything that this operator writes:

1. A write speaks of a version. It carries the uid and the resourceVersion of the object as it was read, a creation the
   demand that there be none; the API server answers 409 to what was read before somebody else wrote.
2. A version speaks of its reader. On taking over, a leader marks every child and then the RLJob with its own holding before
   its first pass over that job. What the one before it has read is thereby outdated; should it read again, it finds the mark
   of another and stops.
3. A holding ends on its own. Once it could not be renewed for the renew deadline, which is shorter than the lease, nothing is sent
   any more, whatever the tasks of the jobs still want.

The third needs clocks that run at the same speed and is only the quickest of the three; the first two need no clock.

Creation is no gap: whoever creates a child that is missing creates what the persisted status asks for, only if it is still missing, and
its pods begin behind the budget gate. Events and dry runs change nothing and carry no version.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rljob_operator.cluster import (
    CHILDREN,
    PODS,
    RLJOBS,
    Api,
    ClusterError,
    Json,
    Resource,
    preconditions,
)
from rljob_operator.gate import UID_LABEL, is_terminal

T = TypeVar("T")

HOLDER = "rljob.dev/holder"
"""Annotation of children: the holding under which they were last taken over or written, as ``identity/transitions``."""

TOUCHES_AT_ONCE = 16
"""Touches under way at a time: a take-over of many jobs must not look like an attack to the API server."""

HELD_BY_ANOTHER = "HeldByAnother"
"""Reason of the conflict that ends a pass which read an object with the mark of another holding."""

AGAIN_S = 60.0
"""Shortest time between two take-overs of one job under one holding: two installations that both watch a job would take it from each
other without end, each waking the other."""

TRIES = 5
"""How often a touch reads an object again that changes at the same moment."""


@dataclass(frozen=True)
class Holding:
    """One time of leading: from the moment when the Lease was taken until it was lost or given back."""

    identity: str
    """Who holds; new with every process."""
    transitions: int
    """The Lease's count of changes of its holder."""

    @property
    def token(self) -> str:
        """The holding as one word, as it stands on children and in the status."""
        return f"{self.identity}/{self.transitions}"


def now_s() -> float:
    """Seconds of a clock that never jumps and goes on while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Fence:
    """Whether this process may write at this moment, and under which holding.

    Without leader election it is open for good and there is no holding.
    """

    def __init__(self, *, clock: Callable[[], float] = now_s, elected: bool = False) -> None:
        """``elected`` fences are closed until ``open``."""
        self._clock = clock
        self._until_s = 0.0 if elected else float("inf")
        self._holding: Holding | None = None

    @property
    def holding(self) -> Holding | None:
        """The present holding; None if there is none, or no election."""
        return self._holding

    @property
    def token(self) -> str | None:
        """The present holding as one word."""
        return None if self._holding is None else self._holding.token

    def now_s(self) -> float:
        """The fence's clock in seconds."""
        return self._clock()

    def open(self, holding: Holding, until_s: float) -> None:
        """Lets writes pass under a holding until ``until_s``; called again to prolong it."""
        self._holding, self._until_s = holding, until_s

    def close(self) -> None:
        """Lets nothing pass any more."""
        self._holding, self._until_s = None, 0.0

    def check(self) -> None:
        """Raises a conflict unless a write may be sent now."""
        if self._clock() >= self._until_s:
            raise ClusterError(
                409, "NotLeading", "this operator does not hold the Lease at the moment and writes nothing"
            )


class Fenced:
    """The API server behind a fence: each write is checked, conditional, and marked with the holding."""

    def __init__(self, cluster: Api, fence: Fence) -> None:
        self._cluster = cluster
        self._fence = fence
        self._writing: set[asyncio.Task[Any]] = set()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        """One object, None if there is none."""
        return await self._cluster.get(resource, namespace, name)

    async def list(self, resource: Resource, namespace: str | None, label_selector: str) -> list[Json]:
        """The objects of a collection that carry labels."""
        return await self._cluster.list(resource, namespace, label_selector)

    async def apply(self, obj: Json, *, dry_run: bool = False) -> Json:
        """Server-side apply of a child as it was read, or of one that is not there."""
        if dry_run:
            return await self._cluster.apply(obj, dry_run=True)
        meta = obj["metadata"]
        if "resourceVersion" in meta and "uid" not in meta:
            raise ValueError(
                f"an apply of {obj['kind']} {meta['name']} that could bring it back: it needs a uid as well"
            )
        token = self._fence.token
        if token is not None:
            obj = {**obj, "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), HOLDER: token}}}
        return await self._write(self._cluster.apply(obj))

    async def create(self, resource: Resource, namespace: str, obj: Json, *, dry_run: bool = False) -> Json:
        """Creates an object, which fails if there is one."""
        if dry_run:
            return await self._cluster.create(resource, namespace, obj, dry_run=True)
        return await self._write(self._cluster.create(resource, namespace, obj))

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        """A JSON merge patch of an object as it was read."""
        _conditional(patch.get("metadata"), f"patch of {resource.plural} {name}")
        return await self._write(self._cluster.merge(resource, namespace, name, patch))

    async def put_status(self, resource: Resource, namespace: str, name: str, obj: Json) -> Json:
        """Replaces the status of an object as it was read."""
        _conditional(obj.get("metadata"), f"status of {resource.plural} {name}")
        return await self._write(self._cluster.put_status(resource, namespace, name, obj))

    async def delete(
        self, resource: Resource, namespace: str, name: str, preconditions: Mapping[str, str] | None = None
    ) -> None:
        """Deletes an object as it was read."""
        _conditional(preconditions, f"deletion of {resource.plural} {name}")
        await self._write(self._cluster.delete(resource, namespace, name, preconditions))

    async def settled(self, timeout_s: float) -> None:
        """Waits for the writes under way, at most ``timeout_s``."""
        if self._writing:
            await asyncio.wait(tuple(self._writing), timeout=timeout_s)

    async def _write(self, request: Coroutine[Any, Any, T]) -> T:
        try:
            self._fence.check()
        except ClusterError:
            request.close()
            raise
        # Cancelling a pass must not cut off its write: half-sent requests are those nobody knows the outcome of.
        task = asyncio.create_task(request)
        self._writing.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    def _written(self, task: asyncio.Task[Any]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # read, since nobody may be left to


def _conditional(meta: Mapping[str, Any] | None, what: str) -> None:
    if not (meta or {}).get("resourceVersion"):
        raise ValueError(f"an unconditional {what}: it must carry the resourceVersion that it was decided on")


class TakeOver:
    """Marks jobs and their children with a holding before the first pass under it."""

    def __init__(self, cluster: Api, fence: Fence, confirm: Callable[[], Awaitable[bool]]) -> None:
        """``confirm`` renews the Lease now and tells whether it is still held."""
        self._cluster = cluster
        self._fence = fence
        self._confirm = confirm
        self._touching = asyncio.Semaphore(TOUCHES_AT_ONCE)
        self._taken: dict[tuple[str, str], float] = {}
        """When jobs were taken over, by uid and holding."""

    async def __call__(self, raw: Json, *, anew: bool = False) -> Json:
        """The RLJob as it stands under the present holding; takes it over if it stands under none or another, or ``anew``.

        Its children come first and the job last, so that what was begun is begun anew wherever it was cut off. Raises a conflict if the
        Lease is not held any more, or if others write too busily, and ClusterError 412 if another operator that holds another Lease
        has just taken the job.
        """
        token = self._fence.token
        if token is None or ((raw.get("status") or {}).get("holder") == token and not anew):
            return raw
        holder = (raw.get("status") or {}).get("holder")
        uid, now = str(raw["metadata"]["uid"]), self._fence.now_s()
        if holder not in (None, token) and now < self._taken.get((uid, token), -AGAIN_S) + AGAIN_S:
            raise ClusterError(
                412,
                "TwoInstallations",
                f"another operator, {holder}, has taken this job from this one, {token}: two installations watch the same "
                "namespaces; set RLJOB_OPERATOR_NAMESPACES so that each job has one, or give both the same Lease",
            )
        # The mark may be that of a successor: then it is not for us to take it off again.
        if not await self._confirm():
            raise ClusterError(409, "NotLeading", "another operator holds the Lease")
        meta = raw["metadata"]
        namespace, selector = str(meta["namespace"]), f"{UID_LABEL}={meta['uid']}"
        found = await asyncio.gather(*(self._cluster.list(kind, namespace, selector) for kind in CHILDREN))
        await asyncio.gather(
            *(
                self._touch(kind, obj, token)
                for kind, objects in zip(CHILDREN, found, strict=True)
                for obj in objects
                if kind is not PODS or not is_terminal(obj)
            )
        )
        status = {**(raw.get("status") or {}), "holder": token}
        taken = await self._cluster.put_status(RLJOBS, namespace, str(meta["name"]), {**raw, "status": status})
        self._taken = {key: at for key, at in self._taken.items() if key[1] == token} | {(uid, token): now}
        return taken

    async def _touch(self, kind: Resource, obj: Json, token: str) -> None:
        namespace, name = str(obj["metadata"]["namespace"]), str(obj["metadata"]["name"])
        was = _mark(obj)
        async with self._touching:
            for _ in range(TRIES):
                meta = {**preconditions(obj), "annotations": {HOLDER: token}}
                try:
                    await self._cluster.merge(kind, namespace, name, {"metadata": meta})
                except ClusterError as error:
                    if error.status == 404:
                        return
                    if not error.conflict:
                        raise
                    latest = await self._cluster.get(kind, namespace, name)
                    if latest is None or latest["metadata"]["uid"] != obj["metadata"]["uid"]:
                        return
                    if _mark(latest) not in (was, token):
                        # A successor is at work: its mark stays.
                        raise
                    obj = latest
                else:
                    return
        raise ClusterError(409, "Conflict", f"{kind.plural} {name} changes too often to be taken over")


def held_by_another(obj: Mapping[str, Any], token: str | None) -> bool:
    """Whether an object carries the mark of another holding than the present one, if there is one."""
    if token is None:
        return False
    return _mark(obj) not in (None, token)


def _mark(obj: Mapping[str, Any]) -> str | None:
    return ((obj.get("metadata") or {}).get("annotations") or {}).get(HOLDER)
