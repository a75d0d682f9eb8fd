"""Run a vLLM server on this machine: start it, wait until it serves, signal it, end it.

The process belongs to a keeper (``dev.controlplane.keeper``): whatever becomes of the one that started it, no server stays behind. Requests are up
to the caller; what it says of itself is ``url``.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dev.controlplane import paths
from dev.controlplane.ports import free_ports
from dev.controlplane.processes import ComponentError, Supervisor

ENVIRONMENT: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
"""What a server is started with: nothing asks the network, the endpoints of training (pause, weights) are there, and one thread computes."""

READY_S = 600.0
"""How long a server may take until it serves, seconds: half a minute on two idle cores, several times that when they are busy."""

_NAME = "vllm"
_POLL_S = 0.25
_ANSWER_S = 10.0
_numbers = itertools.count()


def command(
    python: Path,
    model: Path | str,
    *,
    host: str,
    port: int,
    name: str = "tiny",
    max_model_len: int = 2048,
    max_running: int = 16,
    kv_bytes: int = 64 << 20,
    more: Sequence[str] = (),
) -> list[str]:
    """The command line of a server.

    ``name`` is what requests call the model, ``max_running`` the most samples of an iteration, ``kv_bytes`` the KV room in bytes; ``more`` are further options
    of ``vllm serve``, and win over these.
    """
    return [
        *(str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--served-model-name", name),
        *("--host", host, "--port", str(port), "--max-model-len", str(max_model_len), "--dtype", "bfloat16"),
        *("--enforce-eager", "--max-num-seqs", str(max_running), "--kv-cache-memory-bytes", str(kv_bytes)),
        *more,
    ]


@dataclass
class Server:
    """One server process with its engine; also a context manager, which waits until it serves and ends it at the end."""

    python: Path
    """The Python that has vLLM: ``install.ensure()``."""
    model: Path
    """The directory of a model, say of ``model.write_model``."""
    more: Sequence[str] = ()
    """Options of ``vllm serve`` beside those of ``command``."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables beside ``ENVIRONMENT``."""
    max_running: int = 16
    kv_bytes: int = 64 << 20
    max_model_len: int = 2048
    name: str = "tiny"
    host: str = "127.0.0.1"
    port: int = 0
    """Chosen at start when 0."""
    pid: int = 0
    """The process that answers HTTP, and gets SIGTERM; 0 before the start."""
    _supervisor: Supervisor | None = None

    @property
    def url(self) -> str:
        """The root of its addresses, without a slash at the end."""
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        """Start the process; ``wait_ready`` waits until it serves."""
        self.port = self.port or free_ports(1)[0]
        data = paths.run_dir() / f"vllm-{os.getpid()}-{next(_numbers)}"
        self._supervisor = Supervisor(data, remove=True)
        argv = command(
            self.python,
            self.model.resolve(),
            host=self.host,
            port=self.port,
            name=self.name,
            max_model_len=self.max_model_len,
            max_running=self.max_running,
            kv_bytes=self.kv_bytes,
            more=self.more,
        )
        self.pid = self._supervisor.start(_NAME, argv, {**ENVIRONMENT, **self.env})

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Wait until it serves the model.

        Raises ComponentError with the end of its log if it has ended, TimeoutError if it takes longer than ``timeout_s`` seconds.
        """
        until = time.monotonic() + timeout_s
        while not self.serves():
            self._running().check()
            if time.monotonic() > until:
                raise TimeoutError(f"{self.url} does not serve after {timeout_s:.0f} s. {self.log()}")
            time.sleep(_POLL_S)

    def serves(self) -> bool:
        """Whether it answers now, and says that its engine lives."""
        return self.health() == 200

    def health(self) -> int | None:
        """The status code of ``/health``; None if the port is closed or nothing answers within some seconds."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=_ANSWER_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, http.client.HTTPException):
            return None

    def listens(self) -> bool:
        """Whether something accepts connections at its port."""
        with socket.socket() as probe:
            probe.settimeout(_ANSWER_S)
            return probe.connect_ex((self.host, self.port)) == 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process that answers HTTP, as a kubelet does to a container's first process, and wait for nothing."""
        os.kill(self.pid, number)

    def engine_pids(self) -> list[int]:
        """The processes that the server has started, the engine and its worker among them."""
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    # The name of a process is in parentheses, and may hold anything.
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except (OSError, ValueError, IndexError):
                    continue
                parents.setdefault(parent, []).append(int(entry.name))
        found: list[int] = []
        todo = list(parents.get(self.pid, []))
        while todo:
            pid = todo.pop()
            found.append(pid)
            todo += parents.get(pid, [])
        return found

    def engine_pid(self) -> int:
        """The process of the engine, whose end the one that answers HTTP notices; raises LookupError if there is none."""
        for pid in self.engine_pids():
            with contextlib.suppress(OSError):
                # The kernel keeps fifteen characters of a name.
                if Path(f"/proc/{pid}/comm").read_text().startswith("VLLM::EngineCor"):
                    return pid
        raise LookupError(f"the server at {self.url} has no engine. {self.log()}")

    def exit_code(self) -> int | None:
        """The exit code of a server that has ended by itself or by a signal of ``signal`` (−n for signal n); None while it runs."""
        return self._running().exited().get(_NAME)

    def wait_exit(self, timeout_s: float) -> int:
        """Wait until it has ended by itself, and return its exit code; raises TimeoutError."""
        until = time.monotonic() + timeout_s
        while (code := self.exit_code()) is None:
            if time.monotonic() > until:
                raise TimeoutError(f"{self.url} still runs after {timeout_s:.0f} s. {self.log()}")
            time.sleep(_POLL_S)
        return code

    def log(self) -> str:
        """The last lines of its log, with a heading."""
        return self._running().log_tail(_NAME)

    def close(self) -> None:
        """End it with all its processes, at once; harmless if done before."""
        if self._supervisor is not None:
            self._supervisor.close()

    def __enter__(self) -> Server:
        """Start it, and wait until it serves."""
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()

    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise ComponentError("this server has not been started")
        return self._supervisor
