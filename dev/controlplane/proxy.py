"""A proxy in front of the API server that does to its clients what networks and busy servers do.

Every client gets an address of its own, so that faults can be meant for one of them, requests can be held back or cut off for one of
them, and the record says who wrote what. The API server behind it is the real one: what comes through is decided there, and a
test that passes here rests on what Kubernetes does and not on what somebody believes that it does.

Faults are drawn from rules with a seeded source. Which request meets which fault still hangs on the order in which requests come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import ssl
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

T = TypeVar("T")

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Methods that change something."""

_NOT_FORWARDED = frozenset(
    {"host", "connection", "accept-encoding", "content-length", "transfer-encoding", "keep-alive"}
)


class Fault(StrEnum):
    """What may happen to a request."""

    CONFLICT = "conflict"
    """409, nothing written: as if somebody else had written first."""
    THROTTLED = "throttled"
    """429 with Retry-After, nothing written."""
    ERROR = "error"
    """500, nothing written."""
    LOST_BEFORE = "lost-before"
    """The connection breaks before the API server got the request."""
    LOST_AFTER = "lost-after"
    """The connection breaks after the API server did what was asked: the client can't know."""
    SLOW = "slow"
    """The request is held up for the rule's seconds, then goes its way."""
    CUT_WATCH = "cut-watch"
    """A watch is cut off after the rule's seconds."""


@dataclass(frozen=True)
class Rule:
    """How often which requests meet a fault."""

    fault: Fault
    chance: float
    """Probability for each request that fits, 0 to 1."""
    methods: frozenset[str] = WRITES
    """Methods that fit; a watch is a GET."""
    path: str = ""
    """Regular expression that must be found in the path with its query; empty fits all."""
    client: str | None = None
    """The client that is meant, None for all."""
    seconds: float = 1.0
    """Of ``SLOW`` and ``CUT_WATCH``, and of Retry-After."""

    def fits(self, client: str, method: str, path: str) -> bool:
        """Whether a request may meet this fault."""
        return (
            self.client in (None, client)
            and method in self.methods
            and (not self.path or re.search(self.path, path) is not None)
        )


@dataclass(frozen=True)
class Write:
    """A request that would change something, as it came by."""

    client: str
    method: str
    path: str
    """Path with its query."""
    body: Any
    """The JSON that was sent, None if there was none."""
    asked_s: float
    """When it came, in seconds of a monotonic clock."""
    forwarded_s: float | None
    """When it was passed on; None if it never was."""
    status: int | None
    """What the API server answered, None if it was not asked."""

    @property
    def took_effect(self) -> bool:
        """Whether the API server did what was asked."""
        return self.status is not None and self.status < 300


@dataclass
class _Client:
    name: str
    port: int
    opened: asyncio.Event
    """Clear while writes are held back."""
    held_path: str = ""
    """Which of them: a regular expression found in their path."""
    waiting: list[str] = field(default_factory=list)
    """Paths of the writes that are held back at the moment."""
    cut: bool = False
    requests: dict[int, web.Request] = field(default_factory=dict)


