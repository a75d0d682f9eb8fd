"""The few API requests that setting up a plane needs, on the standard library alone.

``kubectl`` can do all of this, but each call costs a process and a discovery round; starting a plane, adding nodes and
waiting for them takes dozens of requests.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from pathlib import Path
from typing import Any

from dev.controlplane.certs import KeyPair

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


class ApiError(RuntimeError):
    """The API server answered with an error; ``status`` is its HTTP code."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        """Say which request failed, and the server's message."""
        try:
            message = json.loads(body)["message"]
        except (ValueError, KeyError, TypeError):
            message = body[:500]
        super().__init__(f"{method} {path}: HTTP {status}: {message}")
        self.status = status


class ApiClient:
    """One API server, one client certificate, a connection per request (any thread may use it)."""

    def __init__(self, server: str, ca_file: Path, client: KeyPair) -> None:
        """Talk to ``server`` (``https://host:port``)."""
        self._address = urllib.parse.urlsplit(server).netloc
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self._context.load_cert_chain(client.cert, client.key)

    def text(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> str:
        """Send a request and return the answer's text; raises ApiError, or OSError if nobody answers."""
        connection = http.client.HTTPSConnection(self._address, context=self._context, timeout=30)
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, path, body=payload, headers={"Content-Type": content_type})
            response = connection.getresponse()
            answer = response.read().decode(errors="replace")
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if response.status >= 300:
            raise ApiError(method, path, response.status, answer)
        return answer

    def request(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> dict[str, Any]:
        """Send a request and return the answered object."""
        answer: dict[str, Any] = json.loads(self.text(method, path, body, content_type=content_type))
        return answer
