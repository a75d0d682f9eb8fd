"""What the container of an engine's server gets where the template leaves it out. Pure.

A server in a pod that can come and go needs more than its command: probes that know when the model is loaded, a port that the
layout can name, time to end its samples, and arguments that follow the plan. Most templates lack some of it, and what is lacking is found out when
samples are lost. So it is added, and never in place of something that the template says.

It is added only where the template visibly starts the engine's server (``server_command``). Arguments are appended only to a command that is a list of words, since
text that a shell reads can't be extended without knowing what it means; probes, port and time are added to such a container all the same.
What starts something else, or hides what it starts in an image or a script, is left as it is (``hazards`` says what it lacks). So is whatever would
rest on a guess: a probe where the port is not known, an argument that the image's version may not have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from rljob_operator.engines import Engine, Flag
from rljob_operator.server_command import (
    Form,
    Server,
    expanded,
    known_port,
    server_of,
    shell_text,
    split,
    variables_of,
    version_of,
)
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


def hook_s(container: Mapping[str, Any]) -> float | None:
    """Seconds that the container's preStop hook takes at most: 0 without one, None if that can't be seen."""
    hook = (container.get("lifecycle") or {}).get("preStop") or {}
    if hook.get("sleep"):
        return float(hook["sleep"].get("seconds") or 0)
    if not hook.get("exec"):
        return None if hook else 0.0
    words = [str(word) for word in hook["exec"].get("command") or ()]
    text = shell_text(words)
    words = list(words if text is None else split(text))
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


def knows_shutdown_timeout(image: str, engine: Engine) -> bool | None:
    """Whether the server of this image takes the argument; None if the image does not say. One that does not know it refuses to start."""
    if engine.shutdown_timeout is None:
        return False
    version = version_of(image, engine)
    return None if version is None else version >= engine.shutdown_since


def running_over(container: Mapping[str, Any], engine: Engine) -> tuple[str, int] | None:
    """What the template says of the most tokens of an iteration, where that is less than the samples of the plan or no number, and the latter.

    The argument for running samples is then left out, since the engine would not start with both. None where nothing is in its way, and where
    it would not be added anyhow.
    """
    server, variables = server_of(container, engine), variables_of(container)
    if not _extensible(server) or server.flag(*engine.max_running.names) is not None:
        return None
    said = server.flag(*engine.batch_tokens)
    wished = expanded(engine.max_running.value or "", variables)
    if said is None or not wished.isdecimal() or (said.isdecimal() and int(said) >= int(wished)):
        return None
    return said, int(wished)


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
    port = known_port(container, engine)
    if port is not None:
        if not made.get("ports") and not host_network:
            made["ports"] = [{"name": "http", "containerPort": port, "protocol": "TCP"}]
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
    """The annotations by which a Prometheus without the operator's CRDs finds the server; empty where no port is known or the template has its own."""
    port = known_port(container, engine)
    if port is None or any(str(key).startswith("prometheus.io/") for key in annotations):
        return {}
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
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
    """The arguments to append."""
    if not _extensible(server):
        return []
    wished: list[Flag] = [*(() if running_over(container, engine) else (engine.max_running,)), *engine.needed]
    if engine.drainable is not None and drains(container):
        wished.append(engine.drainable)
    if tensor_parallel > 1 and server.flag(*engine.widths) is None:
        wished.append(engine.tensor_parallel)
    if shutdown and engine.shutdown_timeout and knows_shutdown_timeout(str(container.get("image") or ""), engine):
        wished.append(Flag(engine.shutdown_timeout.names, str(shutdown)))
    return [flag.word for flag in wished if server.flag(*flag.names) is None]


def _extensible(server: Server) -> bool:
    """Whether arguments may be appended: not to a shell's text, nor where a file may say them, which appended ones would override."""
    return server.form is Form.ARGUMENTS and not server.configured


def _probe(engine: Engine, port: int, *, encrypted: bool) -> dict[str, Any]:
    get = {"path": engine.health, "port": port, "scheme": "HTTPS" if encrypted else "HTTP"}
    return {"httpGet": get, "timeoutSeconds": _PROBE_TIMEOUT_S}
