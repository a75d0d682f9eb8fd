"""The operator writes the layout and the runtime reads it; neither imports the other, so this holds them together."""

from __future__ import annotations

import dataclasses
from typing import Any

from rljob_operator.layout import Layout as Written
from rljob_operator.layout import layout_of
from rljob_planner.split import SamplerSplit, Split, TrainerSplit
from rljob_runtime import Layout as Read

SPLIT = Split(
    mode="async",
    samplers=SamplerSplit(replicas=2, gpus_per_replica=2, tensor_parallel=2, max_running=64),
    trainers=TrainerSplit(replicas=3, gpus_per_replica=8, dp=12, tp=2, pp=1, ep=1),
    in_flight=256,
)


def pod(name: str, ip: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 9000}]}]},
        "status": {"podIP": ip, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def written() -> Written:
    return layout_of(
        generation=7,
        phase="draining",
        split=SPLIT,
        sampler_pods=[pod("s-0", "10.0.0.1"), pod("s-1", "10.0.0.2")],
        trainers_replicas=2,
        samplers_replicas=2,
        draining=["s-1", "t-2"],
        max_staleness=4,
        in_flight_cap=256,
        rendezvous="job-trainers:29500",
        checkpoint=True,
    )


def test_the_runtime_reads_every_field_as_the_operator_wrote_it() -> None:
    layout = written()
    assert dataclasses.asdict(Read.parse(layout.to_json())) == dataclasses.asdict(layout)
