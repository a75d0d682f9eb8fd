"""Settings of a job's pods that lose work: samples cut by an eviction, a busy engine that is killed, a layout that never changes. Pure.

None of them keeps a job from running, and some people choose them knowingly, so nothing is refused. But whoever did not choose them finds out
when hours of samples are gone; so each is said while nothing has happened yet, with what to write instead. What is looked at is the
template that runs, and not the one in the spec: what the operator has added is in it, or, from an older version, is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_operator.engines import ENGINES, Engine
from rljob_operator.server_command import (
    Form,
    Server,
    declared,
    known_port,
    listening,
    reached,
    server_of,
    version_of,
)
from rljob_operator.serving import EXIT_S, SETTLE_S, drains, grace_s, hook_s, knows_shutdown_timeout
from rljob_planner.api.spec import RLJob

KUBERNETES_GRACE_S = 30
"""Grace period of a pod that says nothing."""

LIVE_TIMEOUT_S = 5
"""Shortest timeout of a liveness probe that a busy engine passes: answers have been seen to take more than a second."""

LIVE_PATIENCE_S = 60
"""Shortest time of failing probes after which an engine may be taken for dead: streams have been seen to stall for several seconds."""

_LAYOUT_SUFFIX = "-layout"


def sampler_hazards(job: RLJob, template: Mapping[str, Any]) -> tuple[str, ...]:
    """What loses work in the samplers' pod template, a sentence each with what to write instead; empty if nothing does, or it can't be read."""
    try:
        return tuple(_sampler_hazards(job, template))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return ()


def layout_hazards(job: RLJob, role: str, template: Mapping[str, Any]) -> tuple[str, ...]:
    """Mounts of the layout that never follow it, a sentence each; empty if there are none, or the template can't be read."""
    try:
        return tuple(_layout_hazards(job, f"spec.{role}.template", template))
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


def _sampler_hazards(job: RLJob, template: Mapping[str, Any]) -> Iterator[str]:
    spec, engine = template["spec"], ENGINES[job.spec.sampler.engine]
    container = spec["containers"][0]
    where = f"spec.sampler.template, container {container.get('name')}"
    server = server_of(container, engine)
    yield from _another_engine(where, container, engine, server)
    if not server.visible and not declared(container):
        # A worker of Ray, say: whatever serves there, nobody reaches it by the layout.
        return
    stated = spec.get("terminationGracePeriodSeconds")
    grace = float(KUBERNETES_GRACE_S if stated is None else stated)
    yield from _ending(job, where, container, engine, server, grace)
    yield from _probes(where, container, engine, server)
    if server.form is Form.SHELL:
        yield from _shell(where, server, engine)


def _another_engine(where: str, container: Mapping[str, Any], engine: Engine, server: Server) -> Iterator[str]:
    if server.visible:
        return
    for name, other in ENGINES.items():
        if other is not engine and server_of(container, other).visible:
            yield (
                f"{where} starts {other.title}, and spec.sampler.engine says {engine.title}, whose metrics it does not have: "
                f"write sampler.engine: {name.value}"
            )


def _ending(
    job: RLJob, where: str, container: Mapping[str, Any], engine: Engine, server: Server, grace: float
) -> Iterator[str]:
    """What happens to running samples when an eviction, somebody's hand or a lost gate ends the pod."""
    hook, waits, drain = hook_s(container), drains(container), job.spec.sampler.drain_timeout_s
    before = 0.0 if hook is None else hook
    timeout = _shutdown_timeout(engine, server)
    if before >= grace:
        yield (
            f"{where}: the preStop hook takes {before:g} s of a grace period of {grace:g} s, so that the server is killed instead of being told "
            f"to end: write terminationGracePeriodSeconds: {grace_s(container, engine, drain)} or leave it out"
        )
        return
    if timeout == 0 and not waits and hook is not None:
        yield _aborts(where, container, engine, server, drain)
        return
    if timeout is not None and before + timeout + EXIT_S > grace:
        yield (
            f"{where}: preStop hook ({before:g} s) and --shutdown-timeout ({timeout:g} s) take longer than terminationGracePeriodSeconds "
            f"({grace:g}), after which running samples are killed: write {math.ceil(before + timeout) + EXIT_S} or more, or leave it out"
        )
        return
    if hook is None:
        return
    left = grace - EXIT_S - (0.0 if waits else before)
    has = min(left, (timeout + (before if waits else 0.0)) if timeout is not None else left)
    if has + EXIT_S + SETTLE_S < drain:
        filled = engine.shutdown_timeout is None or (
            server.form is Form.ARGUMENTS and knows_shutdown_timeout(str(container.get("image") or ""), engine)
        )
        instead = (
            "leave out terminationGracePeriodSeconds and --shutdown-timeout where they are set (the operator fills them in)"
            if filled
            else f"leave out terminationGracePeriodSeconds, write --shutdown-timeout={math.ceil(drain)}"
        )
        yield (
            f"{where}: an eviction leaves running samples {has:g} s, and spec.sampler.drainTimeout {drain:g} s for what a move takes: "
            f"{instead}, or write drainTimeout: {max(1, math.floor(has))}s"
        )


