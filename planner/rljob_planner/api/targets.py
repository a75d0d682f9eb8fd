"""Workloads that exist already and that a job adopts: looked at, never touched.

Whoever has a running job wants to know what a better split would bring before handing over anything. So each side may name a
workload instead of a template; the operator then makes, edits, gates and publishes nothing, and the only mode is Recommend.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rljob_planner.api.base import ApiModel, Rule


class TargetRef(ApiModel):
    """A workload of the job's own namespace."""

    api_version: Literal["apps/v1"] = Field(default="apps/v1", description="API version of the workload: apps/v1.")
    kind: Literal["Deployment", "StatefulSet"] = Field(
        description=(
            "Kind of the workload. Groups of pods can't be adopted (LeaderWorkerSet, JobSet, TrainJob, RayCluster), since a replica is "
            "one pod here."
        )
    )
    name: str = Field(
        min_length=1, max_length=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", description="Name of the workload."
    )


def described_once(role: str) -> Rule:
    """The rule that a side is either made from a template or adopted."""
    return Rule(
        rule="has(self.template) != has(self.targetRef)",
        message=(
            f"say in one way what the {role}s are: {role}.template, a PodTemplateSpec from which the operator makes them, or "
            f"{role}.targetRef, a workload that runs already and that it only watches"
        ),
        holds=lambda side: bool(side.template) != (side.target_ref is not None),
    )


ADOPTION_RULES: tuple[Rule, ...] = (
    Rule(
        rule="has(self.sampler.targetRef) == has(self.trainer.targetRef)",
        message=(
            "one side has a targetRef and the other a template: write targetRef on both, to watch a job that runs already, or "
            "template on both, to let the operator run it"
        ),
        holds=lambda spec: (spec.sampler.target_ref is None) == (spec.trainer.target_ref is None),
        field="trainer",
    ),
    Rule(
        rule="!has(self.sampler.targetRef) || self.rebalance.mode == 'Recommend'",
        message=(
            "workloads named by targetRef are never touched, so the operator can only recommend: write rebalance.mode: Recommend, "
            "or give templates instead of targetRef"
        ),
        holds=lambda spec: spec.sampler.target_ref is None or spec.rebalance.mode == "Recommend",
        field="rebalance.mode",
    ),
    Rule(
        rule="!has(self.sampler.targetRef) || !self.suspend",
        message=(
            "workloads named by targetRef are never touched, so suspend can free none of their GPUs: scale them down yourself, and "
            "leave suspend out"
        ),
        holds=lambda spec: spec.sampler.target_ref is None or not spec.suspend,
        field="suspend",
    ),
)
"""Rules of a spec that adopts."""
