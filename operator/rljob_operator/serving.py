"""How a sampler's container starts the engine's server, and what it gets where the template leaves it out. Pure.

A server in a pod that can come and go needs more than its command: probes that know when the model is loaded, a port that the
layout can name, time to end its samples, and arguments that follow the plan. Most templates lack some of it, and what is lacking is found out when
samples are lost. So it is added, and never in place of something that the template says.

It is added only where the template visibly starts the engine's server. Arguments are appended only to a command that is a list of words, since
text that a shell reads can't be extended without knowing what it means; probes, port and time are added to such a container all the same.
What starts something else, or hides what it starts in an image or a script, is left as it is (``hazards`` says what it lacks).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rljob_operator.engines import Engine, Flag
from rljob_planner.api.base import duration_s

SETTLE_S = 5
"""Seconds between the deletion of a pod and its SIGTERM, by a preStop hook that needs nothing from the image: in them the layout
loses its endpoint, and clients and Services hear of it, since a server that is told to end refuses new requests."""

MARGIN_S = 30
"""Seconds of a grace period beyond what hook and server may take."""

EXIT_S = 10
"""Seconds that a server takes to exit after its last request; vLLM 0.32 took up to 7."""

_READY_PERIOD_S = 5
_PROBE_TIMEOUT_S = 10
"""A busy server has been seen to take more than a second for /health."""
_START_PERIOD_S = 5
_START_FAILURES = 1440
"""Two hours for a load: longer than any that is known, since a load that is cut off begins anew."""

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Form(StrEnum):
    """How a container starts a server."""

    ARGUMENTS = "arguments"
    """By a list of words that ends in the server's arguments."""
    SHELL = "shell"
    """By a text that a shell reads."""
    HIDDEN = "hidden"
    """Not at all, or by something that the template does not show."""


@dataclass(frozen=True)
class Server:
    """How a container starts the engine's server, as far as its template shows."""

    form: Form
    words: tuple[str, ...] = ()
    """The words of the command line; of a shell's text, what lies between blanks."""
    text: str = ""
    """The text that a shell reads; empty in the other forms."""

    @property
    def visible(self) -> bool:
        """Whether the template shows that the container starts the server."""
        return self.form is not Form.HIDDEN

    @property
    def configured(self) -> bool:
        """Whether arguments come from a file too, which the template does not show."""
        return self.flag("--config") is not None

    def flag(self, *names: str) -> str | None:
        """What is said for an argument, as ``--name value`` or ``--name=value``; None if it is not there, empty if it has no value."""
        wished = {_plain(name) for name in names}
        for i, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if _plain(name) in wished:
                following = self.words[i + 1] if i + 1 < len(self.words) else ""
                return value if equals else "" if following.startswith("-") else following
        return None


def server_of(container: Mapping[str, Any], engine: Engine) -> Server:
    """How the container starts the engine's server."""
    command = [str(word) for word in container.get("command") or ()]
    args = [str(word) for word in container.get("args") or ()]
    words = (*command, *args)
    text = _shell_text(words)
    if text is not None:
        parts = _split(text)
        return Server(Form.SHELL, parts, text) if _starts(parts, engine) else Server(Form.HIDDEN)
    if _starts(words, engine) or (not command and _image_serves(str(container.get("image") or ""), engine)):
        return Server(Form.ARGUMENTS, words)
    return Server(Form.HIDDEN)


def serving_port(container: Mapping[str, Any], engine: Engine) -> int:
    """The port of the server: the first that the container declares, else the one that its arguments say, else the engine's own."""
    ports = container.get("ports") or ()
    if ports:
        return int(ports[0]["containerPort"])
    said = server_of(container, engine).flag("--port")
    return int(said) if said and said.isdigit() else engine.port


