"""Rules that span several parts of a job: whether the minima fit the budget, whether a step can ever fill, who sets GPUs.

Each keeps a job from being accepted that could only fail, hang or break the budget later. What depends on the cluster or on
the model (whether a split fits the nodes, whether weights fit a GPU) is the planner's to say, in a condition.
"""

from __future__ import annotations

import re
from typing import Any

from rljob_planner.api.base import Rule
from rljob_planner.api.companions import COMPANION_RULES
from rljob_planner.api.targets import ADOPTION_RULES
from rljob_planner.api.template import containers_asking_for

MAX_NAME = 50
"""Longest name of a job: its children append ``-samplers``, ``-trainers`` or ``-layout`` to it within 63 characters."""

MAX_NAME_STATEFUL_SET = 43
"""Longest name of a job whose trainer is a StatefulSet: pods carry ``<name>-trainers-<revision>`` as a label of 63 characters."""

_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"


def _name(job: Any) -> str:
    return str(job.metadata.get("name", ""))


def _minima_fit(spec: Any) -> bool:
    samplers = spec.sampler.min_replicas * (spec.sampler.gpus_per_replica or 1)
    return bool(samplers + spec.trainer.min_replicas * spec.trainer.gpus_per_replica <= spec.gpus)


def _max_step_allows(spec: Any) -> bool:
    limit = spec.rebalance.max_step_gpus
    return limit is None or limit >= max(spec.trainer.gpus_per_replica, spec.sampler.gpus_per_replica or 1)


def _gpu_resource(spec: str, role: str) -> str:
    """CEL for the resource that counts the GPUs of a role; ``spec`` is CEL for the spec."""
    return f"(has({spec}.{role}.nodes) ? {spec}.{role}.nodes.gpuResource : {spec}.nodes.gpuResource)"


def _template_leaves_gpus(role: str) -> Rule:
    resource = _gpu_resource("self", role)
    asks = " || ".join(
        f"(has(c.resources.{kind}) && {resource} in c.resources.{kind})" for kind in ("limits", "requests")
    )

    def holds(spec: Any) -> bool:
        side = getattr(spec, role)
        return not containers_asking_for(side.template, (side.nodes or spec.nodes).gpu_resource)

    return Rule(
        rule=(
            f"!has(self.{role}.template) || "
            f"!self.{role}.template.spec.containers.exists(c, has(c.resources) && ({asks}))"
        ),
        message=(
            f"a container of {role}.template asks for GPUs itself: leave them out of its resources, the operator gives the "
            f"first container those of {role}.gpusPerReplica, and others would not count in the budget"
        ),
        holds=holds,
        field=f"{role}.template",
    )


def _kept_in_a_run(same: str, message: str, field: str) -> Rule:
    """A rule on updates that binds once a split is in force; until then a typing error must stay correctable."""
    return Rule(
        rule=f"!has(oldSelf.status) || !has(oldSelf.status.split) || ({same})", message=message, holds=None, field=field
    )


SPEC_RULES: tuple[Rule, ...] = (
    Rule(
        rule=(
            "self.sampler.minReplicas * (has(self.sampler.gpusPerReplica) ? self.sampler.gpusPerReplica : 1) + "
            "self.trainer.minReplicas * self.trainer.gpusPerReplica <= self.gpus"
        ),
        message=(
            "the smallest split (minReplicas x gpusPerReplica of sampler and trainer) does not fit in spec.gpus: raise gpus, "
            "or lower minReplicas or gpusPerReplica (trainer.gpusPerReplica is 8 if it is left out)"
        ),
        holds=_minima_fit,
        field="gpus",
    ),
    Rule(
        rule="!has(self.queue) || self.queue.capacity >= self.workload.promptsPerStep",
        message=(
            "queue.capacity is below workload.promptsPerStep, so no step could ever collect its groups: raise capacity to at "
            "least promptsPerStep, or leave queue out for one without a capacity"
        ),
        holds=lambda spec: spec.queue is None or spec.queue.capacity >= spec.workload.prompts_per_step,
        field="queue.capacity",
    ),
    Rule(
        rule=(
            "!has(self.rebalance.maxStepGPUs) || (self.rebalance.maxStepGPUs >= self.trainer.gpusPerReplica && "
            "(!has(self.sampler.gpusPerReplica) || self.rebalance.maxStepGPUs >= self.sampler.gpusPerReplica))"
        ),
        message=(
            "rebalance.maxStepGPUs is below gpusPerReplica of a side, so no move could ever take a replica from it: raise it to "
            "the wider replica's GPUs, or leave it out"
        ),
        holds=_max_step_allows,
        field="rebalance.maxStepGPUs",
    ),
    _template_leaves_gpus("sampler"),
    _template_leaves_gpus("trainer"),
    *COMPANION_RULES,
    *ADOPTION_RULES,
)
"""Rules of the spec."""

