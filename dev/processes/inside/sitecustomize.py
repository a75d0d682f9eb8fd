"""Answers names of Services in every Python of a container, in place of a cluster's DNS.

Python imports this module at its start, since its folder stands on ``PYTHONPATH`` of each container. The table of names is a file that
the node writes anew whenever a pod or a Service changes, so it is read at each question. Names that it doesn't hold go to the
machine's own resolver, as do addresses. Only what asks through Python's ``socket`` is answered: a library that resolves names in C asks
the machine.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

_ENDS = (".svc.cluster.local", ".svc")
"""What a cluster's search path lets a pod append to ``<service>.<namespace>``."""

_getaddrinfo = socket.getaddrinfo


def _addresses(host: object) -> list[str] | None:
    """Addresses of the Service's pods; None where ``host`` is no Service's name."""
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if not isinstance(host, str):
        return None
    name = host.rstrip(".").lower()
    for end in _ENDS:
        if name.endswith(end):
            name = name[: -len(end)]
            break
    try:
        with open(os.environ["RLJOB_DEV_NAMES"], encoding="utf-8") as file:
            found = json.load(file).get(name)
    except (KeyError, OSError, ValueError):
        return None
    return None if found is None else [str(address) for address in found]


def _known(host: object) -> list[str] | None:
    """Like ``_addresses``, and an error of the resolver's where the Service has no pod that may be asked."""
    found = _addresses(host)
    if found == []:
        raise socket.gaierror(socket.EAI_NONAME, f"no pod of {host!s} has an address")
    return found


def getaddrinfo(host: Any, port: Any, *args: Any, **options: Any) -> list[Any]:
    """``socket.getaddrinfo`` that knows Services; what follows the port goes on to it."""
    found = _known(host)
    if found is None:
        return _getaddrinfo(host, port, *args, **options)
    return [answer for address in found for answer in _getaddrinfo(address, port, *args, **options)]


def gethostbyname(hostname: str) -> str:
    """``socket.gethostbyname`` that knows Services."""
    return str(getaddrinfo(hostname, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])


def gethostbyname_ex(hostname: str) -> tuple[str, list[str], list[str]]:
    """``socket.gethostbyname_ex`` that knows Services."""
    found = _known(hostname)
    return _gethostbyname_ex(hostname) if found is None else (hostname, [], found)


_gethostbyname_ex = socket.gethostbyname_ex
socket.getaddrinfo = getaddrinfo
socket.gethostbyname = gethostbyname
socket.gethostbyname_ex = gethostbyname_ex
