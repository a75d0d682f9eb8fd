"""The whole job on one machine, without Kubernetes: local vLLM servers, a layout file, one trainer.

    python -m tiny_grpo.run --samplers 2 --staleness 1 --steps 100 --seed 0

The trainer is the same as in a cluster, and it is told its samplers the same way. Options that this command doesn't know are the trainer's
(``python -m tiny_grpo.train --help``).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tiny_grpo import train
from tiny_grpo.model import CONTEXT_TOKENS, write_model
from tiny_grpo.task import Kind

START_TIMEOUT_S = 300
"""A cold start of vLLM takes about a minute."""

SERVER_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /pause, /resume, /collective_rpc: never on an address that others reach
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
"""What vLLM needs to serve a tiny model on a CPU."""


def serve_command(model: Path, host: str, port: int, max_running: int) -> list[str]:
    """The command of one sampler."""
    return [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model),
        "--served-model-name=tiny", f"--host={host}", f"--port={port}",
        f"--max-model-len={CONTEXT_TOKENS}", f"--max-num-seqs={max_running}",
        "--dtype=float32",  # as the trainer computes, so that the importance ratio is 1 on policy
        "--enforce-eager", "--kv-cache-memory-bytes=67108864", "--shutdown-timeout=30",
        "--no-enable-prefix-caching",  # what is cached would be the work of older weights
        "--generation-config=vllm",
        "--enable-scale-out",  # /inference/v1/generate: tokens in, tokens out, with the version of each
        "--disable-uvicorn-access-log",
    ]  # fmt: skip


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


class Servers:
    """Local vLLM servers, started together and stopped together: a context manager that waits until they are ready."""

    def __init__(self, model: Path, count: int, max_running: int, logs: Path) -> None:
        """Start ``count`` of them."""
        # Or else a command that is told to end would leave them running.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.urls, self._processes = [], []
        for i in range(count):
            port = free_port()
            log = (logs / f"sampler-{i}.log").open("w")
            self._processes.append(
                subprocess.Popen(
                    serve_command(model, "127.0.0.1", port, max_running),
                    env={**os.environ, **SERVER_ENVIRONMENT},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
            self.urls.append(f"http://127.0.0.1:{port}")

    def __enter__(self) -> Servers:
        """RuntimeError if one ends or does not come."""
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        for url, process in zip(self.urls, self._processes, strict=True):
            while not answers(url + "/health"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the sampler at {url} did not start; its log is in the run's directory")
                time.sleep(0.5)

    def _stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def answers(url: str) -> bool:
    """Whether ``url`` answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def write_layout(directory: Path, urls: list[str], *, in_flight: int, staleness: int, max_running: int) -> None:
    """What the operator would write: all samplers, one trainer."""
    one = {"gpusPerReplica": 1, "replicas": 1}
    layout = {
        "generation": 1,
        "phase": "steady",
        "samplers": {
            **one, "replicas": len(urls), "tensorParallel": 1, "maxRunning": max_running,
            "endpoints": [{"pod": f"sampler-{i}", "url": url} for i, url in enumerate(urls)],
        },
        "trainers": {**one, "dp": 1, "tp": 1, "pp": 1, "ep": 1, "rendezvous": ""},
        "inFlightCap": in_flight,
        "maxStaleness": staleness,
        "draining": [],
        "checkpoint": False,
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "layout.json").write_text(json.dumps(layout, indent=2))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run the tiny GRPO job on this machine.", add_help=True)
    parser.add_argument("--samplers", type=int, default=2)
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=128, help="most samples in flight")
    parser.add_argument("--max-running", type=int, default=64, help="most running samples of one sampler")
    parser.add_argument("--directory", type=Path, default=Path("tiny-grpo-run"), help="everything of the run is in it")
    parser.add_argument("--task", type=Kind, choices=list(Kind), default=Kind.SORT)
    options, rest = parser.parse_known_args()
    directory: Path = options.directory.absolute()
    model = directory.parent / f"tiny-grpo-model-{options.task.value}"
    write_model(model, options.task)
    directory.mkdir(parents=True, exist_ok=True)
    with Servers(model, options.samplers, options.max_running, directory) as servers:
        write_layout(
            directory / "layout", servers.urls,
            in_flight=options.in_flight, staleness=options.staleness, max_running=options.max_running,
        )  # fmt: skip
        train.main(
            [f"--layout={directory / 'layout'}", f"--shared={directory}", f"--model={model}",
             f"--task={options.task.value}", "--port=0", *rest]
        )  # fmt: skip


if __name__ == "__main__":
    main()
