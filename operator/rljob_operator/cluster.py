"""The API server as the reconcile needs it: a handful of verbs over plain JSON.

The official asynchronous client carries the connection, the credentials and their refresh; its generated models are left out, since
everything that decides here takes the JSON that the API returns, and since server-side apply sends back exactly what was
built. Children are written by server-side apply under one field manager, so that the fields of others stay theirs.

Whatever is written speaks of what was read: an apply of an object without a resourceVersion creates it and nothing else, one with a
resourceVersion changes that version of it and nothing else. So nobody undoes what he has not seen.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

FIELD_MANAGER = "rljob-operator"

PERSON = "rljob"
"""Field manager of what people set by the command ``rljob``."""

Json = dict[str, Any]

WATCH_SILENCE_S = 180.0
"""How long a watch may bring nothing before it counts as dead: the API server sends a bookmark each minute."""


class ClusterError(Exception):
    """The API server refused or could not be asked.

    ``status`` is the HTTP code, 0 if there was no answer; ``reason`` the API's machine-readable reason.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def conflict(self) -> bool:
        """Whether somebody else wrote first: read again and decide anew."""
        return self.status == 409

    @property
    def rejected(self) -> bool:
        """Whether the object itself is at fault (schema, admission, policy), so that trying again would not help."""
        return self.status in (400, 403, 422)


@dataclass(frozen=True)
class Resource:
    """A kind of object and how its path begins."""

    api: str
    """``v1`` or ``group/version``."""
    plural: str

    def path(self, namespace: str | None, name: str | None = None, sub: str | None = None) -> str:
        """The path of a collection, an object or a subresource."""
        root = f"/api/{self.api}" if "/" not in self.api else f"/apis/{self.api}"
        parts = [root]
        if namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts += [part for part in (name, sub) if part is not None]
        return "/".join(parts)


RLJOBS = Resource("rljob.dev/v1alpha1", "rljobs")
PODS = Resource("v1", "pods")
CONFIG_MAPS = Resource("v1", "configmaps")
EVENTS = Resource("v1", "events")
PROFILES = Resource("rljob.dev/v1alpha1", "rljobprofiles")

SERVICES = Resource("v1", "services")
DEPLOYMENTS = Resource("apps/v1", "deployments")
STATEFUL_SETS = Resource("apps/v1", "statefulsets")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "networkpolicies")
LEASES = Resource("coordination.k8s.io/v1", "leases")

CHILDREN = (DEPLOYMENTS, STATEFUL_SETS, SERVICES, CONFIG_MAPS, NETWORK_POLICIES, PODS)
"""All kinds of which a job has objects, the pods of its workloads among them."""

_BY_KIND = {
    ("networking.k8s.io/v1", "NetworkPolicy"): NETWORK_POLICIES,
    ("rljob.dev/v1alpha1", "RLJobProfile"): PROFILES,
    ("v1", "ConfigMap"): CONFIG_MAPS,
    ("v1", "Pod"): PODS,
    ("v1", "Service"): SERVICES,
    ("apps/v1", "Deployment"): DEPLOYMENTS,
    ("apps/v1", "StatefulSet"): STATEFUL_SETS,
}


def resource_of(obj: Mapping[str, Any]) -> Resource:
    """The resource of an object by its apiVersion and kind; raises KeyError for a kind that the operator never writes."""
    return _BY_KIND[(obj["apiVersion"], obj["kind"])]


def preconditions(obj: Mapping[str, Any]) -> dict[str, str]:
    """The uid and resourceVersion of an object as it was read, for a write that must find it so."""
    meta = obj["metadata"]
    return {"uid": str(meta["uid"]), "resourceVersion": str(meta["resourceVersion"])}


