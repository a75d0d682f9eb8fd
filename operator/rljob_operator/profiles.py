"""What a finished run taught, from its status into an ``RLJobProfile``, and from there into the first plan of the next run. Pure.

A new run of a job that has run before need not start as if nothing were known. But another node, another engine version or another
seed make each run a little different: so what earlier runs measured counts as one uncertain reading, which the first readings
of the run itself soon outweigh. How uncertain is said by how far earlier runs agree, and never less than what a rerun usually differs by.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from rljob_operator.rebalance import epoch_s
from rljob_planner.accelerators import Accelerators
from rljob_planner.api.evidence import PhaseSeconds
from rljob_planner.api.profile import MOST_RUNS, ProfileRun, ProfileSubject, RLJobProfile, RLJobProfileSpec
from rljob_planner.api.spec import RLJob, RLJobSpec
from rljob_planner.api.status import DecodeConstants, MeasuredSeconds, RLJobStatus
from rljob_planner.api.workload import ResponseTokens
from rljob_planner.calibrate import LEAST_FACTOR, MOST_FACTOR, UNMEASURED_ERROR, Calibration
from rljob_planner.errors import PlanningError
from rljob_planner.evidence import Evidence, assumed
from rljob_planner.job import lengths_of, model_of

LEAST_OBSERVATIONS = 3
"""Measurements that a run's factors must rest on to be kept: fewer say more of its start than of it."""

RERUN_ERROR = 0.10
"""Standard deviation of ln(speed) between two runs of the same job, assumed before two were compared, and counted as one run then."""

STATED_ERROR = 0.4
"""Standard deviation of ln(the mean length that a spec states over the one that is measured): most are a guess from another run."""

OTHER_WIDTH = 1.5
"""How much less certain factors are of samplers of another width."""

OLD_DAYS = 180
"""Age from which a run is not believed any more: engines change."""

_COVERED = 0.5
"""Share of the new run's steps that an earlier one must have made for its growth to be taken over."""


def subject_of(
    spec: RLJobSpec,
    accelerators: Accelerators,
    constants: DecodeConstants | None = None,
    seconds: MeasuredSeconds | None = None,
) -> ProfileSubject:
    """What a run of this spec on these GPUs is a run of. Raises PlanningError for an unknown model.

    Budget, steps, staleness and split are left out: they change what is best, not how fast a replica is or how responses grow.
    """
    workload, trainer = spec.workload, spec.trainer
    config = spec.model.config
    name = spec.model.name or f"{model_of(spec).name}-{_digest(config)[:8]}"
    training = [trainer.recompute.value, *sorted(f.value for f in trainer.extra_forwards)]
    if trainer.mfu is not None:
        training.append(f"mfu {trainer.mfu}")
    lora = getattr(trainer, "lora", None)
    if lora is not None:
        training.append(f"lora {_digest(lora.model_dump(mode='json'))[:8]}")
    return ProfileSubject(
        model=name,
        weights=spec.model.weights.value,
        kv_cache=spec.model.kv_cache.value,
        engine=spec.sampler.engine.value,
        sampler_accelerator=accelerators.sampler.name,
        trainer_accelerator=accelerators.trainer.name,
        prompts_per_step=workload.prompts_per_step,
        samples_per_prompt=workload.samples_per_prompt,
        prompt_tokens=workload.prompt_tokens.mean,
        max_response_tokens=workload.response_tokens.max,
        turns=1 if workload.environment is None else workload.environment.turns,
        training=", ".join(training),
        constants=_digest(known.model_dump(mode="json"))[:8] if (known := constants or seconds) else "",
    )


