"""The trainer's processes, one a pod, that share a step's work: data parallel over gloo, in a number that may change at a step boundary.

Process 0 leads: it runs the rollout, decides who takes part and hands each step's batch to the others. A group of processes has a fixed size, so a
change means a new group: the leader opens one, tells who is in it by a small file in the shared directory, and gives its own state
(weights, optimizer) to everybody in it. A process that dies breaks the group, and the step is done again by those who are left.

The group is made of gloo's own class and not by ``init_process_group``, which keeps one group for the whole process, with names that differ
between a process that has had groups before and one that is new.

The processes find each other over the shared directory that the weights need anyway, so no cluster DNS is needed. Where there is one,
``trainers.rendezvous`` of the layout serves torchrun the same way.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

GROUP_TIMEOUT = timedelta(seconds=60)
"""How long a process waits for another one in a step."""

MEETING_TIMEOUT = timedelta(seconds=20)
"""How long it waits for the others to come to a new group."""

SILENT_S = 10.0
"""A process that has not been heard of for so long is left out of the next group."""


class GroupBrokenError(Exception):
    """A process of the group is gone: the step that was under way has to be done again."""


class Ranks:
    """One process's part in the group."""

    def __init__(self, shared: Path, ordinal: int, address: str) -> None:
        """Meet in ``shared``; ``address`` is where others reach this process."""
        self.ordinal, self.world, self.epoch = ordinal, 1, 0
        self._directory = shared / "ranks"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._heard: dict[int, tuple[str, float]] = {}
        self._address = address
        self._store: dist.TCPStore | None = None
        self._group: dist.ProcessGroupGloo | None = None
        if address.startswith("127."):
            # gloo would take the interface of the machine's name.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if ordinal == 0:
            self._listener = socket.create_server((address, 0))
            self.epoch = int(self._read("group.json").get("epoch", 0))
        threading.Thread(target=self._say_alive, name="alive", daemon=True).start()

    # The leader.

    def present(self, wanted: int) -> int:
        """How many processes, counted from 0 without a gap, are alive; at most ``wanted``."""
        now = time.monotonic()
        silent = wanted
        for ordinal in range(1, wanted):
            said = self._read(f"alive-{ordinal}.json").get("said", "")
            before, heard = self._heard.get(ordinal, ("", now - SILENT_S))
            if before and said != before:
                heard = now
            # The first sight of a file proves nothing, since it may be an old one: it counts once it changes.
            self._heard[ordinal] = (said, heard)
            if now - heard >= SILENT_S:
                silent = min(silent, ordinal)
        return silent

    def regroup(self, world: int, generation: int, state: Callable[[], Any]) -> None:
        """Form a new group of ``world`` processes, and give them ``state()``; raises GroupBrokenError if not all come."""
        self._leave()
        self.epoch += 1
        if self._store is None:
            port = self._listener.getsockname()[1]
            self._store = dist.TCPStore(
                self._address, port, is_master=True, wait_for_workers=False, timeout=MEETING_TIMEOUT,
                master_listen_fd=self._listener.detach(), use_libuv=True,
            )  # fmt: skip
        place = {"host": self._address, "port": self._store.port}
        self._write("group.json", {"epoch": self.epoch, "world": world, "generation": generation, **place})
        self._enter(world, self._store)
        self.tell(("state", state()))

    def tell(self, message: Any) -> None:
        """Give ``message`` to all other processes of the group; raises GroupBrokenError."""
        if self.world > 1:
            content = torch.frombuffer(bytearray(pickle.dumps(message)), dtype=torch.uint8)
            self._broadcast(torch.tensor([len(content)]))
            self._broadcast(content)

    # The others.

    def announced(self) -> tuple[int, int, int]:
        """The newest group's epoch and size, and the layout generation that it follows."""
        group = self._read("group.json")
        return int(group.get("epoch", 0)), int(group.get("world", 1)), int(group.get("generation", 0))

    def join(self) -> None:
        """Enter the newest group; raises GroupBrokenError if it does not come about."""
        self._leave()
        group = self._read("group.json")
        self.epoch = group["epoch"]
        try:
            store = dist.TCPStore(group["host"], group["port"], is_master=False, timeout=MEETING_TIMEOUT)
        except (RuntimeError, dist.DistError) as error:
            raise GroupBrokenError(str(error)) from error
        self._enter(group["world"], store)

    def hear(self) -> Any:
        """What the leader says next; raises GroupBrokenError."""
        length = torch.zeros(1, dtype=torch.int64)
        # A leader that waits for samples says nothing, for as long as it takes.
        self._broadcast(length, timedelta(days=1))
        content = torch.empty(int(length), dtype=torch.uint8)
        self._broadcast(content)
        return pickle.loads(content.numpy().tobytes())

    # Both.

    def sum(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` by its sum over the group; raises GroupBrokenError."""
        if self._group is not None:
            self._done(self._group.allreduce, tensor)

    def _broadcast(self, tensor: torch.Tensor, timeout: timedelta = GROUP_TIMEOUT) -> None:
        if self._group is None:
            raise GroupBrokenError("there is no group")
        options = dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, timeout
        self._done(lambda tensors: self._group.broadcast(tensors, options), tensor)

    def _done(self, call: Callable[[list[torch.Tensor]], dist.Work], tensor: torch.Tensor) -> None:
        try:
            call([tensor]).wait()
        except (RuntimeError, dist.DistError) as error:
            self._leave()
            # Who was in a group that broke has to be heard of again before the next one.
            self._heard.clear()
            raise GroupBrokenError(str(error).splitlines()[0]) from error

    def _enter(self, world: int, store: dist.TCPStore) -> None:
        if world == 1:
            return
        here = dist.PrefixStore(f"group-{self.epoch}", store)
        try:
            self._group = dist.ProcessGroupGloo(here, self.ordinal, world, MEETING_TIMEOUT)
        except (RuntimeError, dist.DistError) as error:
            self._heard.clear()
            raise GroupBrokenError(str(error).splitlines()[0]) from error
        self.world = world

    def _leave(self) -> None:
        self.world, self._group = 1, None

    def _say_alive(self) -> None:
        count = 0
        while True:
            count += 1
            self._write(f"alive-{self.ordinal}.json", {"said": f"{os.getpid()}/{count}"})
            time.sleep(1)

    def _read(self, name: str) -> dict[str, Any]:
        try:
            read: dict[str, Any] = json.loads((self._directory / name).read_text())
        except (OSError, ValueError):
            return {}
        return read

    def _write(self, name: str, value: dict[str, Any]) -> None:
        partial = self._directory / f".{name}.{os.getpid()}"
        partial.write_text(json.dumps(value))
        partial.replace(self._directory / name)