def hook_s(container: Mapping[str, Any]) -> float | None:
    """Seconds that the container's preStop hook takes at most: 0 without one, None if that can't be seen."""
    hook = (container.get("lifecycle") or {}).get("preStop") or {}
    if hook.get("sleep"):
        return float(hook["sleep"].get("seconds") or 0)
    if not hook.get("exec"):
        return None if hook else 0.0
    words = [str(word) for word in hook["exec"].get("command") or ()]
    text = _shell_text(words)
    words = list(words if text is None else _split(text))
    if drains(container):
        said = Server(Form.ARGUMENTS, tuple(words)).flag("--deadline")
        try:
            return duration_s(said) if said else None
        except ValueError:
            return None
    if len(words) == 2 and words[0].rpartition("/")[2] == "sleep" and words[1].isdigit():
        return float(words[1])
    return None


def drains(container: Mapping[str, Any]) -> bool:
    """Whether the container's preStop hook waits for running samples, by ``rljob_runtime drain`` or by asking a sidecar for ``/drain``."""
    hook = (container.get("lifecycle") or {}).get("preStop") or {}
    if (hook.get("httpGet") or {}).get("path") == "/drain":
        return True
    text = " ".join(str(word) for word in (hook.get("exec") or {}).get("command") or ())
    return re.search(r"\brljob[_-]runtime\s+drain\b", text) is not None


def version_of(image: str, engine: Engine) -> tuple[int, int] | None:
    """The engine's version by the tag of its image; None for an image of somebody else's, or a tag that is no version."""
    name, _, tag = image.partition("@")[0].rpartition(":")
    if "/" in tag or engine.source not in name.rpartition("/")[2]:
        return None
    found = re.match(r"v?(\d+)\.(\d+)", tag)
    return None if found is None else (int(found[1]), int(found[2]))


def knows_shutdown_timeout(image: str, engine: Engine) -> bool:
    """Whether the server of this image takes the argument; one whose version can't be seen is taken for a new one."""
    version = version_of(image, engine)
    return engine.shutdown_timeout is not None and (version is None or version >= engine.shutdown_since)


def grace_s(container: Mapping[str, Any], engine: Engine, drain_s: float) -> int:
    """The grace period of a pod that leaves it open: the hook's time, the time for samples, and a margin, in seconds.

    A sampler that an eviction takes may finish its samples as one may that a move takes. An engine that has nothing to finish exits
    at once, so the long period costs nothing then.
    """
    if not server_of(container, engine).visible:
        return math.ceil(drain_s) + MARGIN_S
    hook = hook_s(container)
    return math.ceil(drain_s if hook is None else hook) + math.ceil(drain_s) + MARGIN_S


def with_hook(container: Mapping[str, Any], engine: Engine, grace: float | None) -> dict[str, Any]:
    """The container with a pause before its SIGTERM, where it starts the server, has no preStop hook, and the template's grace period has room."""
    lifecycle = container.get("lifecycle") or {}
    if lifecycle.get("preStop") or not server_of(container, engine).visible:
        return dict(container)
    if grace is not None and grace < SETTLE_S + EXIT_S:
        return dict(container)
    return {**container, "lifecycle": {**lifecycle, "preStop": {"sleep": {"seconds": SETTLE_S}}}}


def with_defaults(
    container: Mapping[str, Any], engine: Engine, *, shutdown: int, tensor_parallel: int, host_network: bool
) -> dict[str, Any]:
    """The container with what the engine's server needs and the template leaves out.

    ``shutdown``: seconds that the server may take for what runs when it is told to end, 0 for none. ``tensor_parallel``: of a replica in
    the plan. ``host_network``: whether the pod has its node's network, where a declared port is taken from the node.
    """
    server = server_of(container, engine)
    made = dict(container)
    if not server.visible:
        return made
    port = serving_port(container, engine)
    if not made.get("ports") and not host_network:
        made["ports"] = [{"name": "http", "containerPort": port, "protocol": "TCP"}]
    if server.flag("--host") not in _LOOPBACK and server.flag("--uds") is None:
        probe = _probe(engine, port, encrypted=server.flag("--ssl-certfile") is not None)
        made.setdefault("readinessProbe", {**probe, "periodSeconds": _READY_PERIOD_S})
        made.setdefault(
            "startupProbe", {**probe, "periodSeconds": _START_PERIOD_S, "failureThreshold": _START_FAILURES}
        )
    own = {str(variable.get("name")) for variable in made.get("env") or ()}
    new = [{"name": name, "value": value} for name, value in engine.environment.items() if name not in own]
    if new:
        made["env"] = [*(made.get("env") or ()), *new]
    added = _arguments(made, server, engine, shutdown, tensor_parallel)
    if added:
        made["args"] = [*(made.get("args") or ()), *added]
    return made


