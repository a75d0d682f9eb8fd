"""How a job says that settings of its pods lose work: a clause in the message of ``Planned``, and its reason. Pure.

It is a job as planned, so ``Planned`` stays True; a condition of its own would be a word that older versions of the operator can't read in
a status. The clause is brought up to date in each pass, whatever else the message says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_operator import children
from rljob_operator.gate import SAMPLER, TRAINER
from rljob_operator.hazards import layout_hazards, sampler_hazards
from rljob_operator.status import Verdict
from rljob_planner.api.spec import RLJob
from rljob_planner.split import SamplerSplit, Split, TrainerSplit

WORK_AT_RISK = "WorkAtRisk"
"""Reason of ``Planned`` where a setting of the pods loses work."""

_PLANNED = "Planned"
_MARK = "; work is at risk: "
_STALE = "the pods have the template of an older version of the operator, and this one's has none of that: suspend and resume the job to bring it up to date"

Workload = Mapping[str, Any] | None


def found(job: RLJob, samplers: Workload, trainers: Workload) -> tuple[str, ...]:
    """What loses work in the workloads that run, a sentence each; empty where none is there yet."""
    sentences: tuple[str, ...] = ()
    if samplers is not None:
        template = samplers["spec"]["template"]
        own = sampler_hazards(job, template)
        if own and not _made_anew(job):
            own = (*own, _STALE)
        sentences += (*own, *layout_hazards(job, SAMPLER, template))
    if trainers is not None:
        sentences += layout_hazards(job, TRAINER, trainers["spec"]["template"])
    return sentences


def warned(verdict: Verdict, sentences: Sequence[str]) -> Verdict:
    """A verdict for ``Planned`` that is True, with the clause of today in place of the one that it may have."""
    message = verdict.message.partition(_MARK)[0]
    reason = _PLANNED if verdict.reason == WORK_AT_RISK else verdict.reason
    if not sentences:
        return Verdict(verdict.status, reason, message)
    # That a synchronous layout would be faster is news of its own, and is said first.
    return Verdict(
        verdict.status, WORK_AT_RISK if reason == _PLANNED else reason, f"{message}{_MARK}{'; '.join(sentences)}"
    )


def said(message: str) -> str:
    """The clause of a message, empty if it has none."""
    return message.partition(_MARK)[2]


def _made_anew(job: RLJob) -> tuple[str, ...]:
    """What loses work in the template that this version makes of the spec."""
    width = job.spec.sampler.gpus_per_replica or 1
    split = Split(
        mode="async",
        samplers=SamplerSplit(replicas=1, gpus_per_replica=width, tensor_parallel=width, max_running=1),
        trainers=TrainerSplit(replicas=1, gpus_per_replica=1, dp=1, tp=1, pp=1, ep=1),
        in_flight=1,
    )
    try:
        made = children.sampler_workload(job, split, 0)
    except children.TemplateError:
        return ("",)
    return sampler_hazards(job, made["spec"]["template"])
