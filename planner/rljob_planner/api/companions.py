"""What a job runs beside its samplers and trainers: sandboxes for environments, and the orchestrator of frameworks that have one.

Neither holds GPUs, so neither is part of a split or of the budget; a template that asks for GPUs is refused, since those would
count nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field

from rljob_planner.api.base import ApiModel, Int, Rule
from rljob_planner.api.template import Template, containers_asking_for


class SandboxNetwork(StrEnum):
    """Whom sandboxes may talk to."""

    ISOLATED = "isolated"
    JOB = "job"
    OPEN = "open"


class Sandbox(ApiModel):
    """The fleet of sandboxes that environments run in."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
            message="sandbox.minReplicas is above sandbox.maxReplicas: lower minReplicas or raise maxReplicas",
            holds=lambda s: s.min_replicas <= s.max_replicas,
            field="minReplicas",
        ),
    )

    min_replicas: Int = Field(
        default=1, ge=1, le=1_000_000, description="Fewest sandbox pods while the job runs; used with a template."
    )
    max_replicas: Int = Field(
        ge=1,
        le=10_000_000,
        description=(
            "Most sandbox pods; times perReplica, the environments that may run at once. A sample that finds none free waits."
        ),
    )
    per_replica: Int = Field(
        default=1, ge=1, le=100_000, description="Environments that one sandbox pod runs at the same time."
    )
    network: SandboxNetwork = Field(
        default=SandboxNetwork.ISOLATED,
        description=(
            "isolated: only the job's own pods reach sandboxes, and sandboxes reach nobody; job: they also reach the job's pods and "
            "the cluster's DNS; open: the operator makes no NetworkPolicy. Policies of your own may allow more."
        ),
    )
    template: Template | None = Field(
        default=None,
        description=(
            "A PodTemplateSpec for sandbox pods, without GPUs: the operator runs as many as live environments need. "
            "Absent: sandboxes are somebody else's, and maxReplicas says how many there are."
        ),
    )

    @property
    def most_environments(self) -> int:
        """Environments that may run at once."""
        return self.max_replicas * self.per_replica


class Driver(ApiModel):
    """The orchestrator of frameworks that have one: one pod without GPUs."""

    template: Template = Field(
        description=(
            "A PodTemplateSpec for the driver's pod, without GPUs, such as a Ray head or an orchestrator. It sees the layout volume and "
            "the RLJOB_ environment, and is never resized."
        )
    )


def _gpu_resource(role: str) -> str:
    """CEL for the resource that counts the GPUs of a role."""
    return f"(has(self.{role}.nodes) ? self.{role}.nodes.gpuResource : self.nodes.gpuResource)"


def _without_gpus(part: str) -> Rule:
    asks = " || ".join(
        f"(has(c.resources.{kind}) && ({_gpu_resource('sampler')} in c.resources.{kind} || "
        f"{_gpu_resource('trainer')} in c.resources.{kind}))"
        for kind in ("limits", "requests")
    )

    def holds(spec: Any) -> bool:
        own = getattr(spec, part)
        template: Mapping[str, Any] | None = None if own is None else own.template
        resources = {(side.nodes or spec.nodes).gpu_resource for side in (spec.sampler, spec.trainer)}
        return not template or not any(containers_asking_for(dict(template), resource) for resource in resources)

    return Rule(
        rule=(
            f"!has(self.{part}) || !has(self.{part}.template) || "
            f"!self.{part}.template.spec.containers.exists(c, has(c.resources) && ({asks}))"
        ),
        message=(
            f"a container of {part}.template asks for GPUs, which would count in no budget: leave them out of its resources; what needs "
            "GPUs is a sampler or a trainer"
        ),
        holds=holds,
        field=f"{part}.template",
    )


COMPANION_RULES: tuple[Rule, ...] = (
    Rule(
        rule="!has(self.sandbox) || has(self.workload.environment)",
        message=(
            "sandbox says how many environments may run, but the job has none: describe workload.environment "
            "(secondsPerTurn, turns), or leave sandbox out"
        ),
        holds=lambda spec: spec.sandbox is None or spec.workload.environment is not None,
        field="sandbox",
    ),
    Rule(
        rule="!has(self.sampler.targetRef) || !(has(self.driver) || (has(self.sandbox) && has(self.sandbox.template)))",
        message=(
            "a job that adopts workloads by targetRef makes nothing by itself: leave out driver and sandbox.template, or give the sides "
            "templates instead of targetRef"
        ),
        holds=lambda spec: (
            spec.sampler.target_ref is None
            or not (spec.driver or (spec.sandbox is not None and spec.sandbox.template is not None))
        ),
        field="sampler.targetRef",
    ),
    _without_gpus("sandbox"),
    _without_gpus("driver"),
)
"""Rules of a spec that span its companions and the rest of it."""
