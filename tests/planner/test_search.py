"""What a plan says and obeys: the spec's fields, the nodes, what is kept in a move, and the reasons for having no plan."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rljob_planner.calibrate import Calibration
from rljob_planner.errors import PlanningError
from rljob_planner.lengths import LengthDistribution
from rljob_planner.outcome import Plan
from rljob_planner.placement import Room, default_rooms, rooms_of
from rljob_planner.search import evaluate, plan
from tests.planner.specs import spec

NODES = default_rooms(24)
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "plan.schema.json").read_text(encoding="utf-8"))


def found(nodes: Any = NODES, **changes: Any) -> Plan:
    return plan(spec(**changes), nodes, detail=False)


def refused(nodes: Any = None, **changes: Any) -> PlanningError:
    job = spec(**changes)
    with pytest.raises(PlanningError) as error:
        plan(job, default_rooms(job.gpus) if nodes is None else nodes, detail=False)
    assert error.value.reason.isidentifier()
    return error.value


@pytest.fixture(scope="module")
def full() -> Plan:
    return plan(spec(), NODES)


def test_json_is_what_the_schema_and_the_documentation_say(full: Plan) -> None:
    said = json.loads(json.dumps(full.to_json(), allow_nan=False))
    jsonschema.validate(said, SCHEMA)
    assert list(said) == [
        "split", "period", "staleness", "runTime", "cost", "synchronousPeriod", "oneStepOffPeriod", "speedup", "bottleneck",
        "confidence", "candidates", "neighbours", "lengthSweep", "elasticity", "pareto", "sandboxes", "notes",
    ]  # fmt: skip
    assert list(said["split"]) == ["mode", "samplers", "trainers", "inFlight"]
    assert list(said["split"]["samplers"]) == ["replicas", "gpusPerReplica", "tensorParallel"]
    assert list(said["split"]["trainers"]) == ["replicas", "gpusPerReplica", "dp", "tp", "pp", "ep"]
    assert list(said["elasticity"]) == ["decode", "train", "sync", "tail"]
    assert [point["factor"] for point in said["lengthSweep"]] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert said["confidence"] is None


def test_faster_hardware_helps_and_a_heavier_tail_does_not(full: Plan) -> None:
    slopes = full.elasticity
    assert slopes is not None
    assert slopes.decode is not None
    assert slopes.train is not None
    assert slopes.sync is not None
    assert slopes.tail is not None
    assert slopes.decode < 0.02
    assert slopes.train < 0.02
    assert slopes.sync > -0.02
    assert slopes.tail > -0.02
    # Twice as fast everything halves the period.
    assert slopes.decode + slopes.train - slopes.sync == pytest.approx(-1.0, abs=0.15)


def test_neighbours_have_one_trainer_fewer_and_one_more(full: Plan) -> None:
    trainers = full.split.trainers.replicas
    assert {n.split.trainers.replicas for n in full.neighbours} == {
        t for t in (trainers - 1, trainers + 1) if 1 <= t <= 2
    }
    assert all(n.period_s is not None and n.period_s > full.period.mean for n in full.neighbours)


def test_longer_responses_take_longer_in_the_sweep(full: Plan) -> None:
    periods = [point.period_s for point in full.length_sweep]
    assert periods == sorted(periods)
    assert full.length_sweep[1].split == full.split


def test_cost_is_gpu_hours_at_their_price(full: Plan) -> None:
    assert full.cost == pytest.approx(full.split.gpus * 3.5 * full.period.mean * 200 / 3600)
    assert found(accelerator="H20").cost is None


def test_the_cheapest_plan_costs_no_more_than_the_fastest(full: Plan) -> None:
    cheap = found(objective="cost")
    assert cheap.cost is not None
    assert full.cost is not None
    assert cheap.cost < full.cost
    assert cheap.period.mean >= full.period.mean


def test_gpus_without_a_price_are_ranked_by_gpu_seconds_and_that_is_said() -> None:
    cheap, fast = found(objective="cost", accelerator="H20"), found(accelerator="H20")
    assert cheap.split.gpus * cheap.period.mean <= 1.001 * fast.split.gpus * fast.period.mean
    assert any("GPU-seconds" in note for note in cheap.notes)


def test_staying_synchronous_is_advice_beside_the_best_asynchronous_split() -> None:
    # One prompt at a time with staleness 0 is synchronous anyway, on half of the GPUs.
    sync = found(staleness__max=0)
    assert sync.mode == "sync"
    assert sync.split.mode == "async"
    assert sync.synchronous_period is not None
    assert sync.synchronous_period < sync.period.mean
    assert sync.speedup is not None
    assert sync.speedup < 1
    said = sync.to_json()
    assert said["split"]["mode"] == "sync"
    assert said["period"]["mean"] == said["synchronousPeriod"] == pytest.approx(sync.synchronous_period, rel=1e-5)
    assert said["candidates"][0]["split"]["mode"] == "async"


def test_roles_on_different_gpus_cannot_stay_synchronous() -> None:
    rooms = (
        *(Room(f"s{i}", 8, "NVIDIA-H20", trainers=False) for i in range(2)),
        *(Room(f"t{i}", 8, "NVIDIA-H100-80GB-HBM3", samplers=False) for i in range(2)),
    )
    two = found(rooms, gpus=32, accelerator=None)
    assert two.synchronous_period is None
    assert two.speedup is None
    assert two.split.samplers.gpus <= 16
    assert two.split.trainers.gpus <= 16


def test_what_remains_of_a_run_counts() -> None:
    rest = plan(spec(), NODES, steps=50, detail=False)
    assert rest.run_time.p50 == pytest.approx(rest.period.mean * 50)
    assert plan(spec(), NODES, steps=0, detail=False).run_time.p50 >= 0


def test_a_measured_residual_is_the_confidence_and_the_spread() -> None:
    sure = plan(spec(), NODES, calibration=Calibration(1.1, 0.9, 0.01, False, 9), detail=False)
    unsure = plan(spec(), NODES, calibration=Calibration(1.1, 0.9, 0.30, False, 9), detail=False)
    assert sure.confidence == 0.01
    assert unsure.run_time.p90 / unsure.run_time.p10 > 1.5 > sure.run_time.p90 / sure.run_time.p10


def test_a_pegged_calibration_is_said() -> None:
    assert any("limit" in n for n in plan(spec(), NODES, calibration=Calibration(2.0, pegged=True), detail=False).notes)


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({"sampler__gpusPerReplica": 4}, lambda s: s.samplers.gpus_per_replica == s.samplers.tensor_parallel == 4),
        ({"sampler__maxReplicas": 3}, lambda s: s.samplers.replicas <= 3),
        ({"sampler__minReplicas": 15, "sampler__gpusPerReplica": 1}, lambda s: s.samplers.replicas >= 15),
        ({"sampler__maxRunning": 16}, lambda s: s.samplers.max_running == 16),
        ({"trainer__minReplicas": 2}, lambda s: s.trainers.replicas >= 2),
        ({"trainer__maxReplicas": 1}, lambda s: s.trainers.replicas == 1),
        ({"trainer__gpusPerReplica": 4}, lambda s: s.trainers.gpus_per_replica == 4),
        ({"trainer__batch": "strict"}, lambda s: 128 % s.trainers.dp == 0),
    ],
)
def test_the_spec_is_obeyed(changes: dict[str, Any], holds: Any) -> None:
    assert holds(found(**changes).split)


def test_a_node_with_two_gpus_taken_holds_no_eight() -> None:
    rooms = (*rooms_of("2x8"), Room("busy", 6))
    crowded = found(rooms, trainer__minReplicas=2)
    assert crowded.split.trainers.replicas == 2
    assert crowded.split.samplers.gpus <= 6
    assert crowded.placeable_gpus == 22


def test_in_a_move_only_replicas_and_the_cap_change() -> None:
    first = found(sampler__gpusPerReplica=2).split
    moved = plan(
        spec(), NODES, keep=first, lengths=LengthDistribution.from_mean_cv(3000, 0.8, 6000), detail=False
    ).split
    assert moved.samplers.gpus_per_replica == moved.samplers.tensor_parallel == 2
    assert moved.samplers.max_running == first.samplers.max_running
    assert (moved.trainers.tp, moved.trainers.pp) == (first.trainers.tp, first.trainers.pp)


@pytest.mark.parametrize("trainers", [1, 2])
def test_a_trainer_that_is_not_resized_keeps_its_replicas(trainers: int) -> None:
    fixed = plan(spec(), NODES, trainer_replicas=trainers, detail=False)
    assert fixed.split.trainers.replicas == trainers


@pytest.mark.parametrize(
    ("changes", "reason", "said"),
    [
        ({"model__name": "Qwen/Qwen9-1B"}, "UnknownModel", "spec.model.config"),
        ({"model": {"config": {"hidden_size": 4096}}}, "UnknownModel", "num_hidden_layers"),
        ({"accelerator": "H999X"}, "UnknownAccelerator", "spec.accelerator"),
        ({"accelerator": None}, "UnknownAccelerator", "H100-SXM"),
        ({"model__name": "meta-llama/Llama-3.1-405B"}, "DoesNotFit", "weights"),
        ({"model__name": "meta-llama/Llama-3.1-70B", "gpus": 16}, "DoesNotFit", "raise gpus"),
        ({"workload__responseTokens": {"mean": 800, "cv": 1, "max": 9_000_000}}, "DoesNotFit", "responseTokens.max"),
        ({"sampler__gpusPerReplica": 3}, "DoesNotFit", "1, 2, 4 or 8"),
        ({"trainer__batch": "strict", "trainer__gpusPerReplica": 7}, "DoesNotFit", "padded"),
        ({"staleness": {"max": 0, "bound": "hold"}}, "NothingFeasible", "admission"),
        ({"workload__promptsPerStep": 1_000_000, "workload__samplesPerPrompt": 10_000}, "TooLarge", "promptsPerStep"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_planned_has_a_reason_and_a_remedy(changes: dict[str, Any], reason: str, said: str) -> None:
    error = refused(**changes)
    assert error.reason == reason
    assert said in str(error)


def test_nodes_without_room_for_a_trainer_are_said() -> None:
    error = refused(tuple(Room(f"n{i}", 4) for i in range(6)))
    assert error.reason == "DoesNotFit"
    assert "the widest has 4 free" in str(error)
    assert "spec.trainer.gpusPerReplica: 4 or less" in str(error)


def test_no_nodes_at_all() -> None:
    assert refused(()).reason == "DoesNotFit"


def test_an_evaluation_of_a_split_that_hangs_is_an_error() -> None:
    split = found().split.model_copy(update={"in_flight": 3})
    with pytest.raises(PlanningError, match="in-flight cap of 3") as error:
        evaluate(spec(), split, NODES)
    assert error.value.reason == "InvalidSplit"


def test_the_bottleneck_is_the_side_that_the_other_waits_for() -> None:
    few = evaluate(
        spec(), found(trainer__maxReplicas=1, sampler__gpusPerReplica=8, sampler__maxReplicas=1).split, NODES
    )
    assert few.bottleneck == "samplers"
    assert few.trainer_utilization < 0.9
    slow = found(trainer__maxReplicas=1, trainer__mfu="2%")
    assert slow.bottleneck == "trainers"
    assert slow.rho > 1


def test_a_queue_without_end_is_no_plan_for_a_slow_trainer() -> None:
    unbounded = found(staleness__bound="none", trainer__maxReplicas=1, trainer__mfu="5%")
    # Samplers must not outrun the trainer, or the queue ages without end: the cap slows them down.
    assert unbounded.staleness.mean <= 4.05
    rushed = evaluate(
        spec(staleness__bound="none", trainer__mfu="5%"),
        unbounded.split.model_copy(update={"in_flight": 4 * unbounded.split.in_flight}),
        NODES,
    )
    assert rushed.staleness.mean > 20
    assert not rushed.within_staleness


def test_every_drop_is_counted() -> None:
    dropping = found(staleness={"max": 1, "bound": "drop"})
    assert 0 < dropping.evaluation.wasted_fraction < 1
    assert dropping.staleness.max <= 1
    assert found().evaluation.wasted_fraction == 0


def test_numbers_are_finite(full: Plan) -> None:
    assert all(math.isfinite(v) for v in (full.period.mean, full.staleness.mean, full.run_time.p90, full.rho))


@pytest.mark.parametrize("gpus", [10_000, 1_000_000])
def test_samplers_without_work_are_not_asked_for(gpus: int) -> None:
    job = spec(gpus=gpus)
    split = plan(job, default_rooms(gpus), detail=False).split
    most = (job.staleness.max + 1) * job.workload.samples_per_step
    assert split.samplers.replicas <= most
    assert split.in_flight <= most
    assert split.gpus < gpus


def test_minima_are_kept_even_without_work() -> None:
    job = spec(gpus=1000, sampler__minReplicas=700, sampler__gpusPerReplica=1, staleness__max=0)
    assert plan(job, default_rooms(1000), detail=False).split.samplers.replicas == 700


def test_a_batch_beyond_any_real_one_is_refused_at_once() -> None:
    error = refused(workload__promptsPerStep=1_000_000)
    assert error.reason == "TooLarge"
    assert "2048 a GPU" in str(error)
