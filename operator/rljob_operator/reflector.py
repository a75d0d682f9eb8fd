"""A list and a watch of one kind of object, kept as small as what the operator reads of it.

kopf watches what is few. Pods are many, each changes half a dozen times while it starts, and kopf spends a task, a logger and copies of the
whole object on every change; with fifty pods a job that was most of what the operator did. So pods are followed here: listed in pages, so
that a restart in a large cluster needs little memory at once, then watched from where the list ended. A watch that breaks goes on where it
broke; if the API server no longer knows that place, all is listed anew, and what is missing then is gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Protocol

from rljob_operator.cluster import ClusterError, Json, Resource

PAGE = 500
"""Objects of a page of the list."""

LONGEST_PAUSE_S = 30.0

GONE = 410
"""HTTP status of a place in the history that the API server no longer knows."""

logger = logging.getLogger("rljob_operator")

Seen = Callable[[str, Json], None]
"""Told of every change: ADDED, MODIFIED or DELETED, and the whole object."""


class Source(Protocol):
    """Where objects come from."""

    async def page(self, resource: Resource, namespace: str | None, limit: int, token: str) -> Json:
        """A page of a list, with ``metadata.resourceVersion`` and, unless it is the last, ``metadata.continue``."""

    def follow(self, resource: Resource, namespace: str | None, version: str) -> AsyncIterator[Json]:
        """The watch events after a version, until the server ends the watch; raises ClusterError."""


class Store:
    """The objects that are there, under a key that each of them names."""

    def __init__(self, key: Callable[[Json], str], keep: Callable[[Mapping[str, Any]], Json]) -> None:
        """``key`` names an object's key, ``keep`` says what is kept of it."""
        self._key, self._keep = key, keep
        self._rows: dict[str, dict[tuple[str, str], Json]] = {}
        self._key_of: dict[tuple[str, str], str] = {}

    def values(self) -> Iterable[Iterable[Json]]:
        """The objects under all keys."""
        return [tuple(row.values()) for row in self._rows.values()]

    def get(self, key: Any, default: Any = None, /) -> Any:
        """The objects under a key."""
        row = self._rows.get(key)
        return default if row is None else tuple(row.values())

    def put(self, obj: Json) -> None:
        """Keeps an object in place of what was there under its name."""
        place, key = place_of(obj), self._key(obj)
        if self._key_of.get(place, key) != key:
            self.drop(place)
        self._key_of[place] = key
        self._rows.setdefault(key, {})[place] = self._keep(obj)

    def drop(self, place: tuple[str, str]) -> Json | None:
        """Forgets an object, and returns what was kept of it."""
        key = self._key_of.pop(place, None)
        if key is None:
            return None
        row = self._rows[key]
        dropped = row.pop(place)
        if not row:
            del self._rows[key]
        return dropped

    def places(self, namespace: str | None) -> set[tuple[str, str]]:
        """Namespace and name of the objects that are there, in all namespaces if None."""
        return {place for place in self._key_of if namespace in (None, place[0])}


class Reflector:
    """Keeps a store as the API server has it."""

    def __init__(self, source: Source, resource: Resource, namespace: str | None, store: Store, seen: Seen) -> None:
        """Follows a resource in one namespace, or in all if it is None; ``seen`` is told after the store has changed."""
        self._source, self._resource, self._namespace = source, resource, namespace
        self._store, self._seen = store, seen
        self.synced = asyncio.Event()
        """Set once all that is there has been listed."""

    async def run(self) -> None:
        """Lists and watches until it is cancelled; an error delays it and ends nothing."""
        version, pause_s = "", 0.5
        while True:
            try:
                if not version:
                    version = await self._list()
                    self.synced.set()
                version = await self._watch(version)
                pause_s = 0.5
            except ClusterError as error:
                if error.status == GONE:
                    version = ""
                    continue
                logger.warning("following %s, again in %.1f s: %s", self._resource.plural, pause_s, error.message)
                # Many that were cut off by one failure must not come back in one moment.
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(LONGEST_PAUSE_S, 2.0 * pause_s)

    async def _list(self) -> str:
        token, there = "", set()
        while True:
            page = await self._source.page(self._resource, self._namespace, PAGE, token)
            for obj in page["items"]:
                there.add(place_of(obj))
                self._store.put(obj)
                self._seen("ADDED", obj)
            token = page["metadata"].get("continue") or ""
            if not token:
                break
        for place in self._store.places(self._namespace) - there:
            dropped = self._store.drop(place)
            if dropped is not None:
                self._seen("DELETED", dropped)
        return str(page["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        async for event in self._source.follow(self._resource, self._namespace, version):
            kind, obj = event["type"], event["object"]
            if kind == "ERROR":
                code = int(obj.get("code") or 0)
                raise ClusterError(code, str(obj.get("reason", "")), str(obj.get("message", "the watch failed")))
            version = str(obj["metadata"]["resourceVersion"])
            if kind == "DELETED":
                self._store.drop(place_of(obj))
            elif kind != "BOOKMARK":
                self._store.put(obj)
            if kind != "BOOKMARK":
                self._seen(kind, obj)
        return version


def place_of(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name of an object."""
    meta = obj["metadata"]
    return str(meta.get("namespace", "")), str(meta["name"])