def profile_name(subject: ProfileSubject) -> str:
    """The name of the object that keeps the profile: readable, and one for each subject."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{subject.model.rsplit('/', 1)[-1]}-{subject.sampler_accelerator}".lower())
    return f"{words.strip('-')[:40].strip('-')}-{_digest(subject.model_dump(mode='json'))[:10]}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def run_of(job: RLJob, status: RLJobStatus, ended_at: str) -> ProfileRun | None:
    """What a run that is complete leaves behind; None if it measured too little."""
    calibration, split, observed = status.calibration, status.split, status.observed
    if calibration is None or split is None or calibration.observations < LEAST_OBSERVATIONS:
        return None
    return ProfileRun(
        job=str(job.metadata["name"]),
        uid=str(job.metadata["uid"]),
        ended_at=ended_at,
        steps=job.spec.workload.steps,
        split=split.label(),
        sampler_gpus_per_replica=split.samplers.gpus_per_replica,
        sampler_factor=_inside(calibration.sampler_factor),
        trainer_factor=_inside(calibration.trainer_factor),
        residual=calibration.residual,
        observations=calibration.observations,
        moves=status.moves.moves,
        # What a move cost in an earlier run is not measured again by a run that made none.
        move_cost_seconds=status.moves.cost_seconds if status.moves.moves else None,
        phases=status.moves.phases if status.moves.moves else PhaseSeconds(),
        period_seconds=None if observed is None else observed.period_seconds,
        lengths=status.lengths,
    )


def _inside(factor: float) -> float | None:
    """A factor that does not stand at its limit, where it says only that the model does not describe the job."""
    return factor if LEAST_FACTOR < factor < MOST_FACTOR else None


def with_run(earlier: RLJobProfile | None, subject: ProfileSubject, run: ProfileRun) -> RLJobProfileSpec:
    """The profile with one run more: the last ``MOST_RUNS``, each once."""
    runs = () if earlier is None else tuple(r for r in earlier.spec.runs if r.uid != run.uid)
    return RLJobProfileSpec(subject=subject, runs=(*runs, run)[-MOST_RUNS:])


def read_profile(document: Mapping[str, Any]) -> RLJobProfile:
    """The profile in an object as the API server, or ``kubectl get -o yaml``, shows it; ValueError says why there is none."""
    try:
        found: RLJobProfile = RLJobProfile.model_validate(
            {key: document[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in document}
        )
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"it can't be read ({at}: {first['msg']})") from error
    return found


@dataclass(frozen=True)
class Lesson:
    """What a profile says about a run that is about to start."""

    profile: str
    """Name of the object."""
    jobs: tuple[str, ...]
    """The jobs whose runs it rests on, the newest last."""
    sampler_factor: float | None
    """Measured over predicted speed of the samplers; None if no run tells it."""
    trainer_factor: float | None
    """Measured over predicted speed of the trainers; None if no run tells it."""
    sampler_error: float
    """Standard error of the logarithm of the samplers' factor in another run."""
    trainer_error: float
    """Standard error of the logarithm of the trainers' factor in another run."""
    start_tokens: float | None
    """Mean response length at the start of a run, in tokens."""
    lengths_error: float
    """Standard error of its logarithm."""
    growth: float | None
    """How many times as long responses were at the end of a run of as many steps; None if no run was long enough."""
    environment_s: float | None
    """Mean seconds of a turn in the environment at the start."""
    phases: PhaseSeconds
    """What the phases of a move took."""
    move_cost_s: float | None
    """What a move cost, in seconds of lost progress."""

    def words(self) -> str:
        """The lesson as a source of a plan, for people."""
        runs = f"{len(self.jobs)} run{'' if len(self.jobs) == 1 else 's'}, the last {self.jobs[-1]}"
        sides = (
            ("samplers", self.sampler_factor, self.sampler_error),
            ("trainers", self.trainer_factor, self.trainer_error),
        )
        factors = [f"{side} {f:.2f} ± {error * f:.2f}" for side, f, error in sides if f is not None]
        said = [f"{' and '.join(factors)} times as fast as the model says"] if factors else []
        if self.start_tokens is not None:
            grown = "" if self.growth is None else f", ×{self.growth:.2g} by the end"
            said.append(f"responses of {self.start_tokens:,.0f} tokens at the start{grown}")
        if self.move_cost_s is not None:
            said.append(f"a move cost {self.move_cost_s:.0f} s")
        return f"RLJobProfile {self.profile} ({runs}): {'; '.join(said)}"


def lesson_of(profile: RLJobProfile, spec: RLJobSpec, now_s: float) -> Lesson:
    """What a profile says about a new run of ``spec``; ValueError says why it says nothing.

    Newer runs count more, each as much as all older ones together. How far speeds may be off in another run is the spread of the
    runs, with what a rerun usually differs by counted as one more.
    """
    name = str(profile.metadata.get("name", "of a file"))
    runs = [run for run in profile.spec.runs if _believable(run)]
    fresh = [run for run in runs if now_s - epoch_s(run.ended_at) <= OLD_DAYS * 86_400.0]
    if not fresh:
        why = (
            f"its newest run ended at {runs[-1].ended_at}, more than {OLD_DAYS} days ago" if runs else "it holds no run"
        )
        raise ValueError(why)
    samplers, sampler_error = _known([run.sampler_factor for run in fresh])
    trainers, trainer_error = _known([run.trainer_factor for run in fresh])
    width = spec.sampler.gpus_per_replica
    if width is not None and any(run.sampler_gpus_per_replica != width for run in fresh):
        sampler_error *= OTHER_WIDTH
    starts = [run.lengths[0].mean for run in fresh if run.lengths]
    start, lengths_error = _averaged(starts) if starts else (None, STATED_ERROR)
    growths = [g for run in fresh if (g := _growth(run, spec.workload.steps)) is not None]
    environments = [s for run in fresh if run.lengths and (s := run.lengths[0].environment_seconds)]
    costs = [run.move_cost_seconds for run in fresh if run.move_cost_seconds is not None]
    moved = [run for run in fresh if run.moves]
    return Lesson(
        profile=name,
        jobs=tuple(run.job for run in fresh),
        sampler_factor=samplers,
        trainer_factor=trainers,
        sampler_error=sampler_error,
        trainer_error=trainer_error,
        start_tokens=start,
        lengths_error=lengths_error,
        growth=_averaged(growths)[0] if growths else None,
        environment_s=_averaged(environments)[0] if environments else None,
        phases=moved[-1].phases if moved else PhaseSeconds(),
        move_cost_s=costs[-1] if costs else None,
    )


