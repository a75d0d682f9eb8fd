"""Plans anew for a job that runs, where its spec demands another split and not its metrics.

What the run has shown counts here as well: the plan rests on the speeds and the lengths that the status keeps, so that a budget
that is cut in mid-run, or while the metrics are away, is not spent as if nothing had been learned. An answer stands until what
was asked has changed: a pass comes every few seconds, a plan costs a second of CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_operator import planning
from rljob_operator.edges import Edges
from rljob_operator.learned import with_constants
from rljob_operator.measured import calibration_of
from rljob_operator.passes import Pass
from rljob_operator.status import Verdict
from rljob_planner.api.spec import Resize, RLJobSpec
from rljob_planner.api.status import RLJobStatus
from rljob_planner.errors import PlanningError
from rljob_planner.hardware import gpu
from rljob_planner.job import lengths_of, model_of
from rljob_planner.lengths import LengthDistribution
from rljob_planner.search import Plan
from rljob_planner.split import Split

REPLAN_AFTER_S = 60.0
"""How long an answer stands while nothing that went into it has changed."""


@dataclass(frozen=True)
class _Answer:
    key: object
    at_s: float
    found: Plan | Verdict


class Replanner:
    """The plans of one running job that follow from its spec."""

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._answer: _Answer | None = None

    async def best(self, this: Pass, keep: Split, *, grow_only: bool = False) -> Plan | Verdict:
        """The best split that keeps to the spec, or the verdict for ``Planned`` if there is none.

        Only replica counts and the cap vary. With ``grow_only`` neither side gives anything up.
        """
        key = (this.raw["metadata"]["generation"], this.inventory.rooms, this.inventory.budget, keep, grow_only)
        now_s = self._edges.monotonic_s()
        if self._answer is None or self._answer.key != key or now_s - self._answer.at_s > REPLAN_AFTER_S:
            self._answer = _Answer(key, now_s, await self._ask(this, keep, grow_only))
        return self._answer.found

    async def of(self, this: Pass, keep: Split, wish: Split) -> Plan | Verdict:
        """The plan with just the replicas of ``wish``, in pods as ``keep`` has them, or the verdict why they can't run the job."""
        spec = _exactly(planning.limited(this.spec, this.inventory), wish)
        try:
            return await self._plan(this, spec, keep, wish.trainers.replicas)
        except PlanningError as error:
            return Verdict(False, error.reason, str(error))

    async def _ask(self, this: Pass, keep: Split, grow_only: bool) -> Plan | Verdict:
        spec = planning.limited(this.spec, this.inventory)
        if grow_only:
            spec = _no_fewer(spec, keep)
        fixed = keep.trainers.replicas if spec.trainer.resize is Resize.FIXED else None
        try:
            return await self._plan(this, spec, keep, fixed)
        except PlanningError as error:
            hint = "" if fixed is None else "; trainer.resize is fixed, so that only samplers can change"
            return Verdict(False, error.reason, f"{error}{hint}")

    async def _plan(self, this: Pass, spec: RLJobSpec, keep: Split, trainer_replicas: int | None) -> Plan:
        """The planner's answer with what the run has shown; raises PlanningError."""
        found: Plan = await self._edges.in_thread(
            self._edges.planner.plan,
            spec,
            this.inventory.rooms,
            calibration=with_constants(
                calibration_of(this.before.calibration), this.before.learned, keep.samplers.tensor_parallel
            ),
            lengths=known_lengths(spec, this.before),
            steps=steps_to_go(spec, this.before),
            keep=keep,
            trainer_replicas=trainer_replicas,
            detail=False,
        )
        return found


def known_lengths(spec: RLJobSpec, status: RLJobStatus) -> LengthDistribution | None:
    """The spec's lengths at the mean that was measured last; None (as the spec says) where none was. Raises PlanningError."""
    mean = None if status.observed is None else status.observed.response_tokens_mean
    if mean is None and status.lengths:
        mean = status.lengths[-1].mean
    if mean is None or mean <= 0:
        return None
    stated = lengths_of(spec.workload.response_tokens)
    return stated.scaled(mean / stated.mean())


def steps_to_go(spec: RLJobSpec, status: RLJobStatus) -> int | None:
    """Steps that remain, None if the policy version was never read."""
    version = None if status.observed is None else status.observed.policy_version
    return None if version is None else max(1, spec.workload.steps - version)


def trouble(spec: RLJobSpec) -> Verdict | None:
    """The verdict on a spec that can't be planned whatever the nodes are, as after an edit; None if nothing speaks against it."""
    try:
        model_of(spec)
        if spec.accelerator is not None:
            gpu(spec.accelerator)
    except PlanningError as error:
        return Verdict(
            False, error.reason, f"{error}; until it is corrected nothing new is planned, and what runs goes on"
        )
    return None


def _exactly(spec: RLJobSpec, split: Split) -> RLJobSpec:
    samplers, trainers = split.samplers.replicas, split.trainers.replicas
    return spec.model_copy(
        update={
            "sampler": spec.sampler.model_copy(update={"min_replicas": samplers, "max_replicas": samplers}),
            "trainer": spec.trainer.model_copy(update={"min_replicas": trainers, "max_replicas": trainers}),
        }
    )


def _no_fewer(spec: RLJobSpec, split: Split) -> RLJobSpec:
    return spec.model_copy(
        update={
            "sampler": spec.sampler.model_copy(update={"min_replicas": split.samplers.replicas}),
            "trainer": spec.trainer.model_copy(update={"min_replicas": split.trainers.replicas}),
        }
    )
