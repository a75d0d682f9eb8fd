"""The keeper: a small process that owns a plane's components and outlives nobody.

Whatever becomes of the process that started a plane (an exception, Ctrl-C, SIGTERM, SIGKILL, a crashed test run), the
components and their data directory must go. The starter itself cannot promise that, so this program, which uses
nothing but the standard library, starts the components on its behalf:

- it reads requests, one JSON object a line, from standard input; the end of that stream means that the starter is gone;
- it leads a session of its own, so that a Ctrl-C in the starter's terminal reaches the starter alone;
- its children die with it (``PR_SET_PDEATHSIG`` on Linux), should the keeper itself be killed;
- it holds a lock on the data directory as long as it lives, so that what a power cut left behind can be told from what
  is in use.

Requests are ``start``, ``stop``, ``status``, ``detach`` and ``quit``; each gets one reply. After ``detach`` the end of
the stream means nothing, and SIGTERM ends the keeper instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LOCK_NAME = ".keeper.lock"
POLL_S = 1.0
YOUNG_S = 60.0
_PR_SET_PDEATHSIG = 1


class Keeper:
    """Owns child processes and one data directory."""

    def __init__(self, data_dir: Path, *, remove: bool) -> None:
        """Keep ``data_dir``, and delete it at the end if ``remove``."""
        self._data_dir = data_dir
        self._remove = remove
        self._starter = os.getppid()
        self._detached = False
        self._ending = False
        self._wakeup = -1
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def serve(self) -> None:
        """Answer requests until the starter is gone, asks to quit, or a signal arrives."""
        # A signal must end the wait for requests at once, not only be noticed after it.
        self._wakeup, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        with (self._data_dir / LOCK_NAME).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._loop()
            finally:
                self._stop_all()
                if self._remove:
                    shutil.rmtree(self._data_dir, ignore_errors=True)

    def _end(self, _number: int, _frame: object) -> None:
        self._ending = True

    def _loop(self) -> None:
        pending = b""
        stdin_open = True
        while not self._ending:
            if not self._detached and (not stdin_open or os.getppid() != self._starter):
                return
            ready, _, _ = select.select([self._wakeup, *([0] if stdin_open else [])], [], [], POLL_S)
            for child in self._children.values():
                child.poll()  # reaps the dead
            if 0 not in ready:
                continue
            chunk = os.read(0, 65536)
            stdin_open = bool(chunk)
            pending += chunk
            *lines, pending = pending.split(b"\n")
            for line in lines:
                self._reply(self._handle(json.loads(line)))

    def _reply(self, reply: dict[str, Any]) -> None:
        # Nobody listens any more: the next turn of the loop notices.
        with contextlib.suppress(OSError):
            os.write(1, json.dumps(reply).encode() + b"\n")

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            match request["op"]:
                case "start":
                    return {"pid": self._start(request["name"], request["argv"], request["log"], request["env"])}
                case "stop":
                    return {"returncode": self._stop(request["name"], request["signal"], request["timeout_s"])}
                case "status":
                    return {"exited": {n: c.poll() for n, c in self._children.items() if c.poll() is not None}}
                case "detach":
                    self._detached = True
                    return {"pid": os.getpid()}
                case "quit":
                    self._ending = True
                    self._stop_all()
                    if self._remove:
                        shutil.rmtree(self._data_dir, ignore_errors=True)
                    return {}
                case other:
                    return {"error": f"unknown request {other!r}"}
        except (OSError, KeyError, ValueError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _start(self, name: str, argv: list[str], log: str, env: dict[str, str]) -> int:
        old = self._children.get(name)
        if old is not None and old.poll() is None:
            raise ValueError(f"{name} is running already")
        with Path(log).open("ab") as handle:
            self._children[name] = child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                cwd=self._data_dir,
                env={**os.environ, **env},
                start_new_session=True,
                # Only safe because this process has a single thread.
                preexec_fn=self._die_with_keeper,
            )
        return child.pid

    def _die_with_keeper(self) -> None:
        if self._libc is not None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def _stop(self, name: str, number: int, timeout_s: float) -> int | None:
        child = self._children.pop(name, None)
        if child is None:
            return None
        if child.poll() is None:
            child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout_s)
        _kill_group(child)
        child.wait()
        return child.returncode

    def _stop_all(self) -> None:
        # SIGKILL to all at once: no state is worth an orderly shutdown, which takes an API server many seconds.
        children, self._children = list(self._children.values()), {}
        for child in children:
            _kill_group(child)
        for child in children:
            child.wait()


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kills a component and all that it started: each leads a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def is_in_use(data_dir: Path) -> bool:
    """Tell whether a living keeper holds this data directory, or may be about to."""
    try:
        return time.time() - data_dir.stat().st_mtime < YOUNG_S or is_locked(data_dir)
    except FileNotFoundError:
        return False


def is_locked(data_dir: Path) -> bool:
    """Tell whether a living keeper holds this data directory."""
    try:
        handle = (data_dir / LOCK_NAME).open("r+")
    except FileNotFoundError:
        return False
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


if __name__ == "__main__":
    Keeper(Path(sys.argv[1]), remove=sys.argv[2] == "remove").serve()
