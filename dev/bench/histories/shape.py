"""What a history takes place in: nodes, and one or two jobs that differ in all that a transaction may depend on."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dev.virtual import jobs
from dev.virtual.store import Json


@dataclass(frozen=True)
class Shape:
    """What a history takes place in."""

    nodes: int
    gpus_per_node: int
    jobs: tuple[Json, ...]
    """Manifests."""
    seed: int
    """Of all chance inside the world: requests, times, decisions."""

    @classmethod
    def drawn(cls, seed: int) -> Shape:
        """A shape by chance."""
        rng = random.Random(f"shape {seed}")
        # What goes wrong with two pods of a side goes wrong with two hundred, and takes less time to be seen.
        gpus_per_node = rng.choice((2, 4, 4, 6))
        nodes = rng.randint(2, 4)
        count = rng.choice((1, 1, 2))
        manifests = tuple(
            _manifest(rng, f"job-{i}", nodes * gpus_per_node // count, gpus_per_node) for i in range(count)
        )
        return cls(nodes, gpus_per_node, manifests, seed)


def _manifest(rng: random.Random, name: str, room: int, widest: int) -> Json:
    trainer, sampler = min(widest, rng.choice((1, 2, 4))), rng.choice((1, 1, 2))
    least = trainer + sampler
    budget = max(least, rng.choice((room, room, room - 1, 2 * room // 3, room + 4)))
    grace_s = rng.choice((0, 5, 30, 60))
    kind = rng.choice(("Deployment", "StatefulSet"))
    companions: Json = {}
    if rng.random() < 0.2:
        companions["workload"] = {"environment": {"turns": 3, "secondsPerTurn": 5.0}}
        companions["sandbox"] = {"maxReplicas": 4, "template": jobs.template("sandbox")}
        companions["driver"] = {"template": jobs.template("driver")}
    pools: Json = {}
    if rng.random() < 0.2:
        pools["pools"] = [{"name": pool, "selector": {"pool": pool}} for pool in ("a", "b")]
    return jobs.job(
        name,
        gpus=budget,
        priority=rng.choice((0, 0, 0, 10)),
        **companions,
        sampler={
            "gpusPerReplica": sampler,
            "drainTimeout": rng.choice(("5s", "20s")),
            **pools,
            "template": jobs.template("engine", terminationGracePeriodSeconds=grace_s),
        },
        trainer={
            "gpusPerReplica": trainer,
            "kind": kind,
            "resize": rng.choice(("elastic", "elastic", "restart")),
            "template": jobs.template("trainer", terminationGracePeriodSeconds=grace_s),
        },
        rebalance={"mode": "Auto", "interval": rng.choice(("10s", "20s"))},
    )
