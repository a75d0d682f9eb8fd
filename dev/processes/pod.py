"""One pod on this node, from the moment at which it is bound to the one at which its object may go."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from dev.controlplane.rest import ApiError
from dev.processes.container import Container, Made, Surroundings
from dev.processes.environment import ConfigError, command_of, environment, moved
from dev.processes.status import ContainerState, now, pod_status
from dev.processes.volumes import Volumes

Json = Mapping[str, Any]

_log = logging.getLogger(__name__)

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a container finds programs unless it says otherwise, as images have it."""


class NodeServices(Protocol):
    """What a pod asks of its node."""

    async def values(self, namespace: str, kind: str, name: str, optional: bool) -> Mapping[str, str]:
        """What a ConfigMap or Secret holds; raises ConfigError if it is not there."""

    async def token(self, pod: Json, source: Json) -> str:
        """A token of the pod's service account."""

    async def report(self, pod: Json, status: Json) -> None:
        """Write the pod's status."""

    async def remove(self, pod: Json) -> None:
        """Let the pod's object go."""

    def event(self, pod: Json, kind: str, reason: str, message: str) -> None:
        """Tell of something that happened to the pod."""

    def environment(self) -> Mapping[str, str]:
        """What every container finds in its environment unless it sets it itself."""


class PodWorker:
    """Runs one pod; ``task`` ends when the pod's object may go, or is gone."""

    def __init__(
        self, pod: Json, address: str, folder: Path, logs: Path, node: NodeServices, *, volume_lag_s: float
    ) -> None:
        """Take on a pod; its files go to ``folder``, the output of its containers to ``logs``."""
        self.pod = pod
        self.address = address
        self._folder, self._logs, self._node = folder, logs, node
        self._volume_lag_s = volume_lag_s
        self._started_at = now()
        self._changed = asyncio.Event()
        self._deleted = asyncio.Event()
        self._deadline = float("inf")
        self._gone = False
        self._volumes = Volumes(pod, folder / "volumes", self._lookup, node.token)
        surroundings = Surroundings(
            address=lambda: self.address,
            make=self._make,
            moved=lambda word, made: moved(word, made.mounts),
            log=lambda name: self._logs / f"{name}.log",
            changed=self._changed.set,
            event=lambda kind, reason, message: self._node.event(self.pod, kind, reason, message),
            grace_s=float(pod["spec"].get("terminationGracePeriodSeconds") or 30),
        )
        policy = pod["spec"].get("restartPolicy") or "Always"
        before = _restarts(pod)

        def container(spec: Json, restart: str, sidecar: bool = False) -> Container:
            return Container(spec, surroundings, restart=restart, sidecar=sidecar, restarts=before.get(spec["name"], 0))

        self._init = [
            container(spec, "Always", True)
            if spec.get("restartPolicy") == "Always"
            else container(spec, _for_init(policy))
            for spec in pod["spec"].get("initContainers") or ()
        ]
        self._main = [container(spec, policy) for spec in pod["spec"]["containers"]]
        self._lives: dict[Container, asyncio.Task[None]] = {}
        self.task = asyncio.create_task(self._run(), name=f"pod {pod['metadata']['name']}")

    # What the API server says of the pod

    def update(self, pod: Json) -> None:
        """The pod's object has changed."""
        self.pod = pod
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            # Counted from now, as a kubelet does. A second deletion can shorten the time, and never lengthens it.
            grace_s = float(metadata.get("deletionGracePeriodSeconds") or 0)
            self._deadline = min(self._deadline, time.monotonic() + grace_s)
            self._deleted.set()

    def vanish(self) -> None:
        """The pod's object is gone: end what still runs at once."""
        self._gone = True
        self._deadline = time.monotonic()
        self._deleted.set()

    # Life

    async def _run(self) -> None:
        name = self.pod["metadata"]["name"]
        side = [
            asyncio.create_task(self._report_changes(), name=f"status of {name}"),
            asyncio.create_task(self._keep_volumes(), name=f"volumes of {name}"),
        ]
        try:
            if self.pod["metadata"].get("deletionTimestamp"):
                self.update(self.pod)
            living = asyncio.create_task(self._live())
            deleted = asyncio.create_task(self._deleted.wait())
            await asyncio.wait({living, deleted}, return_when=asyncio.FIRST_COMPLETED)
            if living.done() and living.exception() is not None:
                _log.error("pod %s", name, exc_info=living.exception())
            # All containers may have ended for good; the object stays until somebody deletes it.
            await deleted
            living.cancel()
            await self._end()
        finally:
            for task in side:
                task.cancel()
            await asyncio.gather(*side, return_exceptions=True)
        if not self._gone:
            try:
                await self._report()
            except (ApiError, OSError) as error:
                # Its end must not hang on the last words about it.
                _log.warning("status of %s: %s", name, error)
            await self._node.remove(self.pod)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _live(self) -> None:
        """Init containers one after another, then all others; returns when all have ended for good."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        self._changed.set()
        for container in self._init:
            life = self._start(container)
            if container.state.sidecar:
                await container.up.wait()
                continue
            await asyncio.shield(life)
            if container.state.exit_code != 0:
                return
        for container in self._main:
            self._start(container)
        await asyncio.gather(*(asyncio.shield(self._lives[c]) for c in self._main))

    def _start(self, container: Container) -> asyncio.Task[None]:
        life = self._lives[container] = asyncio.create_task(container.run(), name=f"container {container.state.name}")
        # Until the pod is deleted nobody may wait for it: what went wrong is to be seen all the same.
        life.add_done_callback(_log_failure)
        return life

    async def _end(self) -> None:
        """Hooks of all containers at once, then SIGTERM; to sidecars only when the others have ended, the last first."""
        if self._lives:
            self._node.event(self.pod, "Normal", "Killing", "Stopping the containers")
        at: Callable[[], float] = lambda: self._deadline  # noqa: E731
        main = [c for c in self._lives if not c.state.sidecar]
        ending = [asyncio.create_task(c.stop(at)) for c in main]
        after: asyncio.Future[Any] = asyncio.gather(*(self._lives[c] for c in main))
        for sidecar in [c for c in reversed(self._init) if c.state.sidecar and c in self._lives]:
            turn = after
            ending.append(asyncio.create_task(sidecar.stop(at, turn)))
            after = asyncio.gather(self._lives[sidecar])
        await asyncio.gather(*ending)
        await asyncio.gather(*self._lives.values(), return_exceptions=True)
        for container in (*self._init, *self._main):
            if container.state.waiting is not None:
                _never_ran(container.state)

    async def _make(self, container: Json) -> Made:
        """What a container comes to; raises ConfigError, also for what the API server does not give now."""
        try:
            return await self._resolved(container)
        except (ApiError, OSError) as error:
            raise ConfigError(str(error)) from error

    async def _resolved(self, container: Json) -> Made:
        await self._volumes.refresh(self.pod)
        mounts = self._volumes.mounts(container)
        # The status with the address may not have come back yet.
        seen = {**self.pod, "status": {**(self.pod.get("status") or {}), "podIP": self.address, "hostIP": "127.0.0.1"}}
        declared = await environment(seen, container, self._lookup)
        given = dict(self._node.environment())
        env = {"PATH": PATH, "HOME": str(self._folder), "HOSTNAME": self.pod["metadata"]["name"], **given}
        env |= {name: moved(value, mounts) for name, value in declared.items()}
        if added := given.get("PYTHONPATH"):
            env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([added, *env["PYTHONPATH"].split(os.pathsep)]))
        command = [moved(word, mounts) for word in command_of(container, declared)]
        folder = Path(moved(container["workingDir"], mounts)) if container.get("workingDir") else self._folder
        return Made(tuple(command), env, folder, tuple(mounts))

    async def _lookup(self, kind: str, name: str, optional: bool) -> Mapping[str, str]:
        return await self._node.values(self.pod["metadata"]["namespace"], kind, name, optional)

    async def _keep_volumes(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(self._volume_lag_s)
            if self._deleted.is_set():
                # A kubelet no longer refreshes the volumes of a pod that ends: what runs there sees the last it knew.
                return
            try:
                await self._volumes.refresh(self.pod)
                told = ""
            except (ConfigError, ApiError, OSError) as error:
                # What was mounted stays, as it does in a cluster.
                if str(error) != told:
                    told = str(error)
                    self._node.event(self.pod, "Warning", "FailedMount", told)

    # Reports

    async def _report_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._report()
            except (ApiError, OSError) as error:
                _log.warning("status of %s: %s", self.pod["metadata"]["name"], error)
                await asyncio.sleep(0.5)
                self._changed.set()

    async def _report(self) -> None:
        init, main = ([c.state for c in group] for group in (self._init, self._main))
        await self._node.report(self.pod, pod_status(self.pod, init, main, self.address, self._started_at))


def _for_init(policy: str) -> str:
    return "Never" if policy == "Never" else "OnFailure"


def _restarts(pod: Json) -> dict[str, int]:
    """How often each container has been started again: what an earlier life of the node counted, and once more since it ended."""
    status = pod.get("status") or {}
    found = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return {c["name"]: int(c["restartCount"]) + 1 for c in found if c.get("containerID")}


def _never_ran(state: ContainerState) -> None:
    """Such a container has ended all the same, or the pod would count as running for ever."""
    state.waiting, state.exit_code, state.reason = None, 137, "ContainerStatusUnknown"
    state.started_at = state.finished_at = now()


def _log_failure(life: asyncio.Task[None]) -> None:
    if not life.cancelled() and life.exception() is not None:
        _log.error("%s failed", life.get_name(), exc_info=life.exception())
