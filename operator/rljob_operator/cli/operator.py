"""``rljob operator``: the Kubernetes operator as a process."""

from __future__ import annotations

import asyncio
import gc

from rljob_operator.cli.console import OPERATOR_EXTRA, fail

ENVIRONMENT = (
    "RLJOB_OPERATOR_PROMETHEUS_URL: Prometheus for jobs that name none; without one nothing is rebalanced.\n\n"
    "RLJOB_OPERATOR_ALLOWED_PROMETHEUS_URLS: others that a job may name, comma-separated.\n\n"
    "RLJOB_OPERATOR_NAMESPACES: namespaces to watch, comma-separated; all by default.\n\n"
    "RLJOB_OPERATOR_METRICS_PORT: port of the operator's own metrics; none by default.\n\n"
    "RLJOB_OPERATOR_LIVENESS_ENDPOINT: URL for liveness probes, such as http://0.0.0.0:8080/healthz.\n\n"
    "RLJOB_OPERATOR_SCRAPE_INTERVAL (15s), _METRICS_WINDOW (120s), _SETTLE_STEPS (3): how metrics are read.\n\n"
    "RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE (5m), _GONE_DEADLINE (20m), _READY_DEADLINE (30m): of a move's phases.\n\n"
    "RLJOB_OPERATOR_POOL_LOST_AFTER (60s): how long no node of a sampler pool may be ready before its samplers are given up."
)


def operator_run() -> None:
    """Run the operator on the cluster of the current kubeconfig, or inside one; its environment configures it."""
    try:
        from rljob_operator.cluster import ClusterError
        from rljob_operator.config import Config
        from rljob_operator.handlers import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in OPERATOR_EXTRA:
            raise
        fail(f"the operator needs {error.name}, which is not installed: pip install 'rljob-operator[operator]'")
    try:
        config = Config.from_env()
    except ValueError as error:
        fail(str(error))
    try:
        asyncio.run(_connect_once())
    except ClusterError as error:
        fail(f"the operator has {error}")
    gc.enable()
    run(config)


async def _connect_once() -> None:
    """Raises ClusterError without credentials: nothing of that changes by trying again, as the framework would."""
    from rljob_operator.cluster import Cluster

    await (await Cluster.connect()).close()
