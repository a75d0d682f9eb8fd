"""What pods reach at the node's address: the API server, and a name service for Services.

The plane's API server listens on loopback, which is another one inside of a pod; a connection to the bridge's address is passed on as it
is, TLS and all. The name service knows what the ``kubernetes`` Service's users ask of a cluster's DNS, addresses of Services, and
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import struct
import threading
from collections.abc import Callable
from typing import Any

DNS_PORT = 53
DOMAIN = "cluster.local"
"""Domain of the cluster, as the kubelet writes it into resolv.conf."""

_TYPE_A = 1
_NAME_ERROR = 3
_TTL_S = 5


class Wires:
    """A thread that passes connections on and answers questions for names until it is closed."""

    def __init__(self, address: str, api_port: int, cluster_ip: Callable[[str, str], str | None]) -> None:
        """Listen on ``address``; ``cluster_ip(namespace, service)`` says where a Service is, None if there is none."""
        self._address = address
        self._api_port = api_port
        self._cluster_ip = cluster_ip
        self._loop = asyncio.new_event_loop()
        self.port = 0
        """Where the API server is, at the address."""
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="wires")
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(timeout=20)
        except BaseException:
            self.close()
            raise

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, self._address, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        await self._loop.create_datagram_endpoint(
            lambda: _Names(self._cluster_ip), local_addr=(self._address, DNS_PORT)
        )

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._api_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, back), _pump(there, writer))

    def close(self) -> None:
        """End it, and all connections with it; harmless if done before."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    with contextlib.suppress(OSError):
        target.close()


class _Names(asyncio.DatagramProtocol):
    """Answers questions for addresses of Services."""

    def __init__(self, cluster_ip: Callable[[str, str], str | None]) -> None:
        self._cluster_ip = cluster_ip

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        loop = asyncio.get_running_loop()
        # It asks the API server, which must not hold up the connections to it.
        asking = loop.run_in_executor(None, answer, data, self._cluster_ip)
        asking.add_done_callback(lambda done: self._send(done, addr))

    def _send(self, done: asyncio.Future[bytes], addr: Any) -> None:
        if done.exception() is None:
            self._transport.sendto(done.result(), addr)


def answer(question: bytes, cluster_ip: Callable[[str, str], str | None]) -> bytes:
    """The answer to a DNS message with one question (RFC 1035, 4.1): the address of a Service, or that there is no such name."""
    labels, position = [], 12
    while length := question[position]:
        labels.append(question[position + 1 : position + 1 + length].decode("ascii", errors="replace").lower())
        position += 1 + length
    (kind,) = struct.unpack_from("!H", question, position + 1)
    name = ".".join(labels)
    parts = name.removesuffix(f".svc.{DOMAIN}").split(".")
    address = None
    if name.endswith(f".svc.{DOMAIN}") and len(parts) == 2:
        address = cluster_ip(parts[1], parts[0])
    records = b""
    if address is not None and kind == _TYPE_A:
        # 0xC00C: the name of the question, at its offset of 12.
        records = struct.pack("!HHHIH", 0xC00C, _TYPE_A, 1, _TTL_S, 4) + ipaddress.IPv4Address(address).packed
    # A response, authoritative, recursion as asked for.
    flags = 0x8400 | (question[2] & 1) << 8 | (0 if address is not None else _NAME_ERROR)
    header = question[:2] + struct.pack("!HHHHH", flags, 1, 1 if records else 0, 0, 0)
    return header + question[12 : position + 5] + records