def _believable(run: ProfileRun) -> bool:
    """Whether the numbers of a run can be: a profile is an object that anybody may edit."""
    factors = all(f is None or LEAST_FACTOR <= f <= MOST_FACTOR for f in (run.sampler_factor, run.trainer_factor))
    lengths = all(math.isfinite(p.mean) and p.mean > 0 for p in run.lengths)
    try:
        epoch_s(run.ended_at)
    except ValueError:
        return False
    return factors and lengths and run.observations >= LEAST_OBSERVATIONS


def _known(factors: Sequence[float | None]) -> tuple[float | None, float]:
    known = [f for f in factors if f is not None]
    return _averaged(known) if known else (None, UNMEASURED_ERROR)


def _averaged(values: Sequence[float]) -> tuple[float, float]:
    """Geometric mean of values, the oldest first, and the standard deviation of the logarithm of the next one around it."""
    weights = [0.5 ** (len(values) - 1 - i) for i in range(len(values))]
    total = math.fsum(weights)
    logs = [math.log(value) for value in values]
    mean = math.fsum(w * x for w, x in zip(weights, logs, strict=True)) / total
    spread = math.fsum((x - mean) ** 2 for x in logs)
    variance = (RERUN_ERROR**2 + spread) / len(values)
    return math.exp(mean), math.sqrt(variance * (1.0 + 1.0 / len(values)))


def _growth(run: ProfileRun, steps: int) -> float | None:
    """How many times as long responses of a run were at ``steps`` as at its start, None if it did not get there by far."""
    if len(run.lengths) < 2 or run.lengths[-1].step < _COVERED * steps:
        return None
    at = min(run.lengths, key=lambda point: abs(point.step - steps))
    return at.mean / run.lengths[0].mean


def taught(spec: RLJobSpec, lesson: Lesson) -> RLJobSpec:
    """The spec with the lengths and the environment that earlier runs measured, as far as they are more certain than what it states."""
    workload = spec.workload
    share = STATED_ERROR**2 / (STATED_ERROR**2 + lesson.lengths_error**2)
    response = workload.response_tokens
    if lesson.start_tokens is not None:
        response = _scaled(response, lesson.start_tokens, share)
    if lesson.growth is not None:
        stated = response.growth
        growth = lesson.growth if stated is None else stated ** (1.0 - share) * lesson.growth**share
        response = response.model_copy(update={"growth": min(100.0, max(0.05, growth))})
    environment = workload.environment
    if environment is not None and lesson.environment_s is not None and environment.seconds_per_turn > 0:
        blended = environment.seconds_per_turn ** (1.0 - share) * lesson.environment_s**share
        environment = environment.model_copy(update={"seconds_per_turn": blended})
    changed = workload.model_copy(update={"response_tokens": response, "environment": environment})
    return spec.model_copy(update={"workload": changed})


def _scaled(response: ResponseTokens, measured: float, share: float) -> ResponseTokens:
    """Lengths of the same shape whose mean is drawn by ``share`` from the stated to the measured one; as stated if that can't be."""
    try:
        stated = lengths_of(response).mean()
        factor = (measured / stated) ** share
        if response.mean is not None:
            new = response.model_copy(update={"mean": max(1, round(response.mean * factor))})
        elif response.quantiles is not None:
            scaled = {q: min(response.max, max(1, round(x * factor))) for q, x in response.quantiles.items()}
            new = response.model_copy(update={"quantiles": scaled})
        else:
            bins = tuple((max(i + 1, round(edge * factor)), n) for i, (edge, n) in enumerate(response.histogram or ()))
            new = response.model_copy(update={"histogram": bins})
        lengths_of(new)
    except (PlanningError, ValueError):
        return response
    return new


def calibration_of(lesson: Lesson, now_s: float, base: Calibration | None = None) -> Calibration:
    """The calibration to start with: the factors of earlier runs, each as uncertain as another run may differ.

    No observation of this run is behind it, so ``observations`` stays 0, and the first readings outweigh it.
    """
    start = base or Calibration()
    return replace(
        start,
        sampler_factor=lesson.sampler_factor or start.sampler_factor,
        trainer_factor=lesson.trainer_factor or start.trainer_factor,
        residual=max(lesson.sampler_error, lesson.trainer_error),
        sampler_evidence=_evidence(lesson.sampler_factor, lesson.sampler_error, now_s),
        trainer_evidence=_evidence(lesson.trainer_factor, lesson.trainer_error, now_s),
        # What was measured in a running job holds without the allowance for what running costs a benchmark.
        measured_on=start.measured_on if lesson.sampler_factor is None or start.decode_seconds is not None else None,
    )


def _evidence(factor: float | None, error: float, now_s: float) -> Evidence | None:
    return None if factor is None else assumed(factor, error, now_s)