def _shutdown_timeout(engine: Engine, server: Server) -> float | None:
    """Seconds that the server gives to what runs: 0 if it aborts, None if that is not known, or without a limit."""
    if engine.shutdown_timeout is None or not server.visible:
        return None
    said = server.flag(*engine.shutdown_timeout.names)
    if said is None:
        return None if server.configured else 0.0
    try:
        return float(said)
    except ValueError:
        return None


def _aborts(where: str, container: Mapping[str, Any], engine: Engine, server: Server, drain: float) -> str:
    image = str(container.get("image") or "")
    so = f"so that {engine.title} aborts running samples at once when an eviction or a deletion ends its pod"
    knows, stated = knows_shutdown_timeout(image, engine), server.flag("--shutdown-timeout") is not None
    since = ".".join(str(part) for part in engine.shutdown_since)
    if knows is None and not stated:
        return (
            f"{where}: --shutdown-timeout is missing, {so}: write --shutdown-timeout={math.ceil(drain)} if its {engine.title} is {since} or later, "
            "which the image does not say, else a preStop hook that waits (rljob_runtime drain)"
        )
    if knows is False:
        version = ".".join(str(part) for part in version_of(image, engine) or ())
        return (
            f"{where}: {engine.title} {version} has no --shutdown-timeout, {so}: take an image of {since} or later, or a preStop hook "
            "that waits (rljob_runtime drain)"
        )
    said = "is 0" if stated else "is missing"
    return f"{where}: --shutdown-timeout {said}, {so}: write --shutdown-timeout={math.ceil(drain)}"


def _probes(where: str, container: Mapping[str, Any], engine: Engine, server: Server) -> Iterator[str]:
    live = container.get("livenessProbe") or {}
    if live.get("httpGet") or live.get("exec"):
        timeout = float(live.get("timeoutSeconds") or 1)
        patience = float(live.get("periodSeconds") or 10) * float(live.get("failureThreshold") or 3)
        if timeout < LIVE_TIMEOUT_S or patience < LIVE_PATIENCE_S:
            yield (
                f"{where}: the livenessProbe (timeoutSeconds {timeout:g}, {patience:g} s of failures) may kill an engine that is only busy, with all "
                f"that it runs: leave it out, since the server exits by itself when its engine dies, or write timeoutSeconds: 10, "
                "periodSeconds: 10, failureThreshold: 12"
            )
    if not container.get("readinessProbe"):
        so = "has no readinessProbe, so that its endpoint is in the layout before the model is loaded, and while the engine is dead"
        yield (
            f"{where} {so}: {_port(container, engine, server)}"
            f"write readinessProbe: {{httpGet: {{path: {engine.health}, port: …}}, timeoutSeconds: 10}}"
        )


def _port(container: Mapping[str, Any], engine: Engine, server: Server) -> str:
    """Where a probe was not added for want of a port: which one to declare, as the beginning of a remedy; empty where something else is in the way."""
    if not server.visible or not reached(server, engine) or known_port(container, engine) is not None:
        return ""
    said, ports = listening(server, engine), declared(container)
    if said is None:
        hidden = "in the file of --config" if server.flag("--port") is None else f"{server.flag('--port')!r}"
        return f"its port ({hidden}) can't be read from the template: declare it under ports, or "
    return f"its arguments say port {said}, and its ports {', '.join(map(str, ports))}: declare {said} under ports, or "


def _shell(where: str, server: Server, engine: Engine) -> Iterator[str]:
    several = re.search(r"[;|\n]|&&", server.text.strip().replace("\\\n", " ")) is not None
    if several and not re.search(r"\b(exec|trap)\b", server.text):
        yield (
            f"{where}: the shell that starts {engine.title} is told to end in its place and does not hand that on, so that running samples are "
            "killed when the grace period is over: write exec before the server's command"
        )
    for flag in engine.needed:
        if server.flag(*flag.names) is None and not server.configured:
            yield f"{where}: {engine.title} lacks {flag.word}, without which it can't be reached or measured: add it"


def _layout_hazards(job: RLJob, where: str, template: Mapping[str, Any]) -> Iterator[str]:
    spec, layout = template["spec"], f"{job.metadata['name']}{_LAYOUT_SUFFIX}"
    volumes = {
        volume["name"]
        for volume in spec.get("volumes") or ()
        if (volume.get("configMap") or {}).get("name") == layout
        or any(
            (s.get("configMap") or {}).get("name") == layout
            for s in (volume.get("projected") or {}).get("sources") or ()
        )
    }
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        for mount in container.get("volumeMounts") or ():
            if mount.get("name") in volumes and (mount.get("subPath") or mount.get("subPathExpr")):
                yield (
                    f"{where}, container {container.get('name')} mounts the layout by subPath at {mount.get('mountPath')}, where it never changes: "
                    "remove that mount and read /etc/rljob/layout.json"
                )