def scraped(container: Mapping[str, Any], engine: Engine, annotations: Mapping[str, Any]) -> dict[str, str]:
    """The annotations by which a Prometheus without the operator's CRDs finds the server; empty where it is not visible or the template has its own."""
    if not server_of(container, engine).visible or any(str(key).startswith("prometheus.io/") for key in annotations):
        return {}
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(serving_port(container, engine)),
        "prometheus.io/path": engine.metrics_path,
    }


def shutdown_s(container: Mapping[str, Any], grace: float) -> int:
    """Seconds of a grace period that are left for running samples after the hook and before the exit; 0 if none are.

    Of a hook that takes nobody knows how long, half of the time is taken for the hook's.
    """
    left, hook = grace - EXIT_S, hook_s(container)
    return max(0, math.floor(left / 2 if hook is None else left - hook))


def _arguments(
    container: Mapping[str, Any], server: Server, engine: Engine, shutdown: int, tensor_parallel: int
) -> list[str]:
    """The arguments to append; none to a shell's text, nor where a file may say them, which appended ones would override."""
    if server.form is not Form.ARGUMENTS or server.configured:
        return []
    wished: list[Flag] = [engine.max_running, *engine.needed]
    if engine.drainable is not None and drains(container):
        wished.append(engine.drainable)
    if tensor_parallel > 1 and server.flag(*engine.widths) is None:
        wished.append(engine.tensor_parallel)
    if shutdown and engine.shutdown_timeout and knows_shutdown_timeout(str(container.get("image") or ""), engine):
        wished.append(Flag(engine.shutdown_timeout.names, str(shutdown)))
    return [flag.word for flag in wished if server.flag(*flag.names) is None]


def _probe(engine: Engine, port: int, *, encrypted: bool) -> dict[str, Any]:
    get = {"path": engine.health, "port": port, "scheme": "HTTPS" if encrypted else "HTTP"}
    return {"httpGet": get, "timeoutSeconds": _PROBE_TIMEOUT_S}


def _starts(words: Sequence[str], engine: Engine) -> bool:
    bare = [word.rpartition("/")[2] if "://" not in word else word for word in words]
    return any(tuple(bare[at : at + len(wished)]) == wished for wished in engine.words for at in range(len(bare)))


def _image_serves(image: str, engine: Engine) -> bool:
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return any(name == wished or name.startswith(f"{wished}-") for wished in engine.images)


def _shell_text(words: Sequence[str]) -> str | None:
    """The text that a shell on the command line is to read; None without one."""
    for at, word in enumerate(words):
        if word.rpartition("/")[2] in _SHELLS:
            for option, text in zip(words[at + 1 :], words[at + 2 :], strict=False):
                if not option.startswith(("-", "+")):
                    return None
                if re.fullmatch(r"-[a-zA-Z]*c", option):
                    return text
            return None
    return None


def _split(text: str) -> tuple[str, ...]:
    """The words of a shell's text, roughly: enough to find a server and its arguments in it."""
    joined = text.replace("\\\n", " ")
    try:
        return tuple(shlex.split(joined, comments=True))
    except ValueError:
        return tuple(joined.split())


def _plain(name: str) -> str:
    """An argument's name as both engines read it: underscores and dashes are the same."""
    return name.replace("_", "-")
