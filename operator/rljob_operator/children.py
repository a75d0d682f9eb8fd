"""The objects that a job is made of, as they should be: desired states for server-side apply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rljob_planner.api.spec import RLJob
from rljob_planner.split import Split


class TemplateError(ValueError):
    """A job whose name or pod template can't be made into children; the message says what to write instead."""


def samplers_name(job: RLJob) -> str:
    """Name of the samplers' Deployment and Service: ``<job>-samplers``."""
    raise NotImplementedError


def trainers_name(job: RLJob) -> str:
    """Name of the trainers' workload and Service: ``<job>-trainers``."""
    raise NotImplementedError


def layout_name(job: RLJob) -> str:
    """Name of the layout ConfigMap: ``<job>-layout``."""
    raise NotImplementedError


def rendezvous(job: RLJob) -> str:
    """``host:port`` where trainer pods meet: pod 0 of a StatefulSet, else the headless Service."""
    raise NotImplementedError


def sampler_workload(job: RLJob, split: Split, replicas: int) -> dict[str, Any]:
    """The samplers' Deployment. Raises TemplateError."""
    raise NotImplementedError


def trainer_workload(job: RLJob, split: Split, replicas: int) -> dict[str, Any]:
    """The trainers' Deployment or StatefulSet. Raises TemplateError."""
    raise NotImplementedError


def layout_config_map(job: RLJob, text: str) -> dict[str, Any]:
    """The ConfigMap that holds ``layout.json``."""
    raise NotImplementedError


def services(job: RLJob) -> tuple[dict[str, Any], ...]:
    """The headless Services of both roles."""
    raise NotImplementedError


def trial_pods(job: RLJob, split: Split) -> tuple[dict[str, Any], ...]:
    """One Pod a role (samplers', trainers'), for a server-side dry run (create, dryRun=All, fieldValidation=Strict)."""
    raise NotImplementedError


def template_notes(job: RLJob, split: Split) -> tuple[str, ...]:
    """What the operator changes in the user's templates, as sentences for people; empty if nothing surprising."""
    raise NotImplementedError


def workload_differs(live: Mapping[str, Any], desired: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths of the fields that we set and that the live object has otherwise, such as ``spec.replicas``."""
    raise NotImplementedError


def edited_fields(live: Mapping[str, Any], desired: Mapping[str, Any]) -> tuple[str, ...]:
    """``workload_differs``, but only if ``live`` was last applied from this same ``desired``: so somebody else edited it."""
    raise NotImplementedError


def another_autoscaler(hpas: Iterable[Mapping[str, Any]], name: str) -> str | None:
    """Name of a HorizontalPodAutoscaler that targets the child ``name`` (Deployment or StatefulSet), None if there is none."""
    raise NotImplementedError
