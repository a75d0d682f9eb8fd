"""The API server's store: objects with resource versions, the ways to write them, and what a watch sees of it.

An object in the store is never changed in place: each write puts a new value, so that what a reader or a watch was handed
stays what it was. What a client writes is kept as it is handed over, so clients don't change it afterwards either. A write that changes nothing makes no new version and wakes nobody, as in etcd behind a real API server.
Deletion has two shapes: most objects vanish, a pod on a node first gets its deletionTimestamp; that rule is the pods'
(``machines``), which the store asks through ``graceful``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from dev.virtual.clock import VirtualClock
from rljob_operator.cluster import ClusterError

Json = dict[str, Any]

Key = tuple[str, str]
"""Namespace (empty for what has none) and name."""

Watcher = Callable[[str, str, Json], None]
"""Called at every change with ``ADDED``, ``MODIFIED`` or ``DELETED``, the plural, and the object."""

KINDS = {
    "pods": ("v1", "Pod"),
    "nodes": ("v1", "Node"),
    "services": ("v1", "Service"),
    "configmaps": ("v1", "ConfigMap"),
    "events": ("v1", "Event"),
    "resourcequotas": ("v1", "ResourceQuota"),
    "deployments": ("apps/v1", "Deployment"),
    "replicasets": ("apps/v1", "ReplicaSet"),
    "statefulsets": ("apps/v1", "StatefulSet"),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "rljobs": ("rljob.dev/v1alpha1", "RLJob"),
    "rljobprofiles": ("rljob.dev/v1alpha1", "RLJobProfile"),
}

PLURALS = {kind: plural for plural, (_, kind) in KINDS.items()}

_WITH_GENERATION = frozenset({"deployments", "replicasets", "statefulsets", "rljobs"})

_BY_KEY = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "schedulingGates": "name",
    "ownerReferences": "uid",
}
"""Lists that server-side apply merges by a key; all others are replaced as a whole. (Ports have a compound key, and are
the operator's alone here.)"""


def rfc3339(epoch_s: float) -> str:
    """Epoch seconds as Kubernetes writes them: whole seconds, UTC."""
    return datetime.fromtimestamp(int(epoch_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def conflict(plural: str, name: str, why: str) -> ClusterError:
    """A 409 in the words of the API server."""
    return ClusterError(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": {why}')


def not_found(plural: str, name: str) -> ClusterError:
    """A 404 in the words of the API server."""
    return ClusterError(404, "NotFound", f'{plural} "{name}" not found')


def invalid(plural: str, name: str, why: str) -> ClusterError:
    """A 422 in the words of the API server."""
    return ClusterError(422, "Invalid", f'{KINDS[plural][1]} "{name}" is invalid: {why}')


class Store:
    """All objects of a cluster."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.version = 1
        """The newest resource version; the first revision of an etcd holds no object."""
        self._objects: dict[str, dict[Key, Json]] = {plural: {} for plural in KINDS}
        self._applied: dict[tuple[str, Key, str], Json] = {}
        self._watchers: list[Watcher] = []
        self._uids = 0
        self.graceful: Callable[[Json], float] = lambda _pod: 0.0
        """Seconds that a pod takes to go once it is deleted; 0 removes it at once, and infinity waits for somebody."""

    def watch(self, watcher: Watcher) -> None:
        """Calls a function at every change, in order, before the writer gets its answer."""
        self._watchers.append(watcher)

    def get(self, plural: str, namespace: str | None, name: str) -> Json | None:
        """An object as it is; not to be changed."""
        return self._objects[plural].get((namespace or "", name))

    def all(self, plural: str) -> Iterable[Json]:
        """The objects of a kind, in the order of their creation; not to be changed."""
        return tuple(self._objects[plural].values())

    def matching(self, plural: str, namespace: str | None, labels: Mapping[str, str]) -> list[Json]:
        """The objects of a kind that carry labels, by name as the API server lists them."""
        found = [
            obj
            for (where, _), obj in self._objects[plural].items()
            if (namespace is None or where == namespace)
            and all((obj["metadata"].get("labels") or {}).get(k) == v for k, v in labels.items())
        ]
        return sorted(found, key=lambda obj: (obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))

    def create(self, plural: str, obj: Mapping[str, Any]) -> Json:
        """A new object; 409 AlreadyExists if its name is taken."""
        meta = dict(obj["metadata"])
        self._uids += 1
        if "name" not in meta:
            # As those of the real one, generated names are in no order: the youngest pod may well come first.
            meta["name"] = f"{meta['generateName']}{self._uids * 0x9E3779B1 % 0x100000000:08x}"
        key = (meta.get("namespace", ""), meta["name"])
        if key in self._objects[plural]:
            raise ClusterError(409, "AlreadyExists", f'{plural} "{meta["name"]}" already exists')
        meta |= {
            "uid": f"00000000-0000-4000-8000-{self._uids:012x}",
            "creationTimestamp": rfc3339(self.clock.now_s),
        }
        meta.pop("resourceVersion", None)
        if plural in _WITH_GENERATION:
            meta["generation"] = 1
        api_version, kind = KINDS[plural]
        new = {"apiVersion": api_version, "kind": kind, **obj, "metadata": meta}
        return self._put(plural, key, new, "ADDED")

    def replace(self, plural: str, obj: Json) -> Json:
        """Writes an object over the one that is there, whatever its version; for the model's own controllers."""
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        old = self._objects[plural].get(key)
        if old is None:
            raise not_found(plural, key[1])
        return self._update(plural, key, old, obj)

    def merge(self, plural: str, namespace: str | None, name: str, patch: Mapping[str, Any]) -> Json:
        """A JSON merge patch (RFC 7386); a uid or resourceVersion in its metadata must be the present one."""
        old = self._present(plural, namespace, name)
        self._preconditions(plural, old, patch.get("metadata") or {})
        body = {**patch, "metadata": _without_version(patch.get("metadata") or {})}
        return self._update(plural, (namespace or "", name), old, merged(old, body))

    def put_status(self, plural: str, namespace: str | None, name: str, obj: Mapping[str, Any]) -> Json:
        """Replaces the status alone; the resourceVersion of ``obj`` must be the present one if it has any."""
        old = self._present(plural, namespace, name)
        self._preconditions(plural, old, obj["metadata"])
        return self._update(plural, (namespace or "", name), old, {**old, "status": obj.get("status")})

    def apply(self, plural: str, obj: Mapping[str, Any], manager: str) -> Json:
        """Server-side apply with force: sets what ``obj`` says, removes what the manager had set and says no more.

        What it leaves is what others have set. An object that is there under another controller, or with another selector,
        can't become the one that is applied.
        """
        meta = obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        wished = {**obj, "metadata": _without_version(meta)}
        old = self._objects[plural].get(key)
        if old is None:
            if meta.get("uid") or meta.get("resourceVersion"):
                raise conflict(plural, key[1], "the object is gone, and a precondition speaks of it")
            new = self.create(plural, wished)
        else:
            self._preconditions(plural, old, meta)
            before = self._applied.get((plural, key, manager), {})
            new = _applied(old, wished, before)
            self._immutable(plural, old, new)
            new = self._update(plural, key, old, new)
        self._applied[plural, key, manager] = wished
        return new

    def delete(
        self, plural: str, namespace: str | None, name: str, preconditions: Mapping[str, Any] | None = None
    ) -> None:
        """Deletes an object: at once, or a pod on a node with its grace period."""
        old = self._present(plural, namespace, name)
        self._preconditions(plural, old, preconditions or {})
        if plural == "pods":
            if old["metadata"].get("deletionTimestamp"):
                return
            grace_s = self.graceful(old)
            if grace_s > 0:
                meta = {**old["metadata"], "deletionTimestamp": rfc3339(self.clock.now_s)}
                self._update(plural, (namespace or "", name), old, {**old, "metadata": meta})
                return
        self.remove(plural, namespace, name)

    def remove(self, plural: str, namespace: str | None, name: str) -> None:
        """Takes an object out of the store; nothing if it is gone."""
        key = (namespace or "", name)
        old = self._objects[plural].pop(key, None)
        if old is None:
            return
        for owned in [k for k in self._applied if k[0] == plural and k[1] == key]:
            del self._applied[owned]
        self.version += 1
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        self._tell("DELETED", plural, last)

    def _present(self, plural: str, namespace: str | None, name: str) -> Json:
        old = self.get(plural, namespace, name)
        if old is None:
            raise not_found(plural, name)
        return old

    def _update(self, plural: str, key: Key, old: Json, new: Json) -> Json:
        meta = dict(new["metadata"])
        for fixed in ("uid", "name", "namespace", "creationTimestamp", "resourceVersion", "generation"):
            if fixed in old["metadata"]:
                meta[fixed] = old["metadata"][fixed]
        new = {**new, "metadata": meta}
        if new == old:
            return old
        if plural == "pods":
            _pod_may_change(old, new)
        if plural in _WITH_GENERATION and new.get("spec") != old.get("spec"):
            meta["generation"] = old["metadata"]["generation"] + 1
        return self._put(plural, key, new, "MODIFIED")

    def _put(self, plural: str, key: Key, new: Json, event: str) -> Json:
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        self._objects[plural][key] = new
        self._tell(event, plural, new)
        return new

    def _tell(self, event: str, plural: str, obj: Json) -> None:
        for watcher in self._watchers:
            watcher(event, plural, obj)

    @staticmethod
    def _preconditions(plural: str, old: Json, asked: Mapping[str, Any]) -> None:
        meta = old["metadata"]
        if asked.get("uid") not in (None, meta["uid"]):
            raise conflict(
                plural, meta["name"], f"uid in precondition: {asked['uid']}, uid in object meta: {meta['uid']}"
            )
        if asked.get("resourceVersion") not in (None, "", meta["resourceVersion"]):
            raise conflict(
                plural,
                meta["name"],
                "the object has been modified; please apply your changes to the latest version and try again",
            )

    @staticmethod
    def _immutable(plural: str, old: Json, new: Json) -> None:
        name = old["metadata"]["name"]
        if sum(bool(owner.get("controller")) for owner in new["metadata"].get("ownerReferences") or ()) > 1:
            raise invalid(plural, name, "metadata.ownerReferences: Only one reference can have Controller set to true")
        fixed_selector = plural in ("deployments", "statefulsets", "replicasets")
        if fixed_selector and old["spec"].get("selector") != new["spec"].get("selector"):
            raise invalid(plural, name, "spec.selector: field is immutable")
        if plural == "statefulsets":
            for fixed in ("serviceName", "podManagementPolicy"):
                if old["spec"].get(fixed) != new["spec"].get(fixed):
                    raise ClusterError(422, "Forbidden", f"spec: updates to statefulset spec for {fixed} are forbidden")


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386: objects merge, null removes, everything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _without_version(meta: Mapping[str, Any]) -> Json:
    return {key: value for key, value in meta.items() if key not in ("resourceVersion", "uid")}


def _applied(live: Any, wished: Any, before: Any, field: str = "") -> Any:
    if isinstance(wished, Mapping):
        live_map = live if isinstance(live, Mapping) else {}
        before_map = before if isinstance(before, Mapping) else {}
        result = {k: v for k, v in live_map.items() if k in wished or k not in before_map or _foreign(v, before_map[k])}
        for key, value in wished.items():
            result[key] = _applied(live_map.get(key), value, before_map.get(key), key)
        return result
    if isinstance(wished, list) and field in _BY_KEY and isinstance(live, list):
        key_of = _BY_KEY[field]
        ours = {entry[key_of]: entry for entry in wished}
        was = {entry[key_of]: entry for entry in before} if isinstance(before, list) else {}
        kept = [entry for entry in live if entry[key_of] in ours or entry[key_of] not in was]
        there = {entry[key_of] for entry in kept}
        return [
            _applied(entry, ours[entry[key_of]], was.get(entry[key_of])) if entry[key_of] in ours else entry
            for entry in kept
        ] + [entry for name, entry in ours.items() if name not in there]
    return wished


def _foreign(live: Any, before: Any) -> bool:
    """Whether something is left of a field that the manager no longer sets: what others set inside of it."""
    return isinstance(live, Mapping) and isinstance(before, Mapping) and bool(live.keys() - before.keys())


def _pod_may_change(old: Json, new: Json) -> None:
    """What the API server lets anybody change in a pod's spec.

    Gates can be taken off, while there are any its node selector may be narrowed, and the scheduler binds it once.
    """
    if old.get("spec") == new.get("spec"):
        return
    name = old["metadata"]["name"]
    before, after = dict(old["spec"]), dict(new["spec"])
    had, has = before.pop("schedulingGates", None) or [], after.pop("schedulingGates", None) or []
    if any(gate not in had for gate in has):
        raise invalid("pods", name, "spec.schedulingGates: Forbidden: only deletion is allowed")
    chosen = before.get("nodeSelector") or {}
    if had and chosen.items() <= (after.get("nodeSelector") or {}).items():
        before.pop("nodeSelector", None)
        after.pop("nodeSelector", None)
    bound = before.pop("nodeName", None), after.pop("nodeName", None)
    if bound[0] is not None and bound[0] != bound[1]:
        raise invalid("pods", name, "spec: Forbidden: pod updates may not change nodeName")
    if bound[1] is not None and has:
        raise ClusterError(409, "Conflict", f'pod "{name}" can\'t be bound: it is still gated')
    if before != after:
        raise invalid(
            "pods", name, "spec: Forbidden: pod updates may not change fields other than image and tolerations"
        )
