"""The first plan of a job: what the planner says, or the reason why there is no plan, in words for a condition. Pure but for CPU time.

The planner takes a second of CPU at most; the reconcile runs these functions in a thread, and the simulation releases the
interpreter lock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rljob_operator import holders
from rljob_operator import inventory as inventories
from rljob_operator.inventory import Inventory, QuotaRoom
from rljob_operator.rebalance import timestamp
from rljob_operator.situation import Planner
from rljob_operator.status import Verdict, rounded
from rljob_planner import placement, pools
from rljob_planner.accelerators import accelerators_of
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import PlanStatus, RunTime, Spread, StalenessSummary
from rljob_planner.calibrate import Calibration
from rljob_planner.durations import seconds
from rljob_planner.hardware import gpu
from rljob_planner.placement import Room
from rljob_planner.search import Plan, PlanningError
from rljob_planner.split import SamplerSplit, Split, TrainerSplit

WIDER = "WiderThanANode"
"""Reason of ``Planned`` where a replica fits on no node, however empty."""


def first_plan(
    spec: RLJobSpec,
    inventory: Inventory,
    calibration: Calibration | None = None,
    planner: Planner | None = None,
) -> Plan | Verdict:
    """A plan for a job that does not run yet, or the verdict for its ``Planned`` condition."""
    widths = {"sampler": spec.sampler.gpus_per_replica or 1, "trainer": spec.trainer.gpus_per_replica}
    wide = placement.too_wide(widths, inventory.widest)
    if wide is not None:
        return Verdict(False, WIDER, wide)
    missing = inventories.shortage(spec, inventory)
    if missing is not None:
        return Verdict(False, "DoesNotFit", missing)
    try:
        return _answers.plan(
            planner or Planner(), limited(spec, inventory), inventory.rooms, calibration or Calibration()
        )
    except PlanningError as error:
        return Verdict(False, error.reason, str(error))


class Answers:
    """First plans that were asked for before: many jobs of a team differ in their names and pods alone.

    What makes two questions the same: everything in the spec but what the planner does not read, the calibration, and the rooms, whatever
    the nodes are called; of equal rooms no more count than the budget could fill.
    """

    def __init__(self, kept: int = 32) -> None:
        """Keeps the answers to the last ``kept`` questions."""
        self._kept = kept
        self._plans: OrderedDict[object, Plan] = OrderedDict()

    def plan(self, planner: Planner, spec: RLJobSpec, rooms: Sequence[Room], calibration: Calibration) -> Plan:
        """The plan, from memory if the question was asked; raises PlanningError."""
        kinds = Counter(replace(room, node="") for room in rooms)
        shapes = frozenset((kind, min(count, _useful(kind, spec))) for kind, count in kinds.items())
        key = (planner, spec.model_dump_json(exclude=_UNREAD, exclude_none=True), shapes, repr(calibration))
        found = self._plans.pop(key, None)
        if found is None:
            found = planner.plan(spec, rooms, calibration=calibration, detail=False)
        self._plans[key] = found
        if len(self._plans) > self._kept:
            self._plans.popitem(last=False)
        return found


def _useful(room: Room, spec: RLJobSpec) -> int:
    """How many rooms like this one the budget could fill at most: whatever replicas go there, less than a replica's width stays empty."""
    widest = max(spec.trainer.gpus_per_replica, spec.sampler.gpus_per_replica or room.free_gpus)
    least = max(1, room.free_gpus - widest + 1)
    return -(-spec.gpus // least) + 1


_UNREAD: dict[str, Any] = {
    "suspend": True,
    "priority": True,
    "metrics": True,
    "rebalance": True,
    "driver": True,
    "sampler": {"template": True},
    "trainer": {"template": True},
    "sandbox": {"template": True},
}
"""Parts of a spec that the planner does not read."""

_answers = Answers()


def smallest_split(spec: RLJobSpec) -> Split:
    """The minima as a split: enough to try the templates before there is a plan."""
    width, gpus = spec.sampler.gpus_per_replica or 1, spec.trainer.gpus_per_replica
    return Split(
        mode="async",
        samplers=SamplerSplit(
            replicas=spec.sampler.min_replicas,
            gpus_per_replica=width,
            tensor_parallel=width,
            max_running=spec.sampler.max_running or 1,
        ),
        trainers=TrainerSplit(
            replicas=spec.trainer.min_replicas,
            gpus_per_replica=gpus,
            dp=spec.trainer.min_replicas * gpus,
            tp=1,
            pp=1,
            ep=1,
        ),
        in_flight=spec.workload.samples_per_prompt,
    )


def limited(spec: RLJobSpec, inventory: Inventory) -> RLJobSpec:
    """The spec with the budget that a quota leaves and the accelerator that the nodes show, for the planner."""
    update: dict[str, object] = {"gpus": min(spec.gpus, inventory.budget)}
    if spec.accelerator is None and inventory.sampler_accelerator is not None:
        update["accelerator"] = inventory.sampler_accelerator
    return spec.model_copy(update=update)


def planned(spec: RLJobSpec, found: Plan, inventory: Inventory, sources: Sequence[str] = ()) -> Verdict:
    """The verdict for ``Planned`` when there is a plan: what was chosen, and what stands in the way of more."""
    words = [f"{found.split.label()}: period {seconds(found.period.mean)}, bound by {found.bottleneck}"]
    if found.split.samplers.pools is not None:
        words.append(pools.words(found.split.samplers.pools))
    if inventory.quota is not None and inventory.quota.gpus < spec.gpus:
        words.append(
            f"quota {inventory.quota.name} leaves {inventory.quota.gpus} GPUs of the budget of {spec.gpus}: raise it to use them"
        )
    elif found.placeable_gpus < spec.gpus:
        words.append(
            f"budget {spec.gpus}, placeable {found.placeable_gpus}: free or add nodes to use the rest"
            f"{holders.in_words(inventory.holders)}"
        )
    words += [*(f"rests on {source}" for source in sources), *_contradicted(spec, inventory), *inventory.notes[:3]]
    synchronous = found.synchronous_period
    if synchronous is not None and synchronous < found.period.mean:
        words.insert(
            0,
            f"a synchronous layout would be faster ({seconds(synchronous)} a step); this is the best asynchronous one",
        )
        return Verdict(True, "SynchronousIsFaster", "; ".join(words))
    return Verdict(True, "Planned", "; ".join(words))


def _contradicted(spec: RLJobSpec, inventory: Inventory) -> Iterator[str]:
    """Says it where ``spec.accelerator`` names another GPU than the one that was planned with."""
    if spec.accelerator is None:
        return
    stated, found = gpu(spec.accelerator), accelerators_of(spec, inventory.rooms)
    others = sorted({found.sampler.name, found.trainer.name} - {stated.name})
    if others:
        yield (
            f"planned for {' and '.join(others)}, as the nodes are labelled, and not for spec.accelerator {spec.accelerator}: "
            "correct it, or choose other nodes with spec.nodes.selector"
        )


def plan_status(found: Plan, now_s: float, sources: Sequence[str] = ()) -> PlanStatus:
    """The plan as the status keeps it; ``sources`` say what it rests on besides the spec."""

    def number(value: float) -> float:
        return rounded(value) or 0.0

    return PlanStatus(
        split=found.split,
        period=Spread(
            mean=number(found.period.mean),
            p10=number(found.period.p10),
            p50=number(found.period.p50),
            p90=number(found.period.p90),
        ),
        staleness=StalenessSummary(
            mean=number(found.staleness.mean), p95=number(found.staleness.p95), max=number(found.staleness.max)
        ),
        run_time=RunTime(
            p10=number(found.run_time.p10), p50=number(found.run_time.p50), p90=number(found.run_time.p90)
        ),
        synchronous_period=rounded(found.synchronous_period),
        bottleneck=found.bottleneck,
        confidence=rounded(found.confidence),
        placeable_gpus=found.placeable_gpus,
        planned_at=timestamp(now_s),
        sources=tuple(sources),
    )


def packs(split: Split, inventory: Inventory) -> bool:
    """Whether a split fits on the rooms and within the budget."""
    samplers, trainers = split.samplers, split.trainers
    return split.gpus <= inventory.budget and placement.packs(
        inventory.rooms, samplers.gpus_per_replica, samplers.replicas, trainers.gpus_per_replica, trainers.replicas
    )


def violations(spec: RLJobSpec, split: Split, quota: QuotaRoom | None = None) -> tuple[str, ...]:
    """What the spec says that a split in force does not keep, as after an edit of the spec, or what the ``quota`` no longer leaves."""
    found: list[str] = []
    if quota is not None and quota.keeps is not None and split.gpus > quota.keeps:
        found.append(f"the split uses {split.gpus} GPUs, ResourceQuota {quota.name} leaves {quota.keeps}")
    if split.gpus > spec.gpus:
        found.append(f"the split uses {split.gpus} GPUs, the budget is {spec.gpus}")
    for name, replicas, least, most in (
        ("sampler", split.samplers.replicas, spec.sampler.min_replicas, spec.sampler.max_replicas),
        ("trainer", split.trainers.replicas, spec.trainer.min_replicas, spec.trainer.max_replicas),
    ):
        if replicas < least:
            found.append(f"{replicas} {name}s are fewer than {name}.minReplicas {least}")
        if most is not None and replicas > most:
            found.append(f"{replicas} {name}s are more than {name}.maxReplicas {most}")
    return tuple(found)