class Proxy:
    """The proxy, in a thread of its own; made with ``start``. All methods may be called from any thread."""

    def __init__(self, server: str, ca_file: Path, *, seed: int = 0) -> None:
        self._server = server
        self._ssl = ssl.create_default_context(cafile=str(ca_file))
        self._random = random.Random(seed)
        self._clients: dict[str, _Client] = {}
        self._writes: list[Write] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._runners: list[web.AppRunner] = []
        self._session: aiohttp.ClientSession | None = None
        self.rules: tuple[Rule, ...] = ()
        """The faults that are drawn from now on; replaced as a whole."""
        self.faults: dict[Fault, int] = dict.fromkeys(Fault, 0)
        """How often each fault was met."""

    @classmethod
    @contextlib.contextmanager
    def start(cls, server: str, ca_file: Path, *, seed: int = 0) -> Iterator[Proxy]:
        """A proxy for the API server at the URL ``server``; ends with the context."""
        proxy = cls(server, ca_file, seed=seed)
        proxy._thread.start()
        try:
            yield proxy
        finally:
            proxy._do(proxy._close())
            proxy._loop.call_soon_threadsafe(proxy._loop.stop)
            proxy._thread.join(timeout=10)
            proxy._loop.close()

    def add_client(self, name: str) -> str:
        """An address for a client; returns its URL."""
        client = self._do(self._add(name))
        return f"http://127.0.0.1:{client.port}"

    def kubeconfig(self, name: str, source: Path, target: Path) -> Path:
        """Writes ``target``: the kubeconfig ``source`` with the address of a new client as its server; returns it."""
        found = yaml.safe_load(source.read_text())
        for cluster in found["clusters"]:
            cluster["cluster"] = {"server": self.add_client(name)}
        target.write_text(yaml.safe_dump(found))
        target.chmod(0o600)
        return target

    def hold(self, client: str, path: str = "") -> None:
        """Keeps a client's writes back before the API server sees them, until ``release``; reads and watches go on.

        With ``path``, a regular expression, only writes in whose path it is found.
        """
        found = self._clients[client]
        found.held_path = path
        self._loop.call_soon_threadsafe(found.opened.clear)

    def release(self, client: str) -> None:
        """Passes on what was held back, also if the client has given up on it by now."""
        self._loop.call_soon_threadsafe(self._clients[client].opened.set)

    def cut_off(self, client: str) -> None:
        """Breaks all of a client's connections and every new one, until ``reconnect``."""
        self._do(self._cut(self._clients[client]))

    def reconnect(self, client: str) -> None:
        """Ends ``cut_off``."""
        self._clients[client].cut = False

    def writes(self, client: str | None = None, *, path: str = "") -> list[Write]:
        """The writes so far, in the order in which they were answered; of one client, or with ``path`` found in theirs."""
        return [
            w
            for w in tuple(self._writes)
            if client in (None, w.client) and (not path or re.search(path, w.path) is not None)
        ]

    def held(self, client: str) -> list[str]:
        """Paths of the writes of a client that are held back at the moment."""
        return list(self._clients[client].waiting)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _add(self, name: str) -> _Client:
        if name in self._clients:
            return self._clients[name]
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._ssl, limit=0), timeout=aiohttp.ClientTimeout(total=None)
            )
        app = web.Application(client_max_size=64 * 2**20)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        client = _Client(name, 0, asyncio.Event())
        client.opened.set()

        async def handle(request: web.Request) -> web.StreamResponse:
            client.requests[id(request)] = request
            try:
                return await self._handle(client, request)
            finally:
                del client.requests[id(request)]

        app.router.add_route("*", "/{path:.*}", handle)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._runners.append(runner)
        client.port = int(runner.addresses[0][1])
        self._clients[name] = client
        return client

    async def _close(self) -> None:
        for client in self._clients.values():
            client.opened.set()
            await self._cut(client)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for runner in self._runners:
            await runner.cleanup()
        if self._session is not None:
            await self._session.close()

    @staticmethod
    async def _cut(client: _Client) -> None:
        client.cut = True
        for request in tuple(client.requests.values()):
            _break(request)

    def _drawn(self, client: str, method: str, path: str) -> Rule | None:
        for rule in self.rules:
            watch_only = rule.fault is Fault.CUT_WATCH
            if watch_only and not _is_watch(path):
                continue
            if rule.fits(client, method, path) and self._random.random() < rule.chance:
                self.faults[rule.fault] += 1
                return rule
        return None

    async def _handle(self, client: _Client, request: web.Request) -> web.StreamResponse:
        asked_s, body = time.monotonic(), await request.read()
        path, writing = request.path_qs, request.method in WRITES
        if client.cut:
            return _break(request)
        rule = self._drawn(client.name, request.method, path)
        fault = None if rule is None else rule.fault
        if rule is not None and fault in (Fault.CONFLICT, Fault.THROTTLED, Fault.ERROR):
            self._record(client, request, body, asked_s, None, None)
            return _refusal(rule)
        if fault is Fault.LOST_BEFORE:
            self._record(client, request, body, asked_s, None, None)
            return _break(request)
        if rule is not None and fault is Fault.SLOW:
            await asyncio.sleep(rule.seconds)
        if writing and re.search(client.held_path, path) is not None:
            client.waiting.append(path)
            await client.opened.wait()
            client.waiting.remove(path)
        forwarded_s = time.monotonic()
        assert self._session is not None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _NOT_FORWARDED}
        try:
            async with self._session.request(
                request.method,
                URL(self._server + request.raw_path, encoded=True),
                headers=headers,
                data=body or None,
                allow_redirects=False,
            ) as answer:
                if writing:
                    content = await answer.read()
                    self._record(client, request, body, asked_s, forwarded_s, answer.status)
                    if fault is Fault.LOST_AFTER or client.cut:
                        return _break(request)
                    return web.Response(status=answer.status, body=content, headers=_kept(answer))
                life_s = rule.seconds if rule is not None and fault is Fault.CUT_WATCH else None
                return await self._stream(client, request, answer, life_s)
        except aiohttp.ClientError:
            return _break(request)

    async def _stream(
        self, client: _Client, request: web.Request, answer: aiohttp.ClientResponse, life_s: float | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=_kept(answer))
        try:
            await response.prepare(request)
            async with asyncio.timeout(life_s):
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
        except (TimeoutError, ConnectionError):
            return _break(request, response)
        if client.cut:
            return _break(request, response)
        with contextlib.suppress(ConnectionError):
            await response.write_eof()
        return response

    def _record(
        self,
        client: _Client,
        request: web.Request,
        body: bytes,
        asked_s: float,
        forwarded_s: float | None,
        status: int | None,
    ) -> None:
        if request.method not in WRITES:
            return
        try:
            sent = json.loads(body) if body else None
        except ValueError:
            sent = body.decode(errors="replace")
        self._writes.append(Write(client.name, request.method, request.path_qs, sent, asked_s, forwarded_s, status))


def _is_watch(path: str) -> bool:
    return re.search(r"[?&]watch=(true|1)\b", path) is not None


def _kept(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {k: v for k, v in answer.headers.items() if k.lower() in ("content-type", "retry-after", "warning")}


def _break(request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
    """Breaks the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return response if response is not None else web.Response(status=502)


_REASONS = {
    Fault.CONFLICT: (409, "Conflict"),
    Fault.THROTTLED: (429, "TooManyRequests"),
    Fault.ERROR: (500, "InternalError"),
}


def _refusal(rule: Rule) -> web.Response:
    status, reason = _REASONS[rule.fault]
    headers = {"Retry-After": str(max(1, round(rule.seconds)))} if rule.fault is Fault.THROTTLED else {}
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"injected by the proxy: {reason}",
        "reason": reason,
        "code": status,
    }
    return web.json_response(body, status=status, headers=headers)


def effective(writes: Sequence[Write], *, state_only: bool = True) -> list[Write]:
    """The writes that took effect; with ``state_only`` without dry runs, events and the Lease, none of which is a job's state."""
    found = [w for w in writes if w.took_effect]
    if state_only:
        found = [w for w in found if not re.search(r"dryRun=All|/events(\?|$)|/leases(/|\?|$)", w.path)]
    return found
