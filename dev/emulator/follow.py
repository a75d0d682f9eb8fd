"""List and watch, as plain JSON, from threads.

The client's typed models cost more time than what is done with the objects, and its own watch hides the moment at which a
list is taken anew. Here every event reaches its taker in order, and a new list says that it is one.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import urllib3
from kubernetes import client, config

_log = logging.getLogger(__name__)

Json = Mapping[str, Any]


class Taker(Protocol):
    """What takes in objects."""

    def reset(self, objects: list[Json]) -> None:
        """All objects that there are: at the start and whenever a watch was lost."""

    def event(self, kind: str, obj: Json) -> None:
        """An object was ``ADDED``, ``MODIFIED`` or ``DELETED``."""


def api_client(kubeconfig: str) -> client.ApiClient:
    """A client from a kubeconfig file and from nothing else."""
    configuration = client.Configuration()
    config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    return client.ApiClient(configuration)


def follow(call: Callable[..., Any], taker: Taker, stop: threading.Event, **arguments: Any) -> threading.Thread:
    """Follow what ``call(**arguments)`` lists, in a daemon thread, until ``stop`` is set and one more event or a minute passes."""
    thread = threading.Thread(target=_run, args=(call, taker, stop, arguments), name="follow", daemon=True)
    thread.start()
    return thread


def _run(call: Callable[..., Any], taker: Taker, stop: threading.Event, arguments: Mapping[str, Any]) -> None:
    while not stop.is_set():
        try:
            answer = json.loads(call(**arguments, _preload_content=False).data)
            taker.reset(answer["items"])
            version = answer["metadata"]["resourceVersion"]
            while not stop.is_set():
                stream = call(
                    **arguments, watch=True, resource_version=version, timeout_seconds=60, _preload_content=False,
                    _request_timeout=(10, 90),
                )  # fmt: skip
                for line in _lines(stream):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ValueError(event["object"].get("message", "the watch ended with an error"))
                    version = event["object"]["metadata"]["resourceVersion"]
                    if stop.is_set():
                        return
                    taker.event(event["type"], event["object"])
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if not stop.is_set():
                _log.warning("listing and watching anew: %s", error)
            stop.wait(1.0)


def _lines(stream: Any) -> Iterator[bytes]:
    pending = b""
    for chunk in stream.stream(amt=None, decode_content=False):
        *lines, pending = (pending + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
