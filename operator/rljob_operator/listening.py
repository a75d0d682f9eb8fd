"""Ports that the operator listens on: on every address of the pod, IPv6 as well as IPv4, and unmoved by who connects.

Whatever reaches the pod reaches these ports, so that a connection may cost a thread for a while and no more: idle ones are closed, those
beyond a limit are refused at once, and none of it is worth a line in the log. A browser alone opens spare connections that it never uses.
"""

from __future__ import annotations

import errno
import logging
import socket
import sys
import threading
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

logger = logging.getLogger(__name__)

IDLE_S = 15.0
"""Seconds after which a connection on which nothing comes is closed."""

MOST_CONNECTIONS = 64
"""Connections to one port at a time; further ones are closed at once."""

ALL_IPV4, ALL_IPV6 = "0.0.0.0", "::"


def serve(port: int, application: WSGIApplication, address: str | None = None) -> tuple[WSGIServer, threading.Thread]:
    """Serve an application in a daemon thread; returns server and thread, for ``shutdown``. Port 0 takes a free one.

    Without an ``address`` it is all that the pod has, of both families where the kernel knows both. Raises OSError if the port is taken.
    """
    server = _bound(port, application, address)
    thread = threading.Thread(target=server.serve_forever, name=f"port {server.server_port}", daemon=True)
    thread.start()
    return server, thread


def reachable(url: str) -> str:
    """The URL to listen on in place of one with 0.0.0.0: ``[::]`` on a machine that has IPv6 and no IPv4, else unchanged."""
    parts = urlsplit(url)
    if parts.hostname != ALL_IPV4 or has_route(socket.AF_INET) or not has_route(socket.AF_INET6):
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(ALL_IPV4, f"[{ALL_IPV6}]")))


def has_route(family: socket.AddressFamily) -> bool:
    """Whether this machine could send to an address of the family; nothing is sent."""
    # Addresses that are kept for documentation: only a default route leads there.
    elsewhere = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((elsewhere, 9))
    except OSError:
        return False
    return True


def _bound(port: int, application: WSGIApplication, address: str | None) -> WSGIServer:
    if address is not None:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return make_server(address, port, application, _SERVERS[family], handler_class=_Handler)
    if socket.has_dualstack_ipv6():
        try:
            return make_server(ALL_IPV6, port, application, _DualStack, handler_class=_Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return make_server(ALL_IPV4, port, application, _Server, handler_class=_Handler)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(*args, **kwargs)

    def server_bind(self) -> None:
        """Bind without a look into DNS for the server's own name, which nobody is told."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "operator", self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is a place for one."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and leave the place to the next one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the names of the base class
        """A connection that breaks or says nothing is no event."""
        if not isinstance(sys.exception(), (TimeoutError, ConnectionError)):
            logger.debug("a connection failed", exc_info=True)


class _IPv6(_Server):
    address_family = socket.AF_INET6


class _DualStack(_IPv6):
    def server_bind(self) -> None:
        """Take IPv4 connections, too."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


_SERVERS = {socket.AF_INET: _Server, socket.AF_INET6: _IPv6}


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        """Close the connection when nothing comes for ``IDLE_S``."""
        super().setup()
        self.connection.settimeout(IDLE_S)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
        """Log nothing."""
