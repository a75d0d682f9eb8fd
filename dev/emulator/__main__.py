"""Run the emulator in real time: ``python -m dev.emulator --kubeconfig F --namespace N --job J --config emulator.yaml``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import time
from pathlib import Path

from aiohttp import web
from kubernetes.client import ApiException

from dev.emulator.cluster import Cluster
from dev.emulator.config import load
from dev.emulator.emulation import Emulation
from dev.emulator.plant import TICK_S, Workload
from dev.emulator.server import application
from rljob_planner.api.spec import RLJobSpec

_log = logging.getLogger("dev.emulator")


async def _spec(cluster: Cluster) -> RLJobSpec:
    """The RLJob's spec, as soon as it is applied."""
    while True:
        try:
            return RLJobSpec.model_validate((await asyncio.to_thread(cluster.rljob))["spec"])
        except ApiException as error:
            if error.status != 404:
                raise
            await asyncio.sleep(0.5)


async def run(args: argparse.Namespace) -> None:
    """Emulate until a signal comes."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    cluster = Cluster(str(args.kubeconfig), args.namespace, args.job)
    found = asyncio.create_task(_spec(cluster))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((found, stopped), return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        found.cancel()
        return
    spec = found.result()
    with contextlib.ExitStack() as stack:
        steps = stack.enter_context(args.steps.open("w", buffering=1)) if args.steps else None
        emulation = Emulation(
            load(args.config),
            Workload.of(spec),
            spec.model.name or "model",
            shadow=args.shadow,
            log=lambda line: None if steps is None else print(line, file=steps),
        )
        runner = web.AppRunner(application(emulation, args.namespace), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", args.port)
        await site.start()
        _log.info("serving on 127.0.0.1:%d", args.port or site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]
        cluster.start()
        try:
            while not stop.is_set():
                emulation.observe(cluster.pods, cluster.layout_text, time.monotonic())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S / 2):
                        await stop.wait()
        finally:
            cluster.stop()
            stopped.cancel()
            await runner.cleanup()


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m dev.emulator", description="Stand in for the containers of an RLJob."
    )
    parser.add_argument(
        "--kubeconfig", type=Path, required=True, help="kubeconfig that may read pods, ConfigMaps and RLJobs"
    )
    parser.add_argument("--namespace", required=True, help="namespace of the RLJob")
    parser.add_argument("--job", required=True, help="name of the RLJob; waited for")
    parser.add_argument("--config", type=Path, required=True, help="the hidden truth, as YAML")
    parser.add_argument("--port", type=int, default=0, help="port to serve on (default: a free one)")
    parser.add_argument("--shadow", action="store_true", help="also run a plant that keeps the first split")
    parser.add_argument("--steps", type=Path, help="file for one line of JSON for each published version")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