def version_of(obj: Mapping[str, Any]) -> int:
    """The resourceVersion of an object as a number, which Kubernetes lets one compare for order; 0 if it has none."""
    text = str(obj["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0


NO_VERSION = "1"
"""A resourceVersion that no object can have, since the store's first revision holds none: an apply with it finds nothing or fails."""


class Api(Protocol):
    """The verbs of an API server that a pass uses; each raises ClusterError."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        """One object, None if there is none."""

    async def list(self, resource: Resource, namespace: str | None, label_selector: str) -> list[Json]:
        """The objects of a collection that carry labels, read from the store and not from a cache."""

    async def apply(self, obj: Json, *, dry_run: bool = False) -> Json:
        """Server-side apply under the operator's field manager.

        With a uid and a resourceVersion in its metadata it changes that version of the object and no other, without them it
        creates the object; 409 if that is not how things stand.
        """

    async def create(self, resource: Resource, namespace: str, obj: Json, *, dry_run: bool = False) -> Json:
        """Creates an object, or only asks whether it could be."""

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        """A JSON merge patch; a resourceVersion in its metadata makes it conditional."""

    async def put_status(self, resource: Resource, namespace: str, name: str, obj: Json) -> Json:
        """Replaces the status of an object; a 409 says that it has changed since ``obj`` was read."""

    async def delete(
        self, resource: Resource, namespace: str, name: str, preconditions: Mapping[str, str] | None = None
    ) -> None:
        """Deletes an object; one that is gone is fine, one of another uid or resourceVersion than stated a 409."""


def _lean(answer: Json) -> Json:
    """An answer without the record of who wrote which field: half of an object, read by nobody here, and kept by the API server if left out."""
    for obj in (answer, *(answer.get("items") or ())):
        (obj.get("metadata") or {}).pop("managedFields", None)
    return answer


class Cluster:
    """A connection to the API server."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self.answered: Callable[[str, int], None] = lambda _verb, _code: None
        """Told of every request but watches: its verb and the HTTP status of the answer, 0 if there was none."""

    @classmethod
    async def connect(cls, context: str | None = None) -> Cluster:
        """Connects by KUBECONFIG or, inside a pod, by the service account; raises ClusterError if there is neither.

        ``context`` is one of the kubeconfig's, by default its current one.
        """
        configuration = client.Configuration()
        try:
            try:
                if context is not None:
                    raise config.ConfigException("a context is asked for")
                config.load_incluster_config(client_configuration=configuration)
            except config.ConfigException:
                await config.load_kube_config(context=context, client_configuration=configuration)
        except (config.ConfigException, OSError) as error:
            raise ClusterError(0, "NoCredentials", f"no cluster to connect to: {error}; set KUBECONFIG") from error
        configuration.retries = None
        return cls(client.ApiClient(configuration))

    async def close(self) -> None:
        """Closes the connection."""
        await self._api.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        """One object, None if there is none."""
        try:
            return await self._request("GET", resource.path(namespace, name))
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, resource: Resource, namespace: str | None, label_selector: str) -> list[Json]:
        """The objects of a collection that carry labels, read from the store and not from a cache."""
        answer = await self._request("GET", resource.path(namespace), query={"labelSelector": label_selector})
        return list(answer["items"])

    async def page(self, resource: Resource, namespace: str | None, limit: int, token: str) -> Json:
        """A page of a whole collection; ``token`` is what the page before it says as ``metadata.continue``."""
        query = {"limit": str(limit), **({"continue": token} if token else {})}
        return await self._request("GET", resource.path(namespace), query=query)

    async def follow(self, resource: Resource, namespace: str | None, version: str) -> AsyncIterator[Json]:
        """The watch events of a collection after ``version``, bookmarks and errors among them, until the server ends the watch."""
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "600"}
        timeout = client.rest.aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=WATCH_SILENCE_S)
        path = f"{resource.path(namespace)}?{urlencode(query)}"
        try:
            verb, url, headers, _, _ = await self._api.param_serialize(
                "GET", path, header_params={"Accept": "application/json"}, auth_settings=["BearerToken"]
            )
            answer = await self._api.call_api(verb, url, headers, _request_timeout=timeout)
            if answer.status >= 400:
                raise ClusterError(answer.status, str(answer.reason), (await answer.read()).decode(errors="replace"))
            # Lines may be longer than what aiohttp reads as one: an object has up to 1.5 MB.
            rest = b""
            try:
                async for chunk in answer.response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield json.loads(line)
            finally:
                answer.response.close()
        except (OSError, TimeoutError, ValueError, client.rest.aiohttp.ClientError) as error:
            raise ClusterError(0, "Unreachable", f"the watch broke off: {error!r}") from error

    async def apply(self, obj: Json, *, dry_run: bool = False) -> Json:
        """Server-side apply under the operator's field manager; its fields win over other managers'."""
        meta = obj["metadata"]
        if "resourceVersion" not in meta and not dry_run:
            obj = {**obj, "metadata": {**meta, "resourceVersion": NO_VERSION}}
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        path = resource_of(obj).path(meta["namespace"], meta["name"])
        return await self._request("PATCH", path, query=query, body=obj, content_type="application/apply-patch+yaml")

    async def create(self, resource: Resource, namespace: str, obj: Json, *, dry_run: bool = False) -> Json:
        """Creates an object, or only asks whether it could be; the question is strict about fields that nobody knows."""
        query = {"fieldManager": FIELD_MANAGER}
        if dry_run:
            # A misspelt field would be dropped without a word, and show for ever after as a difference.
            query |= {"dryRun": "All", "fieldValidation": "Strict"}
        return await self._request("POST", resource.path(namespace), query=query, body=obj)

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        """A JSON merge patch; a resourceVersion in its metadata makes it conditional."""
        return await self._request(
            "PATCH",
            resource.path(namespace, name),
            query={"fieldManager": FIELD_MANAGER},
            body=patch,
            content_type="application/merge-patch+json",
        )

    async def edit(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        """A JSON merge patch on behalf of a person, under the name of the command: what he sets is not the operator's."""
        return await self._request(
            "PATCH",
            resource.path(namespace, name),
            query={"fieldManager": PERSON},
            body=patch,
            content_type="application/merge-patch+json",
        )

    async def who(self) -> str:
        """The name by which the API server knows whoever is connected; empty if it does not say."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            found = await self._request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body)
        except ClusterError:
            return ""
        return str(((found.get("status") or {}).get("userInfo") or {}).get("username") or "")

    async def put_status(self, resource: Resource, namespace: str, name: str, obj: Json) -> Json:
        """Replaces the status of an object; a 409 says that it has changed since ``obj`` was read."""
        return await self._request("PUT", resource.path(namespace, name, "status"), body=obj)

    async def delete(
        self, resource: Resource, namespace: str, name: str, preconditions: Mapping[str, str] | None = None
    ) -> None:
        """Deletes an object; one that is gone is fine, one of another uid or resourceVersion than stated a 409."""
        body: Json = {"propagationPolicy": "Background"}
        if preconditions:
            body["preconditions"] = dict(preconditions)
        try:
            await self._request("DELETE", resource.path(namespace, name), body=body)
        except ClusterError as error:
            if error.status != 404:
                raise

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        target = path if not query else f"{path}?{urlencode(query)}"
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            verb, url, sent_headers, sent_body, _ = await self._api.param_serialize(
                method, target, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = await self._api.call_api(verb, url, sent_headers, sent_body, _request_timeout=30)
            data = await response.read()
        except ApiException as error:
            self.answered(method, error.status or 0)
            raise ClusterError(error.status or 0, str(error.reason), str(error.body or error.reason)) from error
        except (OSError, TimeoutError, client.rest.aiohttp.ClientError) as error:
            self.answered(method, 0)
            raise ClusterError(0, "Unreachable", f"the API server did not answer: {error!r}") from error
        self.answered(method, response.status)
        try:
            answer = json.loads(data) if data else {}
        except ValueError:
            answer = {"message": data.decode(errors="replace")}
        if response.status >= 400:
            raise ClusterError(
                response.status, str(answer.get("reason", "")), str(answer.get("message", f"HTTP {response.status}"))
            )
        return _lean(answer)
