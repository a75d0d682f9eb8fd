"""Samplers over several node pools: where they go, what a mixed fleet is worth, and what becomes of a pool that is lost."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_planner.calibrate import Calibration
from rljob_planner.errors import PlanningError
from rljob_planner.job import Job
from rljob_planner.outcome import Plan
from rljob_planner.placement import Room, packs, rooms_of
from rljob_planner.pools import PoolSpeed, allocations, chosen, mixed
from rljob_planner.search import evaluate, plan
from rljob_planner.split import PoolSplit, SamplerSplit, Split
from tests.planner.specs import spec

NEAR = {"name": "near", "selector": {"zone": "a"}}
FAR = {"name": "far", "selector": {"zone": "b"}}


def pool_rooms(nodes: int, pool: str, accelerator: str = "H100-SXM", gpus: int = 8, **flags: Any) -> tuple[Room, ...]:
    return tuple(Room(f"{pool}-{i}", gpus, accelerator, pool=pool, **flags) for i in range(nodes))


def trainer_rooms(nodes: int) -> tuple[Room, ...]:
    return tuple(Room(f"train-{i}", 8, "H100-SXM", samplers=False) for i in range(nodes))


def found(rooms: tuple[Room, ...], pools: Any = (NEAR, FAR), **changes: Any) -> Plan:
    job = spec(sampler__pools=list(pools), sampler__gpusPerReplica=1, **changes)
    return plan(job, rooms, detail=False)


def by_pool(split: Split) -> dict[str, int]:
    assert split.samplers.pools is not None
    counts = {pool.name: pool.replicas for pool in split.samplers.pools}
    assert sum(counts.values()) == split.samplers.replicas
    return counts


def test_pools_of_equal_gpus_are_as_good_as_one_fleet() -> None:
    rooms = (*trainer_rooms(1), *pool_rooms(1, "near", trainers=False), *pool_rooms(1, "far", trainers=False))
    spread = found(rooms)
    together = plan(
        spec(sampler__gpusPerReplica=1),
        (*trainer_rooms(1), *(Room(f"s-{i}", 8, "H100-SXM", trainers=False) for i in range(2))),
        detail=False,
    )
    assert spread.period.mean == pytest.approx(together.period.mean)
    assert spread.split.same_shape(together.split)
    assert sum(by_pool(spread.split).values()) == together.split.samplers.replicas
    assert spread.placeable_gpus == 24


def test_faster_pools_are_filled_first_and_limits_kept() -> None:
    slow = pool_rooms(2, "near", "A100-SXM4-80GB", trainers=False)
    fast = pool_rooms(2, "far", "H200-SXM", trainers=False)
    rooms = (*trainer_rooms(1), *slow, *fast)
    counts = by_pool(found(rooms, gpus=24).split)
    assert counts["far"] == 16, "the budget of 16 sampler GPUs goes to the faster pool"
    limited = by_pool(found(rooms, (NEAR, {**FAR, "maxGPUs": 6}), gpus=24).split)
    assert limited["far"] == 6
    assert limited["near"] > 0
    drained = by_pool(found(rooms, (NEAR, {**FAR, "maxGPUs": 0}), gpus=24).split)
    assert drained == {"near": 16, "far": 0}


def test_a_lost_pool_leaves_a_plan_for_the_rest() -> None:
    near, far = pool_rooms(1, "near", trainers=False), pool_rooms(1, "far", "A100-SXM4-80GB", trainers=False)
    whole = found((*trainer_rooms(1), *near, *far))
    left = found((*trainer_rooms(1), *far))
    assert by_pool(left.split) == {"near": 0, "far": 8}
    assert left.period.mean > whole.period.mean
    with pytest.raises(PlanningError):
        found(trainer_rooms(2))


def test_trainers_take_the_places_that_cost_the_least_rollout() -> None:
    # Trainers may run anywhere; the slow pool's node is the one to give up.
    rooms = (*pool_rooms(1, "near", "A100-SXM4-80GB"), *pool_rooms(1, "far", "H200-SXM"))
    job = spec(sampler__pools=[NEAR, FAR], sampler__gpusPerReplica=1, gpus=16, accelerator=None)
    with pytest.raises(PlanningError, match="different GPUs"):
        plan(job, rooms, detail=False)
    speeds = (PoolSpeed("near", 1.0, None), PoolSpeed("far", 2.0, None))
    assert allocations(rooms, speeds, 1, 8, 2).tolist() == [[8, 8], [0, 8], [0, 0]]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[tuple[Room, ...], tuple[PoolSpeed, ...], int, int]:
    names = ["p0", "p1", None]
    rooms = tuple(
        Room(f"n{i}", draw(st.integers(1, 8)), pool=draw(st.sampled_from(names)), trainers=draw(st.booleans()))
        for i in range(draw(st.integers(1, 4)))
    )
    rooms = tuple(r if r.pool else Room(r.node, r.free_gpus, samplers=False, trainers=r.trainers) for r in rooms)
    limits = st.one_of(st.none(), st.integers(0, 6))
    speeds = tuple(PoolSpeed(f"p{i}", draw(st.sampled_from([1.0, 2.0, 3.5])), draw(limits)) for i in range(2))
    return rooms, speeds, draw(st.sampled_from([1, 2])), draw(st.sampled_from([2, 4]))


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_allocations_are_the_best_of_all(case: tuple[tuple[Room, ...], tuple[PoolSpeed, ...], int, int]) -> None:
    rooms, speeds, width, trainer_gpus = case
    table = allocations(rooms, speeds, width, trainer_gpus, 20)
    places = [range((r.free_gpus // trainer_gpus if r.trainers else 0) + 1) for r in rooms]
    best: dict[int, float] = {}
    for put in itertools.product(*places):
        worth = 0.0
        for pool in speeds:
            here = sum(
                (r.free_gpus - k * trainer_gpus) // width
                for r, k in zip(rooms, put, strict=True)
                if r.pool == pool.name
            )
            worth += pool.rate * (here if pool.most is None else min(here, pool.most))
        best[sum(put)] = max(best.get(sum(put), 0.0), worth)
    assert len(table) - 1 == max(best)
    for trainers, counts in enumerate(table.tolist()):
        worth = sum(pool.rate * n for pool, n in zip(speeds, counts, strict=True))
        assert worth == pytest.approx(best[trainers])
        samplers = [r for r in rooms if r.samplers]
        assert not samplers or packs(rooms, width, sum(counts), trainer_gpus, trainers)


def test_replicas_are_dealt_to_the_fastest_first() -> None:
    speeds = (PoolSpeed("slow", 1.0, None), PoolSpeed("fast", 2.0, None))
    assert chosen([4, 3], speeds, 5) == (PoolSplit(name="slow", replicas=2), PoolSplit(name="fast", replicas=3))
    assert chosen([4, 3], speeds, 2) == (PoolSplit(name="slow", replicas=0), PoolSplit(name="fast", replicas=2))


def mixed_job() -> Job:
    rooms = (*trainer_rooms(1), *pool_rooms(1, "near", "H200-SXM"), *pool_rooms(1, "far", "A100-SXM4-80GB"))
    rooms = tuple(r if r.pool is None else Room(r.node, 8, r.accelerator, trainers=False, pool=r.pool) for r in rooms)
    return Job.of(spec(sampler__pools=[NEAR, FAR], sampler__gpusPerReplica=1), rooms)


def test_a_mean_replica_makes_the_tokens_of_the_mixed_fleet() -> None:
    job = mixed_job()
    fast, slow = (job.of_pool(name).decode_cost(1, 128, 1.0) for name in ("near", "far"))
    mean = mixed([(3, fast), (1, slow)], job.context_tokens, 64.0)
    for n in (1, 8, 32, 64, 128):
        held = n * job.context_tokens
        fleet = 3 * n / fast.iteration_s(n, held) + n / slow.iteration_s(n, held)
        assert 4 * n / mean.iteration_s(n, held) == pytest.approx(fleet)
    # To first order around the mean context too: where the samples are longer than usual.
    held = 64 * job.context_tokens * 1.2
    fleet = 3 / fast.iteration_s(64, held) + 1 / slow.iteration_s(64, held)
    assert 4 / mean.iteration_s(64, held) == pytest.approx(fleet, rel=0.01)
    alone = mixed([(2, fast), (2, fast)], job.context_tokens, 64.0)
    ns = np.array([1, 50, 128])
    assert [alone.iteration_s(n, n * 900.0) for n in ns] == pytest.approx([fast.iteration_s(n, n * 900.0) for n in ns])


def test_a_mixed_fleet_lies_between_its_pure_ones_and_says_so() -> None:
    rooms = (
        *trainer_rooms(1),
        *pool_rooms(2, "near", "H200-SXM", trainers=False),
        *pool_rooms(2, "far", "A100-SXM4-80GB", trainers=False),
    )
    job = spec(sampler__pools=[NEAR, FAR], sampler__gpusPerReplica=1)
    base = found(rooms, gpus=24).split

    def period(near: int) -> float:
        pools = (PoolSplit(name="near", replicas=near), PoolSplit(name="far", replicas=12 - near))
        samplers = base.samplers.model_copy(update={"replicas": 12, "pools": pools})
        return evaluate(job, base.model_copy(update={"samplers": samplers}), rooms).period.mean

    periods = [period(near) for near in (12, 6, 0)]
    assert periods[0] < periods[1] < periods[2]
    both = found(rooms, (NEAR, {**FAR, "maxGPUs": 4}), gpus=40)
    unlike = found(rooms, ({**NEAR, "maxGPUs": 4}, FAR), gpus=40)
    assert by_pool(unlike.split)["near"] == 4
    assert any("mean speed" in note for note in unlike.notes)
    assert both.cost is None or both.cost > 0


def test_a_mixed_fleet_that_runs_as_predicted_needs_no_correction() -> None:
    job = mixed_job()
    pools = (PoolSplit(name="near", replicas=3), PoolSplit(name="far", replicas=1))
    samplers = SamplerSplit(replicas=4, gpus_per_replica=1, tensor_parallel=1, max_running=128, pools=pools)
    held = 40 * job.context_tokens
    costs = [job.of_pool(name).decode_cost(1, 40, 1.0) for name in ("near", "far")]
    each = [c.iteration_s(40, held) + 40 / job.lengths.mean() * c.prefill_s_per_sample for c in costs]
    # What Prometheus gives is the mean over the pods.
    assert job.iteration_s(samplers, 40, held) == pytest.approx((3 * each[0] + each[1]) / 4)
    alone = samplers.model_copy(update={"pools": None})
    assert job.iteration_s(alone, 40, held) == pytest.approx(each[0])


def test_a_pool_whose_gpus_do_not_hold_the_model_is_left_out_with_a_reason() -> None:
    rooms = (
        *trainer_rooms(4),
        *pool_rooms(1, "near", "H200-SXM", trainers=False),
        *pool_rooms(1, "far", "L40S", trainers=False),
    )
    job = spec(
        gpus=40,
        model__name="Qwen/Qwen3-32B",
        sampler__pools=[NEAR, FAR],
        sampler__gpusPerReplica=1,
        trainer__minReplicas=2,
    )
    answer = plan(job, rooms, detail=False)
    assert by_pool(answer.split)["far"] == 0
    assert any("pool far with samplers of 1 GPU" in note for note in answer.notes)


def test_what_is_kept_in_a_move_keeps_to_the_pools_and_the_calibration() -> None:
    rooms = (*trainer_rooms(2), *pool_rooms(1, "near", trainers=False), *pool_rooms(1, "far", trainers=False))
    first = found(rooms, gpus=32)
    job = spec(sampler__pools=[NEAR, FAR], sampler__gpusPerReplica=1, gpus=32)
    again = plan(job, rooms, keep=first.split, calibration=Calibration(sampler_factor=0.5), detail=False)
    assert set(by_pool(again.split)) == {"near", "far"}
    assert again.period.mean > first.period.mean


def test_nodes_of_pools_can_be_described() -> None:
    rooms = rooms_of("near=2x8, far=1x4,3x8")
    assert [r.pool for r in rooms] == ["near", "near", "far", None, None, None]
    assert [r.free_gpus for r in rooms] == [8, 8, 4, 8, 8, 8]
    with pytest.raises(ValueError, match="does not describe nodes"):
        rooms_of("near:2x8")


def test_the_json_names_the_pools() -> None:
    rooms = (*trainer_rooms(1), *pool_rooms(1, "near", trainers=False), *pool_rooms(1, "far", trainers=False))
    said = found(rooms).to_json()["split"]["samplers"]["pools"]
    assert {p["name"] for p in said} == {"near", "far"}
