"""What runs under a shim on the node of processes ends with it, whatever happens to either."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from dev.processes.process import Process, StartError
from tests.unit.real_processes import alive, python, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted by a call of Linux alone")

ROOT = Path(__file__).resolve().parents[2]
ENV = {"PATH": os.environ["PATH"]}


ORPHANS = """
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(child.pid)
    if sys.argv[-1] != "ends":
        time.sleep(600)
"""


async def orphan(log: Path) -> int:
    return int(await until(lambda: log.exists() and log.read_text().strip()))


async def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    process = await Process.start([*python(ORPHANS), "ends"], ENV, tmp_path, tmp_path / "log")
    assert await process.wait() == 0
    assert not alive(int((tmp_path / "log").read_text()))


async def test_killing_ends_all_of_it(tmp_path: Path) -> None:
    process = await Process.start(python(ORPHANS), ENV, tmp_path, tmp_path / "log")
    child = await orphan(tmp_path / "log")
    await process.kill()
    assert await process.wait() == 137
    assert not alive(child)
    assert not alive(process.pid)


async def test_what_runs_ends_when_its_node_is_killed(tmp_path: Path) -> None:
    code = f"""
    import asyncio
    from pathlib import Path
    from dev.processes.process import Process
    async def main():
        process = await Process.start({python(ORPHANS)!r}, {ENV!r}, Path({str(tmp_path)!r}), Path({str(tmp_path / "log")!r}))
        print(process.pid)
        await process.wait()
    asyncio.run(main())
    """
    node = await asyncio.create_subprocess_exec(
        *python(code), stdout=asyncio.subprocess.PIPE, env={**ENV, "PYTHONPATH": str(ROOT)}
    )
    assert node.stdout is not None
    first = int(await node.stdout.readline())
    child = await orphan(tmp_path / "log")
    node.kill()
    await node.wait()
    await until(lambda: not alive(first) and not alive(child))


async def test_the_signal_of_a_killed_process_is_in_its_exit_code(tmp_path: Path) -> None:
    process = await Process.start(["sleep", "600"], ENV, tmp_path, tmp_path / "log")
    os.kill(process.pid, signal.SIGKILL)
    assert await process.wait() == 137
    process = await Process.start(["sleep", "600"], ENV, tmp_path, tmp_path / "log")
    process.terminate()
    assert await process.wait() == 143


async def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no-such-program: No such file"):
        await Process.start(["no-such-program"], ENV, tmp_path, tmp_path / "log")
    with pytest.raises(StartError, match="working directory /not/there"):
        await Process.start(["true"], ENV, Path("/not/there"), tmp_path / "log")