JOB_RULES: tuple[Rule, ...] = (
    Rule(
        rule=f"self.metadata.name.size() <= {MAX_NAME}",
        message=f"metadata.name is longer than {MAX_NAME} characters, and the job's children append to it: write a shorter name",
        holds=lambda job: len(_name(job)) <= MAX_NAME,
    ),
    Rule(
        rule=f"self.metadata.name.matches('{_NAME}')",
        message=(
            "metadata.name becomes part of the names of Services: write lower-case letters, digits and '-' alone, "
            "beginning with a letter"
        ),
        holds=lambda job: "name" not in job.metadata or re.fullmatch(_NAME, _name(job)) is not None,
    ),
    Rule(
        rule=f"self.spec.trainer.kind != 'StatefulSet' || self.metadata.name.size() <= {MAX_NAME_STATEFUL_SET}",
        message=(
            f"metadata.name is longer than {MAX_NAME_STATEFUL_SET} characters, too long for trainer.kind StatefulSet, whose pods "
            "carry it in a label: write a shorter name, or kind Deployment"
        ),
        holds=lambda job: job.spec.trainer.kind != "StatefulSet" or len(_name(job)) <= MAX_NAME_STATEFUL_SET,
        field="spec.trainer.kind",
    ),
    _kept_in_a_run(
        "has(self.spec.model.name) == has(oldSelf.spec.model.name) && "
        "(!has(self.spec.model.name) || self.spec.model.name == oldSelf.spec.model.name)",
        "the model can't change in a run, since weights and optimizer state belong to it: keep it, or create another RLJob for "
        "another model",
        "spec.model",
    ),
    _kept_in_a_run(
        "self.spec.workload.samplesPerPrompt == oldSelf.spec.workload.samplesPerPrompt",
        "workload.samplesPerPrompt can't change in a run, since groups of the old size are in flight and queued: keep it, or "
        "create another RLJob",
        "spec.workload.samplesPerPrompt",
    ),
    _kept_in_a_run(
        "has(self.spec.sampler.targetRef) == has(oldSelf.spec.sampler.targetRef)",
        "whether a job adopts workloads or runs its own can't change in a run: create another RLJob, and end the workloads that it "
        "takes the place of first, so that both don't hold GPUs at once",
        "spec.sampler",
    ),
    _kept_in_a_run(
        "self.spec.trainer.kind == oldSelf.spec.trainer.kind",
        "trainer.kind can't change in a run, since the pods of both kinds would need the GPUs at once: keep it, or create "
        "another RLJob",
        "spec.trainer.kind",
    ),
    _kept_in_a_run(
        " && ".join(
            f"{_gpu_resource('self.spec', role)} == {_gpu_resource('oldSelf.spec', role)}"
            for role in ("sampler", "trainer")
        ),
        "nodes.gpuResource can't change in a run, since pods that are there would no longer count in the budget: keep it, or "
        "create another RLJob",
        "spec.nodes.gpuResource",
    ),
)
"""Rules of the object as a whole."""
