"""Run a plane's components through a keeper and say what went wrong with one that died.

See ``keeper`` for why a second process owns them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dev.controlplane import keeper, paths

LOG_LINES = 25
"""Lines of a dead component's log that an error shows."""


class ComponentError(RuntimeError):
    """A component ended, or did not get ready in time; the message ends with the last lines of its log."""


class Supervisor:
    """The starter's side of one keeper: start, stop and watch components by name."""

    def __init__(self, data_dir: Path, *, remove: bool) -> None:
        """Start a keeper for ``data_dir``, which it deletes at the end if ``remove``."""
        self.data_dir = data_dir
        self._remove = remove
        data_dir.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._logs: dict[str, Path] = {}
        self._keeper: subprocess.Popen[bytes] | None = subprocess.Popen(
            # -I and -S: neither the user's site nor our own packages are needed, and starting takes 20 ms.
            [sys.executable, "-I", "-S", str(Path(keeper.__file__)), str(data_dir), "remove" if remove else "keep"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int | None:
        """Process id of the keeper, or None once it has been told to quit."""
        return self._keeper.pid if self._keeper is not None else None

    def log_file(self, name: str) -> Path:
        """Where a component writes its log."""
        return self._logs.get(name, self.data_dir / "logs" / f"{name}.log")

    def start(
        self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None, *, log: Path | None = None
    ) -> int:
        """Start a component and return its process id; ``log`` is added to in place of a file that goes with ``data_dir``."""
        if log is not None:
            self._logs[name] = log.absolute()
        self.log_file(name).parent.mkdir(parents=True, exist_ok=True)
        reply = self._ask(
            op="start", name=name, argv=[str(a) for a in argv], log=str(self.log_file(name)), env=dict(env or {})
        )
        return int(reply["pid"])

    def stop(self, name: str, *, timeout_s: float = 5.0, number: signal.Signals = signal.SIGTERM) -> None:
        """End a component by a signal, by SIGKILL if it has not ended after ``timeout_s`` seconds."""
        self._ask(op="stop", name=name, signal=int(number), timeout_s=timeout_s)

    def kill(self, name: str) -> None:
        """End a component by SIGKILL; harmless if it does not run."""
        self._ask(op="stop", name=name, signal=int(signal.SIGKILL), timeout_s=5.0)

    def exited(self) -> dict[str, int]:
        """Return the exit codes of components that have ended by themselves, −n for one that signal n ended."""
        codes: dict[str, int] = self._ask(op="status")["exited"]
        return codes

    def check(self) -> None:
        """Raise ComponentError if a component has ended by itself."""
        for name, code in self.exited().items():
            raise ComponentError(f"{name} ended with {_exit_words(code)}.\n{self.log_tail(name)}")

    def log_tail(self, name: str) -> str:
        """Return the last lines of a component's log, with a heading."""
        path = self.log_file(name)
        try:
            lines = path.read_text(errors="replace").splitlines()[-LOG_LINES:]
        except FileNotFoundError:
            return f"It has written no log ({path})."
        return f"Last lines of {path}:\n" + "\n".join(f"  {line[:400]}" for line in lines)

    def detach(self) -> int:
        """Let the components outlive this process; returns the keeper's process id, to be ended with SIGTERM."""
        pid = int(self._ask(op="detach")["pid"])
        process = self._release()
        if process is not None:
            process.returncode = 0  # meant to stay: not to be waited for, nor warned about
        return pid

    def close(self) -> None:
        """End all components, and the keeper; harmless if done before."""
        with self._lock:
            if self._keeper is None:
                return
        try:
            self._ask(op="quit")
        except ComponentError:
            pass  # somebody has killed the keeper, and with it the components
        finally:
            process = self._release()
            if process is not None:
                process.wait()
            if self._remove:
                shutil.rmtree(self.data_dir, ignore_errors=True)

    def _release(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            process, self._keeper = self._keeper, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            # A request that a dead keeper never read is still in the buffer.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()
        return process

    def _ask(self, **request: Any) -> dict[str, Any]:
        with self._lock:
            process = self._keeper
            if process is None:
                raise ComponentError(f"the components of {self.data_dir} have been stopped")
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except (BrokenPipeError, ValueError):
                line = b""
        if not line:
            raise ComponentError(f"the keeper of {self.data_dir} has died, and its components with it")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ComponentError(f"{request['op']} {request.get('name', '')}: {reply['error']}")
        return reply


def _exit_words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def remove_stale_runs() -> None:
    """Delete the data directories whose keeper no longer lives (it was killed, or the machine went down)."""
    if not paths.run_dir().is_dir():
        return
    for directory in paths.run_dir().iterdir():
        if directory.is_dir() and not keeper.is_in_use(directory):
            shutil.rmtree(directory, ignore_errors=True)
