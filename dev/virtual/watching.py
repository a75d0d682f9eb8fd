"""What an operator has seen of the cluster: indexes that follow the watches, each kind in order, some time late.

The same keys and the same parts of objects as in the operator's own indexes, filled with what is there when the operator starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dev.virtual.cluster import VirtualCluster
from dev.virtual.store import Json
from rljob_operator import kept
from rljob_operator.view import View

Lag = Callable[[str], float]
"""Seconds that an event of a kind (its plural) takes to be seen."""

Seen = Callable[[str, str, Json], None]
"""Called with event, plural and object once the indexes hold it."""

_CHILDREN = {
    "deployments": "Deployment",
    "statefulsets": "StatefulSet",
    "configmaps": "ConfigMap",
    "services": "Service",
    "networkpolicies": "NetworkPolicy",
}

_UID = "rljob.dev/uid"
_MANAGED_BY = ("app.kubernetes.io/managed-by", "rljob-operator")


class Index:
    """A read-only mapping of keys to the objects under them, as kopf's."""

    def __init__(self) -> None:
        self._rows: dict[Any, dict[tuple[str, str], Json]] = {}
        self._key_of: dict[tuple[str, str], Any] = {}

    def put(self, key: Any, place: tuple[str, str], obj: Json) -> None:
        """Keeps an object under a key."""
        if self._key_of.get(place, key) != key:
            self.drop(place)
        self._key_of[place] = key
        self._rows.setdefault(key, {})[place] = obj

    def drop(self, place: tuple[str, str]) -> None:
        """Forgets an object."""
        key = self._key_of.pop(place, None)
        row = self._rows.get(key)
        if row is not None:
            row.pop(place, None)
            if not row:
                del self._rows[key]

    def get(self, key: Any, default: Any = None, /) -> Any:
        """The objects under a key."""
        row = self._rows.get(key)
        return default if row is None else tuple(row.values())

    def values(self) -> Iterable[Iterable[Json]]:
        """The objects under all keys."""
        return [tuple(row.values()) for row in self._rows.values()]

    def items(self) -> Iterable[tuple[Any, Iterable[Json]]]:
        """Keys with the objects under them."""
        return [(key, tuple(row.values())) for key, row in self._rows.items()]

    def __iter__(self) -> Iterator[Any]:
        return iter(tuple(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: Any) -> bool:
        return key in self._rows

    def __getitem__(self, key: Any) -> Any:
        return tuple(self._rows[key].values())


class Watching:
    """A view that follows the watches until it is closed."""

    def __init__(self, cluster: VirtualCluster, *, lag: Lag | None = None, seen: Seen | None = None) -> None:
        self._clock = cluster.clock
        self._lag = lag
        self._tell = seen
        self._due: dict[str, float] = {}
        self._children = {plural: Index() for plural in _CHILDREN}
        self._indexes = {name: Index() for name in ("pods", "nodes", "quotas", "jobs")}
        self._merged = _Merged(self._children)
        self.closed = False
        """One that is closed follows no more."""
        self.view = View(
            pods=self._indexes["pods"],
            nodes=self._indexes["nodes"],
            quotas=self._indexes["quotas"],
            jobs=self._indexes["jobs"],
            children=self._merged,
        )
        """The indexes, as a pass reads them."""
        for plural in ("nodes", "resourcequotas", *_CHILDREN, "pods", "rljobs"):
            for obj in cluster.store.all(plural):
                self._index("ADDED", plural, obj)
        cluster.store.watch(self._seen)

    def _seen(self, event: str, plural: str, obj: Json) -> None:
        if self.closed:
            return
        lag_s = 0.0 if self._lag is None else self._lag(plural)
        due = max(self._clock.now_s + lag_s, self._due.get(plural, 0.0))
        if due <= self._clock.now_s:
            self._deliver(event, plural, obj)
        else:
            # A watch delivers in order, so what comes behind a late event is late as well.
            self._due[plural] = due
            self._clock.at(due, self._deliver, event, plural, obj)

    def _deliver(self, event: str, plural: str, obj: Json) -> None:
        if self.closed:
            return
        self._index(event, plural, obj)
        if self._tell is not None:
            self._tell(event, plural, obj)

    def _index(self, event: str, plural: str, obj: Json) -> None:
        meta = obj["metadata"]
        place = (meta.get("namespace", ""), meta["name"])
        labels = meta.get("labels") or {}
        index, key, remembered = None, None, obj
        if plural == "pods":
            index, key, remembered = self._indexes["pods"], labels.get(_UID, ""), kept.pod(obj)
            self.view.pods_changed()
        elif plural == "nodes":
            index, key, remembered = self._indexes["nodes"], meta["name"], kept.node(obj)
        elif plural == "resourcequotas":
            index, key = self._indexes["quotas"], place[0]
        elif plural == "rljobs":
            index, key = self._indexes["jobs"], meta["uid"]
        elif plural in _CHILDREN and labels.get(_MANAGED_BY[0]) == _MANAGED_BY[1]:
            index, key = self._children[plural], (labels.get(_UID, ""), _CHILDREN[plural], meta["name"])
        if index is None:
            return
        if event == "DELETED":
            index.drop(place)
        else:
            index.put(key, place, remembered)


class _Merged:
    """The children of all kinds as one index."""

    def __init__(self, parts: dict[str, Index]) -> None:
        self._parts = {_CHILDREN[plural]: part for plural, part in parts.items()}

    def get(self, key: Any, default: Any = None, /) -> Any:
        part = self._parts.get(key[1])
        return default if part is None else part.get(key, default)

    def values(self) -> Iterable[Iterable[Json]]:
        return [row for part in self._parts.values() for row in part.values()]

    def items(self) -> Iterable[tuple[Any, Iterable[Json]]]:
        return [row for part in self._parts.values() for row in part.items()]

    def __iter__(self) -> Iterator[Any]:
        return iter([key for part in self._parts.values() for key in part])
