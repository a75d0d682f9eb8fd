"""Several processes of a pod on one page, by the files of prometheus-client's multiprocess mode.

A pod has one address that Prometheus scrapes, but a trainer has a process for each GPU, and its rollout may have more. With
``PROMETHEUS_MULTIPROC_DIR`` set, each process keeps its numbers in a file of that directory too, and the one that serves adds them up.
The files are those of the client, so an exporter that the job runs anyway for this directory shows them as well.

Two things that the client leaves to its caller are done here. A process that died takes its gauges with it: the sweep before
each scrape removes its files, or else the generation that a killed rank acknowledged last would be the minimum for ever. And a file
belongs to one process even where process ids come again: its name holds the process's start and pid namespace.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from rljob_runtime.ledger import Across, Definition, Labels

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The client's variable for the directory of the files."""

_FILE_BYTES = 1 << 16
# The numbers of a reporter take some 25 KB.

# The client splits names of files at underscores, so there is none in what tells processes apart.
_FILE = re.compile(r"gauge_live\w+_rljob-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<start>\d+)(?:-[a-z]+)?\.db")


class SharedFiles:
    """The files that this process writes; a process that is forked from it gets its own. Its caller holds a lock."""

    def __init__(self, directory: Path, part: str = "") -> None:
        """Write into ``directory``, made if it is not there; OSError if it can't be.

        ``part``, in small letters, names files apart from those that something else in this process writes under a lock of its own.
        """
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK):
            raise PermissionError(f"{directory}, named by {VARIABLE}, is not writable for user {os.getuid()}")
        self.directory = directory
        """Where the files are."""
        self._part = f"-{part}" if part else ""
        self._open(os.getpid())

    def _open(self, pid: int) -> None:
        self._pid = pid
        self._name = f"rljob-{_pid_namespace()}-{pid}-{_started(pid)}{self._part}"
        self._files: dict[str, MmapedDict] = {}
        self._keys: dict[tuple[str, str, str | None, Labels], str] = {}

    def write(
        self, kind: str, family: Definition, sample: str, value: float, edge: str | None = None, labels: Labels = ()
    ) -> None:
        """Write one number; ``labels`` are pairs of name and value. OSError if the disk is full."""
        if os.getpid() != self._pid:
            # Forked: the files that are open here are the parent's.
            self._open(os.getpid())
        prefix, timestamp = kind, 0.0
        if isinstance(family, Across):
            prefix, timestamp = f"gauge_{family.across}", time.time()
        file = self._files.get(prefix)
        if file is None:
            file = self._files[prefix] = self._made(f"{prefix}_{self._name}.db")
        where = (prefix, sample, edge, labels)
        key = self._keys.get(where)
        if key is None:
            # The client names a counter's family without its suffix.
            name = family.name.removesuffix("_total") if kind == "counter" else family.name
            named = labels if edge is None else (*labels, ("le", edge))
            names, values = [label for label, _ in named], [value for _, value in named]
            key = self._keys[where] = mmap_key(name, sample, names, values, family.help_text)
        file.write_value(key, value, timestamp)  # type: ignore[no-untyped-call]

    def _made(self, name: str) -> MmapedDict:
        path = self.directory / name
        if not path.exists():
            # Under a name that no scrape reads until it is whole, and with its room taken: a write to a mapped file without room
            # on the disk kills the process (SIGBUS), where this raises an error.
            whole = path.with_suffix(".new")
            with whole.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, _FILE_BYTES)
            whole.rename(path)
        return MmapedDict(str(path))  # type: ignore[no-untyped-call]


class SharedPage(Collector):
    """What the processes of a directory report, added up at each scrape."""

    def __init__(self, directory: Path) -> None:
        """Read the files of ``directory``."""
        self._directory = directory
        self._files = MultiProcessCollector(None, str(directory))  # type: ignore[no-untyped-call]
        self._lock = Lock()

    def collect(self) -> Iterable[Metric]:
        """All metrics, after the files of gauges whose processes died are gone."""
        with self._lock:
            sweep(self._directory)
            return list(self._files.collect())  # type: ignore[no-untyped-call]


def shared_registry(directory: Path) -> CollectorRegistry:
    """A registry to serve that holds what all processes of ``directory`` report."""
    registry = CollectorRegistry()
    registry.register(SharedPage(directory))
    return registry


def sweep(directory: Path) -> list[Path]:
    """Remove the gauges of processes that died, and return their files.

    Only those of this pid namespace: another container of the pod counts its processes on its own.
    """
    here, removed = _pid_namespace(), []
    for path in directory.glob("gauge_live*_rljob-*.db"):
        found = _FILE.fullmatch(path.name)
        if found is None or int(found["namespace"]) != here:
            continue
        if _started(int(found["pid"])) != int(found["start"]):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _pid_namespace() -> int:
    try:
        return int(os.readlink("/proc/self/ns/pid").partition("[")[2].rstrip("]"))
    except (OSError, ValueError):
        return 0


def _started(pid: int) -> int | None:
    """When a process started, in the kernel's ticks after boot; 0 where only its being there can be told; None if it is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        return _is_there(pid)
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses; after it come state (3rd field) and 18 more before the start (22nd).
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _is_there(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0
