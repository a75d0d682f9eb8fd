"""The layout that a job's containers read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rljob_operator.layout import Endpoint, LayoutPhase, endpoints_of, layout_of
from rljob_planner.split import SamplerSplit, Split, TrainerSplit

SPLIT = Split(
    mode="async",
    samplers=SamplerSplit(replicas=3, gpus_per_replica=2, tensor_parallel=2, max_running=64),
    trainers=TrainerSplit(replicas=2, gpus_per_replica=8, dp=8, tp=2, pp=1, ep=1),
    in_flight=512,
)


def sampler(
    name: str,
    *,
    ready: str = "True",
    ip: str | None = "10.0.0.1",
    port: int | None = None,
    terminating: bool = False,
    phase: str = "Running",
) -> dict[str, Any]:
    ports = {"ports": [{"containerPort": port}, {"containerPort": 1}]} if port else {}
    return {
        "metadata": {"name": name, **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {})},
        "spec": {"containers": [{"name": "engine", **ports}, {"name": "other", "ports": [{"containerPort": 9}]}]},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": ready}],
            **({"podIP": ip} if ip else {}),
        },
    }


def layout(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "generation": 4,
        "phase": "steady",
        "split": SPLIT,
        "sampler_pods": [sampler("s-2", port=9000), sampler("s-10", ip="fd00::1")],
        "trainers_replicas": 2,
        "samplers_replicas": 3,
        "draining": (),
        "max_staleness": 4,
        "in_flight_cap": 300,
        "rendezvous": "job-trainers.ns.svc:29500",
    }
    return layout_of(**{**arguments, **changes})


def test_the_file_has_the_fields_that_jobs_read() -> None:
    assert json.loads(layout().to_json()) == {
        "generation": 4,
        "phase": "steady",
        "samplers": {
            "replicas": 3,
            "gpusPerReplica": 2,
            "tensorParallel": 2,
            "maxRunning": 64,
            "endpoints": [
                {"pod": "s-2", "url": "http://10.0.0.1:9000"},
                {"pod": "s-10", "url": "http://[fd00::1]:8000"},
            ],
        },
        "trainers": {
            "replicas": 2,
            "gpusPerReplica": 8,
            "dp": 8,
            "tp": 2,
            "pp": 1,
            "ep": 1,
            "rendezvous": "job-trainers.ns.svc:29500",
        },
        "inFlightCap": 300,
        "maxStaleness": 4,
        "draining": [],
        "checkpoint": False,
    }


def test_the_same_content_is_the_same_text() -> None:
    pods = [sampler("s-2"), sampler("s-10"), sampler("s-1")]
    one = layout(sampler_pods=pods, draining=["s-2", "s-10"])
    other = layout(sampler_pods=pods[::-1], draining={"s-10", "s-2"})
    assert one == other
    assert one.to_json() == other.to_json()
    assert one.draining == ("s-2", "s-10")


@pytest.mark.parametrize(
    "state",
    [{"ready": "False"}, {"ready": "Unknown"}, {"ip": None}, {"terminating": True}, {"phase": "Failed"}],
)
def test_only_samplers_that_take_requests_are_endpoints(state: dict[str, Any]) -> None:
    assert endpoints_of([sampler("s-1", **state), sampler("s-2")]) == (Endpoint("s-2", "http://10.0.0.1:8000"),)


def test_a_draining_sampler_is_named_and_is_no_endpoint() -> None:
    drained = layout(phase=LayoutPhase.DRAINING, sampler_pods=[sampler("s-1"), sampler("s-2")], draining=["s-1"])
    assert [e.pod for e in drained.samplers.endpoints] == ["s-2"]
    assert drained.draining == ("s-1",)
    assert drained.phase is LayoutPhase.DRAINING


def test_a_pod_without_any_status_is_no_endpoint() -> None:
    assert endpoints_of([{"metadata": {"name": "s"}, "spec": {"containers": []}}]) == ()


def test_data_parallel_width_follows_the_trainers_that_are_wished() -> None:
    assert layout(trainers_replicas=3).trainers.dp == 12
    assert layout(trainers_replicas=1).trainers.dp == 4
    assert layout(trainers_replicas=2).trainers.dp == 8


def test_a_phase_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="paused"):
        layout(phase="paused")
