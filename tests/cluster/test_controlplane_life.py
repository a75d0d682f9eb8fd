"""Planes that start and end, one at a time: whatever ends them, nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dev.controlplane import ComponentError, ControlPlane, NodeSpec, paths
from dev.controlplane.ports import free_ports

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]

STARTER = """
import signal, time
from dev.controlplane import ControlPlane
# A shell starts what it runs in the background with SIGINT ignored, and so everything below it.
signal.signal(signal.SIGINT, signal.default_int_handler)
plane = ControlPlane.start()
print(plane.data_dir, flush=True)
time.sleep(3600)
"""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, f"waited 60 s for {what}"
        time.sleep(0.05)


def processes_of(data_dir: Path) -> list[str]:
    """Command lines of all processes that name the data directory (zombies have none)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(data_dir) in line:
                found.append(line[:200])
    return found


def test_a_stopped_plane_leaves_nothing(plane: ControlPlane) -> None:
    # Beside the session's plane: two can run at once.
    with ControlPlane.start(nodes=NodeSpec(count=2, name_prefix="own")) as other:
        data_dir = other.data_dir
        assert len(processes_of(data_dir)) == 6  # five components and their keeper
        names = other.kubectl("get", "nodes", "-o", "name").stdout.split()
        assert names == ["node/own-0", "node/own-1"]
    assert processes_of(data_dir) == []
    assert not data_dir.exists()
    assert plane.kubectl("get", "nodes", "own-0", check=False).returncode != 0
    other.stop()  # harmless a second time


def test_a_named_data_directory_stays(tmp_path: Path) -> None:
    directory = tmp_path / "plane"
    with ControlPlane.start(data_dir=directory):
        pass
    assert processes_of(directory) == []
    assert (directory / "logs" / "kube-apiserver.log").is_file()
    with pytest.raises(FileExistsError, match="not empty"):
        ControlPlane.start(data_dir=directory)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_starter(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as starter:  # fmt: skip
        assert starter.stdout is not None
        data_dir = Path(starter.stdout.readline().strip())
        assert data_dir.is_absolute()
        assert processes_of(data_dir)
        starter.send_signal(number)
        starter.wait(timeout=60)
    wait_until(lambda: not processes_of(data_dir), "the processes to end")
    wait_until(lambda: not data_dir.exists(), "the data directory to go")


def test_a_component_that_dies_is_named_with_its_log() -> None:
    with ControlPlane.start() as plane:
        (line,) = [p for p in Path("/proc").iterdir() if _runs(p, "/etcd", plane.data_dir)]
        os.kill(int(line.name), signal.SIGKILL)
        with pytest.raises(ComponentError, match=r"etcd ended with signal SIGKILL(.|\n)*Last lines of .*etcd\.log"):
            plane.wait_until("something that never comes", lambda: False)
        data_dir = plane.data_dir
    assert not data_dir.exists()


def _runs(process: Path, program: str, data_dir: Path) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return arguments[0].endswith(program) and any(str(data_dir) in argument for argument in arguments)


def test_the_api_server_comes_back(plane: ControlPlane, namespace: str) -> None:
    plane.kill("kube-apiserver")
    assert plane.kubectl("get", "namespaces", check=False).returncode != 0
    plane.restart("kube-apiserver")
    assert plane.kubectl("get", "namespace", namespace, "-o", "name").stdout.strip() == f"namespace/{namespace}"


def test_up_env_and_down() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dev.controlplane", *arguments, "--name", name]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    name = f"test-{os.getpid()}"
    data_dir = paths.run_dir() / name
    refused = run("env")
    assert refused.returncode == 1
    assert "no plane" in refused.stderr
    try:
        up = run("up", "--nodes", "2x4", "--product", "NVIDIA-B200", "--zones", "a,b")
        assert up.returncode == 0, up.stderr
        assert f'eval "$(python -m dev.controlplane env --name {name})"' in up.stdout
        assert run("up").returncode == 1, "twice the same name"

        shell = f"{run('env').stdout}\nkubectl get nodes -L nvidia.com/gpu.product -o name && promtool --version"
        done = subprocess.run(["sh", "-ec", shell], capture_output=True, text=True, check=True)
        assert "node/gpu-1" in done.stdout
    finally:
        down = run("down")
    assert down.returncode == 0, down.stderr
    assert processes_of(data_dir) == []
    assert not data_dir.exists()
    assert run("down").returncode == 0, "nothing to do is fine"


def test_a_port_that_was_taken_meanwhile_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        chosen = [[other.getsockname()[1], *free_ports(2)], free_ports(3)]
        monkeypatch.setattr("dev.controlplane.plane.free_ports", lambda _count: chosen.pop(0))
        with ControlPlane.start() as plane:
            assert plane.kubectl("get", "namespace", "default", "-o", "name").stdout == "namespace/default\n"
    assert chosen == []
