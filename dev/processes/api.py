"""What the node asks of the API server: plain JSON over one client certificate, as a kubelet has it."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from dev.controlplane.rest import MERGE_PATCH, STRATEGIC_PATCH, ApiError
from dev.processes.environment import ConfigError

Json = Mapping[str, Any]

_log = logging.getLogger(__name__)

TIMEOUT_S = 20.0
"""How long an answer that is no watch may take, seconds."""


class Api:
    """One API server."""

    def __init__(self, kubeconfig: Path) -> None:
        """Use the only user and cluster of a kubeconfig that ``dev.controlplane`` wrote."""
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server = str(cluster["server"])
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        context.load_cert_chain(user["client-certificate"], user["client-key"])
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        self._session = aiohttp.ClientSession(connector=connector)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Any:
        """Send a request and return the answered object; raises ApiError, or OSError if nobody answers."""
        payload = None if body is None else json.dumps(body).encode()
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        headers = {"Content-Type": content_type}
        try:
            async with self._session.request(
                method, self.server + path, data=payload, headers=headers, timeout=timeout
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        if answer.status >= 300:
            raise ApiError(method, path, answer.status, text)
        return json.loads(text)

    async def merge(self, path: str, body: Any) -> Any:
        """Patch an object, lists replaced as they are given."""
        return await self.request("PATCH", path, body, content_type=MERGE_PATCH)

    async def patch_status(self, path: str, status: Json) -> Any:
        """Patch a status, conditions merged by their types."""
        return await self.request("PATCH", f"{path}/status", {"status": status}, content_type=STRATEGIC_PATCH)

    async def follow(self, path: str, selector: str) -> AsyncIterator[tuple[str, Any]]:
        """List and watch for ever: ``("LIST", [objects])`` whenever a list was taken, then ``(event, object)``."""
        while True:
            try:
                listed = await self.request("GET", f"{path}?fieldSelector={selector}")
                yield "LIST", listed["items"]
                query = f"?fieldSelector={selector}&watch=true&timeoutSeconds=300"
                url = f"{self.server}{path}{query}&resourceVersion={listed['metadata']['resourceVersion']}"
                timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S)
                async with self._session.get(url, timeout=timeout) as stream:
                    pending = b""
                    async for chunk in stream.content.iter_any():
                        *lines, pending = (pending + chunk).split(b"\n")
                        for line in lines:
                            event = json.loads(line)
                            if event["type"] == "ERROR":
                                raise ConnectionError(event["object"].get("message", "the watch ended with an error"))
                            yield event["type"], event["object"]
            except (OSError, ApiError, aiohttp.ClientError, TimeoutError) as error:
                _log.warning("following %s: %s", path, error)
                await asyncio.sleep(1.0)

    async def values(self, namespace: str, kind: str, name: str, optional: bool) -> dict[str, str]:
        """What a ConfigMap (``configmaps``) or a Secret (``secrets``) holds; raises ConfigError if it is not there and has to be."""
        try:
            found = await self.request("GET", f"/api/v1/namespaces/{namespace}/{kind}/{name}")
        except ApiError as error:
            # A node may read what its pods refer to, so 403 means that there is no such reference yet.
            if error.status not in (403, 404):
                raise
            if optional:
                return {}
            raise ConfigError(f"{kind[:-1]} {name} is not there") from error
        data: dict[str, str] = found.get("data") or {}
        return {k: base64.b64decode(v).decode() for k, v in data.items()} if kind == "secrets" else data
