"""The parent of one container: what it starts ends with it, whatever happens to either.

A container's first process may start others, in sessions of their own, and die without them; with a process namespace the kernel would
end them. Here this small program, which uses nothing but the standard library, adopts every orphan (``PR_SET_CHILD_SUBREAPER``), and
kills all that is left when the first process ends, or when its own standard input ends: whoever holds the other end of that pipe is
gone then.

    python -I -S shim.py LOGFILE COMMAND [ARGUMENT ...]

It reports on standard output, a JSON object a line: ``{"pid": 1}`` once the command runs, ``{"error": "..."}`` if it can't be started,
and ``{"code": 0}`` at the end (128 + the signal's number for one that was killed). SIGTERM is passed on to the first process alone, as a
container engine does it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(log: str, command: list[str]) -> int:
    """Run the command to its end; returns the exit code to leave with."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wakeup, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _nothing)
    try:
        with Path(log).open("ab") as output:
            first = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Only safe because this process has a single thread. Should somebody kill this program, its orders go unheard.
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
    except OSError as error:
        _report({"error": f"{command[0]}: {error.strerror or error}"})
        return 127
    signal.signal(signal.SIGTERM, lambda *_: _signal(first.pid, signal.SIGTERM))
    _report({"pid": first.pid})
    code = _wait(first.pid, wakeup)
    _kill_all()
    _report({"code": code})
    return code


def _nothing(*_: object) -> None:
    pass


def _report(message: dict[str, object]) -> None:
    # Nobody may listen any more.
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def _wait(first: int, wakeup: int) -> int:
    """Reap until the first process has ended; kill it once standard input has."""
    inputs = [0, wakeup]
    while True:
        while (found := _reap()) is not None:
            if found[0] == first:
                return found[1]
        ready, _, _ = select.select(inputs, [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
        if 0 in ready and not os.read(0, 4096):
            inputs.remove(0)
            _signal(first, signal.SIGKILL)


def _reap() -> tuple[int, int] | None:
    """A child that has ended, and its exit code; None if none has."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return pid, code if code >= 0 else 128 - code


def _kill_all() -> None:
    """Kill every descendant, those included that are born meanwhile."""
    while True:
        for pid in _descendants(os.getpid()):
            _signal(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, pending = [], [root]
    while pending:
        for child in children.get(pending.pop(), ()):
            found.append(child)
            pending.append(child)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
