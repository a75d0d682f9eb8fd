"""Samplers that are taken away while they are busy, one after another, in the ways in which a cluster takes pods.

The next one goes while the replacement of the one before still starts, as long as enough of them serve: so the job is never without
samplers, and not for long with all of them.
"""

from __future__ import annotations

import contextlib
import re
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dev.controlplane import ApiError
from dev.e2e.world import World, is_ready

Json = dict[str, Any]

LOOK_EVERY_S = 0.25
SAMPLER = "vllm"
"""Name of a sampler's container."""

_RUNNING = re.compile(r"^vllm:num_requests_running\{[^}]*\} (\S+)", re.MULTILINE)


@dataclass
class Removal:
    """One sampler that went."""

    pod: Json
    how: str
    """``eviction``, ``deletion`` or ``move``."""
    running: int
    """Samples that it was busy with, by its own metrics, just before."""
    began_s: float
    """Monotonic seconds."""
    took_s: float | None = None
    """Seconds until the pod was gone; None while it is there."""

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])


class Removals:
    """Takes samplers away."""

    def __init__(self, world: World, check: Callable[[], None], say: Callable[[str], None]) -> None:
        """``check`` is called at each look, to raise if the world is no longer whole or time is over."""
        self._world, self._check, self._say = world, check, say
        self.done: list[Removal] = []

    def remove(self, ways: Sequence[str], *, serving: int) -> None:
        """Remove one busy sampler for each of ``ways``, so that at least ``serving`` others serve; returns when all are gone."""
        for i, how in enumerate(ways):
            pod, running = self._next(serving)
            removal = self._noted(pod, how, running)
            (self._world.evict if how == "eviction" else self._world.delete)(removal.name)
            self._say(f"{how} {i + 1} of {len(ways)}: {removal.name} with {running} samples running")
            self.done.append(removal)
        self._until(self._settled)

    def remove_by_move(self, move: Callable[[], None]) -> None:
        """Let ``move`` take one sampler or more away, by the operator's own transaction; returns when they are gone."""
        before = [(pod, running_of(pod)) for pod in self._world.pods("sampler") if is_ready(pod)]
        began = [self._noted(pod, "move", running) for pod, running in before]
        move()
        there = {pod["metadata"]["uid"] for pod in self._world.pods("sampler")}
        gone = [removal for removal in began if removal.pod["metadata"]["uid"] not in there]
        self.done += gone
        self._until(self._settled)
        names = ", ".join(f"{removal.name} with {removal.running} samples running" for removal in gone)
        self._say(f"the move took {names or 'no sampler'}")

    def _noted(self, pod: Json, how: str, running: int) -> Removal:
        self._world.node.keep_log(pod["metadata"]["namespace"], pod["metadata"]["name"], SAMPLER)
        return Removal(pod, how, running, time.monotonic())

    def _next(self, serving: int) -> tuple[Json, int]:
        """A ready sampler that is busy, once enough others are ready."""
        chosen: list[tuple[Json, int]] = []

        def found() -> bool:
            self._settled()
            ready = [pod for pod in self._world.pods("sampler") if is_ready(pod)]
            if len(ready) <= serving:
                return False
            busy = [(pod, running) for pod in ready if (running := running_of(pod))]
            # The oldest: a new one has hardly anything to lose.
            chosen[:] = sorted(busy, key=lambda one: str(one[0]["metadata"]["creationTimestamp"]))[:1]
            return bool(chosen)

        self._until(found)
        return chosen[0]

    def _settled(self) -> bool:
        """Note who is gone; whether all are."""
        for removal in self.done:
            if removal.took_s is None and self._world.is_gone(removal.pod):
                removal.took_s = time.monotonic() - removal.began_s
        return all(removal.took_s is not None for removal in self.done)

    def _until(self, condition: Callable[[], bool]) -> None:
        while True:
            with contextlib.suppress(ApiError, OSError):
                if condition():
                    return
            self._check()
            time.sleep(LOOK_EVERY_S)


def running_of(pod: Json) -> int:
    """Samples that a sampler runs by its own metrics; 0 if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8000/metrics", timeout=10) as answer:
            found = _RUNNING.search(answer.read().decode())
    except (OSError, KeyError):
        return 0
    return int(float(found[1])) if found else 0
