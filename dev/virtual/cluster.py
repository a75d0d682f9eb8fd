"""A whole cluster in memory, and the connections that clients hold to its API server.

A request takes time on its way and on its way back, and either way may fail: the server refuses it, or does it and the answer
is lost, or does it long after the client has given up. What becomes of each request is asked of a function, so that a
history can choose; without one, all goes well. Every request is a point at which others may act and at which the client may die.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dev.virtual.clock import VirtualClock
from dev.virtual.machines import Machines, Pace
from dev.virtual.store import Json, Store, conflict
from dev.virtual.workloads import Workloads
from rljob_operator.cluster import FIELD_MANAGER, ClusterError, Resource, resource_of

NAMESPACE = "rl"
"""Where jobs live unless somebody says otherwise."""


@dataclass(frozen=True)
class Passage:
    """What becomes of one request."""

    before_s: float = 0.001
    """Seconds until the server acts on it."""
    after_s: float = 0.001
    """Seconds from there until the client has the answer."""
    error: ClusterError | None = None
    """What the client is told instead of the answer."""
    done: bool = True
    """Whether the server acts on it at all."""
    late_s: float | None = None
    """If given, the server acts on it only so long after the client was told the error."""
    survives: bool = True
    """Whether the request is acted on although its client died while it was on its way."""


SWIFT = Passage()

Passages = Callable[[str, str, str], Passage]
"""What becomes of a request, by its verb (``get``, ``list``, ``apply``, ``create``, ``merge``, ``put_status``, ``delete``), plural and name."""


OnWrite = Callable[["Connection", Callable[[], Json], float, dict[str, float]], Json]


class VirtualCluster:
    """API server, controllers, scheduler and kubelets."""

    def __init__(
        self,
        clock: VirtualClock | None = None,
        *,
        seed: int = 0,
        pace: Pace | None = None,
        controllers_s: Callable[[], float] = lambda: 0.02,
        pack: bool = True,
    ) -> None:
        """``controllers_s``: seconds until a controller acts on what it saw; ``pack``: fill used nodes first, else spread."""
        self.clock = clock or VirtualClock()
        self.store = Store(self.clock)
        self.workloads = Workloads(self.store, controllers_s)
        self.machines = Machines(self.store, pace or Pace(), random.Random(seed), pack=pack)

    def connect(self, client: str = "client", passages: Passages | None = None) -> Connection:
        """A connection to the API server for a named client."""
        return Connection(self, client, passages)

    def add_nodes(self, count: int, gpus: int = 8, *, prefix: str = "node", **options: Any) -> None:
        """Nodes ``<prefix>-0`` and so on."""
        for i in range(count):
            self.machines.add_node(f"{prefix}-{i}", gpus, **options)

    def create_job(self, manifest: Mapping[str, Any]) -> str:
        """Creates an RLJob; returns its uid."""
        meta = {"namespace": NAMESPACE, **manifest["metadata"]}
        return str(self.store.create("rljobs", {**manifest, "metadata": meta})["metadata"]["uid"])

    def job(self, name: str, namespace: str = NAMESPACE) -> Json | None:
        """An RLJob as it is."""
        return self.store.get("rljobs", namespace, name)

    def edit_job(self, name: str, spec: Mapping[str, Any], namespace: str = NAMESPACE) -> None:
        """A merge patch of an RLJob's spec, as somebody's kubectl sends it."""
        self.store.merge("rljobs", namespace, name, {"spec": spec})

    def delete_job(self, name: str, namespace: str = NAMESPACE) -> None:
        """Deletes an RLJob; the garbage collector follows."""
        self.store.delete("rljobs", namespace, name)

    def pods(self, uid: str, role: str | None = None) -> list[Json]:
        """The pods of a job that exist, by name."""
        labels = {"rljob.dev/uid": uid} | ({} if role is None else {"rljob.dev/role": role})
        return self.store.matching("pods", None, labels)


class Connection:
    """A client's connection; has the verbs of ``rljob_operator.cluster.Api``."""

    def __init__(self, cluster: VirtualCluster, client: str, passages: Passages | None = None) -> None:
        self.client = client
        self.passages = passages
        self.closed = False
        """A client that is dead sends nothing any more."""
        self.calls: dict[str, int] = {}
        """Requests sent, by verb."""
        self.read_job_s: dict[str, float] = {}
        """When the client was last told the RLJob of a uid as it then was."""
        self.on_write: OnWrite = _plainly
        """Called with every write that the server acts on, for those who judge it: the connection, the write, when it was sent,
        and what ``read_job_s`` was then."""
        self._cluster = cluster
        self._store = cluster.store
        self._clock = cluster.clock

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        """One object, None if there is none."""

        def read() -> Json | None:
            found = self._store.get(resource.plural, namespace, name)
            if found is not None and resource.plural == "rljobs":
                self.read_job_s[found["metadata"]["uid"]] = self._clock.now_s
            return found

        found: Json | None = await self._send("get", resource.plural, name, read)
        return found

    async def list(self, resource: Resource, namespace: str | None, label_selector: str) -> list[Json]:
        """The objects that carry labels (``a=b,c=d``), as the store holds them."""
        labels = dict(part.split("=", 1) for part in label_selector.split(",") if part)
        found: list[Json] = await self._send(
            "list", resource.plural, "", lambda: self._store.matching(resource.plural, namespace, labels)
        )
        return found

    async def apply(self, obj: Json, *, dry_run: bool = False) -> Json:
        """Server-side apply under the operator's field manager, with force.

        Without a resourceVersion it creates, and a 409 says that the object is there.
        """
        plural, meta = resource_of(obj).plural, obj["metadata"]

        def write() -> Json:
            there = self._store.get(plural, meta["namespace"], meta["name"]) is not None
            if there and "resourceVersion" not in meta:
                raise conflict(plural, meta["name"], "the object is there already")
            return self._store.apply(plural, obj, FIELD_MANAGER)

        return await self._write("apply", plural, obj["metadata"]["name"], (lambda: obj) if dry_run else write)

    async def create(self, resource: Resource, namespace: str, obj: Json, *, dry_run: bool = False) -> Json:
        """A new object."""
        placed = {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
        write = lambda: self._store.create(resource.plural, placed)  # noqa: E731
        name = obj["metadata"].get("name", "")
        return await self._write("create", resource.plural, name, (lambda: obj) if dry_run else write)

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        """A JSON merge patch of an object, which leaves the status of an RLJob alone."""
        if resource.plural == "rljobs":
            patch = {key: value for key, value in patch.items() if key in ("metadata", "spec")}
        return await self._write(
            "merge", resource.plural, name, lambda: self._store.merge(resource.plural, namespace, name, patch)
        )

    async def put_status(self, resource: Resource, namespace: str, name: str, obj: Json) -> Json:
        """Replaces the status."""
        return await self._write(
            "put_status", resource.plural, name, lambda: self._store.put_status(resource.plural, namespace, name, obj)
        )

    async def delete(
        self, resource: Resource, namespace: str, name: str, preconditions: Mapping[str, Any] | None = None
    ) -> None:
        """Deletes an object; one that is gone is fine."""

        def remove() -> Json:
            self._store.delete(resource.plural, namespace, name, preconditions)
            return {}

        try:
            await self._write("delete", resource.plural, name, remove)
        except ClusterError as error:
            if error.status != 404:
                raise

    async def _write(self, verb: str, plural: str, name: str, write: Callable[[], Json]) -> Json:
        sent_s, known = self._clock.now_s, dict(self.read_job_s)

        def audited() -> Json:
            answer = self.on_write(self, write, sent_s, known)
            if plural == "rljobs" and answer:
                # The answer to a write shows the object as it is, which is as good as a read.
                self.read_job_s[answer["metadata"]["uid"]] = self._clock.now_s
            return answer

        answer: Json = await self._send(verb, plural, name, audited)
        return answer

    async def _send(self, verb: str, plural: str, name: str, act: Callable[[], Any]) -> Any:
        if self.closed:
            raise asyncio.CancelledError
        self.calls[verb] = self.calls.get(verb, 0) + 1
        passage = SWIFT if self.passages is None else self.passages(verb, plural, name)
        try:
            await self._clock.pause(passage.before_s)
        except asyncio.CancelledError:
            # Nobody waits for the answer any more, but the request is on its way.
            if passage.done and passage.survives:
                self._clock.after(passage.before_s if passage.late_s is None else passage.late_s, _quietly, act)
            raise
        if passage.error is not None and (not passage.done or passage.late_s is not None):
            if passage.done and passage.late_s is not None:
                self._clock.after(passage.late_s, _quietly, act)
            raise passage.error
        answer = act()
        await self._clock.pause(passage.after_s)
        if passage.error is not None:
            raise passage.error
        return answer


def _plainly(_connection: Connection, write: Callable[[], Json], _sent_s: float, _known: dict[str, float]) -> Json:
    return write()


def _quietly(act: Callable[[], Any]) -> None:
    try:
        act()
    except ClusterError:
        # Nobody is there to be told.
        return
