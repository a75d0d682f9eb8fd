"""A job that stops drains first and then stays stopped, whatever the metrics say later."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rljob_operator import lifecycle
from rljob_operator.readings import Reading, SamplerTelemetry, Telemetry
from rljob_operator.rebalance import Targets, timestamp
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import Phase, RLJobStatus
from rljob_planner.split import SamplerSplit, Split, TrainerSplit

SPLIT = Split(
    mode="async",
    samplers=SamplerSplit(replicas=2, gpus_per_replica=1, tensor_parallel=1, max_running=8),
    trainers=TrainerSplit(replicas=1, gpus_per_replica=8, dp=8, tp=1, pp=1, ep=1),
    in_flight=16,
)
NOW_S = 1000.0


def spec(**changes: Any) -> RLJobSpec:
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    return RLJobSpec.model_validate(
        {
            "gpus": 16,
            "model": {"name": "Qwen/Qwen3-8B"},
            "workload": {
                "promptsPerStep": 4,
                "samplesPerPrompt": 4,
                "steps": 10,
                "promptTokens": {"mean": 10},
                "responseTokens": {"mean": 100, "max": 1000},
            },
            "staleness": {"max": 4},
            "sampler": {"template": template, "drainTimeout": "60s"},
            "trainer": {"template": template},
            **changes,
        }
    )


def sampler(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"rljob.dev/role": "sampler"}},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def telemetry(at: float, **running: float) -> Telemetry:
    unknown = SamplerTelemetry.unknown()
    return Telemetry(
        at=at,
        window_s=0.0,
        samplers={
            name: SamplerTelemetry(
                running=Reading.of(value),
                waiting=unknown.waiting,
                kv_usage=unknown.kv_usage,
                kv_tokens=unknown.kv_tokens,
                running_mean=unknown.running_mean,
                kv_usage_mean=unknown.kv_usage_mean,
                iteration_s=unknown.iteration_s,
                generation_tokens_per_s=unknown.generation_tokens_per_s,
            )
            for name, value in running.items()
        },
    )


def live(samplers: int, trainers: int) -> lifecycle.Workloads:
    return {"spec": {"replicas": samplers}}, {"spec": {"replicas": trainers}}


STOPPING = RLJobStatus(split=SPLIT, stopping_since=timestamp(NOW_S - 10))
PODS = [sampler("a"), sampler("b")]


def test_without_a_split_there_are_no_targets() -> None:
    assert lifecycle.targets_of(spec(), RLJobStatus(), [], None, (None, None), NOW_S) is None


def test_a_running_job_has_its_split() -> None:
    assert lifecycle.targets_of(spec(), RLJobStatus(split=SPLIT), PODS, None, live(1, 1), NOW_S) == Targets(2, 1)


def test_nothing_is_scaled_below_a_minimum_that_was_raised_meanwhile() -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    raised = spec(
        gpus=64,
        sampler={"minReplicas": 5, "template": template},
        trainer={"minReplicas": 2, "template": template},
    )
    state = RLJobStatus(split=SPLIT)

    def targets(samplers: int, trainers: int) -> Targets | None:
        return lifecycle.targets_of(raised, state, PODS, None, live(samplers, trainers), NOW_S)

    assert targets(8, 3) == Targets(5, 2)
    # What is there no more is not made anew for the minimum alone: the split that keeps it is planned first.
    assert targets(1, 1) == Targets(2, 1)


@pytest.mark.parametrize(
    ("metrics", "targets"),
    [
        (None, Targets(2, 1)),
        (telemetry(NOW_S, a=0.0), Targets(2, 1)),
        (telemetry(NOW_S, a=0.0, b=3.0), Targets(2, 1)),
        (telemetry(NOW_S - 20, a=0.0, b=0.0), Targets(2, 1)),
        (telemetry(NOW_S, a=0.0, b=0.0), Targets(0, 0)),
    ],
)
def test_a_stopping_job_keeps_its_pods_until_its_samplers_run_nothing(
    metrics: Telemetry | None, targets: Targets
) -> None:
    for stopped in (spec(suspend=True), spec()):
        state = STOPPING if stopped.suspend else STOPPING.model_copy(update={"phase": Phase.COMPLETE})
        assert lifecycle.targets_of(stopped, state, PODS, metrics, live(2, 1), NOW_S) == targets


def test_the_drain_timeout_ends_the_wait() -> None:
    assert lifecycle.targets_of(spec(suspend=True), STOPPING, PODS, None, live(2, 1), NOW_S + 51) == Targets(0, 0)


def test_what_was_scaled_to_zero_stays_there() -> None:
    busy = telemetry(NOW_S, a=5.0, b=5.0)
    assert lifecycle.targets_of(spec(suspend=True), STOPPING, PODS, busy, live(0, 0), NOW_S) == Targets(0, 0)


def trainer(name: str) -> dict[str, Any]:
    found = sampler(name)
    found["metadata"]["labels"] = {"rljob.dev/role": "trainer"}
    return found


DRAINED = STOPPING.model_copy(update={"drained_since": timestamp(NOW_S - 5), "layout_generation": 7})
WHOLE = [*PODS, trainer("t")]


def heard(generation: int | None, at: float = NOW_S) -> Telemetry:
    reading = Reading.missing() if generation is None else Reading.of(generation)
    return dataclasses.replace(telemetry(at, a=0.0, b=0.0), layout_generation=reading)


def test_a_checkpoint_is_asked_for_once_the_samplers_have_drained() -> None:
    assert not lifecycle.wants_checkpoint(spec(suspend=True), STOPPING)
    assert lifecycle.drained_since(spec(suspend=True), STOPPING, WHOLE, heard(6), NOW_S) == timestamp(NOW_S)
    assert lifecycle.drained_since(spec(suspend=True), STOPPING, WHOLE, telemetry(NOW_S, a=1.0, b=0.0), NOW_S) is None
    assert lifecycle.wants_checkpoint(spec(suspend=True), DRAINED)
    complete = DRAINED.model_copy(update={"phase": Phase.COMPLETE})
    assert not lifecycle.wants_checkpoint(spec(), complete)
    assert lifecycle.stop_of(spec(), complete, WHOLE, heard(6), NOW_S).done, "a run that is over needs none"


@pytest.mark.parametrize(
    ("said", "at_s", "done"),
    [
        (heard(6), NOW_S, False),
        (heard(7), NOW_S, True),
        (heard(7, at=NOW_S - 6), NOW_S, False),
        (heard(6), NOW_S + lifecycle.CHECKPOINT_S, True),
        (heard(None), NOW_S, False),
        (heard(None), NOW_S + 56, True),
        (None, NOW_S + 56, True),
    ],
)
def test_a_checkpoint_is_waited_for_until_it_is_acknowledged_or_has_had_its_time(
    said: Telemetry | None, at_s: float, done: bool
) -> None:
    found = lifecycle.stop_of(spec(suspend=True), DRAINED, WHOLE, said, at_s)
    assert found.done is done
    assert ("checkpoint" in found.words) is not done


def test_a_run_resumes_only_where_it_is_known_how_far_it_came() -> None:
    done = RLJobStatus(split=SPLIT, phase=Phase.COMPLETE)
    assert not lifecycle.resumes(spec(), done), "completed under an earlier version"
    assert not lifecycle.resumes(spec(), done.model_copy(update={"completed_version": 10}))
    assert lifecycle.resumes(spec(), done.model_copy(update={"completed_version": 9}))
