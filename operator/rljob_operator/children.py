"""The objects that a job is made of, as they should be: desired states for server-side apply.

Two workloads, one a role, each with a headless Service, and the ConfigMap with the layout. All carry the job's labels and an
owner reference, so that deleting the RLJob removes them without the operator. Workloads never surge: a new pod's GPUs are
there only when an old pod's are gone, and the budget gate would hold it back anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rljob_operator.companions import companion_trials
from rljob_operator.drift import edited_fields, workload_differs
from rljob_operator.engines import ENGINES
from rljob_operator.gate import SAMPLER, TRAINER
from rljob_operator.layout import LAYOUT_FILE, first_port, server_port
from rljob_operator.owned import head, selector_of, service_port, stamped_object
from rljob_operator.template import TemplateError, pod_template, template_notes
from rljob_operator.upgrade import recorded, sampler_part, trainer_part
from rljob_planner.api.spec import RLJob, TrainerKind
from rljob_planner.split import Split

__all__ = [
    "TemplateError",
    "another_autoscaler",
    "edited_fields",
    "layout_config_map",
    "layout_name",
    "rendezvous",
    "sampler_port",
    "sampler_workload",
    "samplers_name",
    "services",
    "template_notes",
    "trainer_workload",
    "trainers_name",
    "trial_pods",
    "workload_differs",
]

RENDEZVOUS_PORT = 29500
"""Where trainer pods meet if the template's first container declares no port: torch's default."""

_LONGEST_NAME = {TrainerKind.DEPLOYMENT: 50, TrainerKind.STATEFUL_SET: 43}
"""Characters of a job's name: ``<job>-samplers`` names a Service, and a StatefulSet labels its pods with
``<job>-trainers-<revision>``; both end at 63."""

_PROGRESS_DEADLINE_S = 3600
"""Gated pods are not stuck, so a workload may take long before it reports that it makes no progress."""


def samplers_name(job: RLJob) -> str:
    """Name of the samplers' Deployment and Service: ``<job>-samplers``."""
    return f"{job.metadata['name']}-samplers"


def trainers_name(job: RLJob) -> str:
    """Name of the trainers' workload and Service: ``<job>-trainers``."""
    return f"{job.metadata['name']}-trainers"


def layout_name(job: RLJob) -> str:
    """Name of the layout ConfigMap: ``<job>-layout``."""
    return f"{job.metadata['name']}-layout"


def rendezvous(job: RLJob) -> str:
    """``host:port`` where trainer pods meet.

    The host is pod 0 of a StatefulSet, which keeps its name, else the headless Service, whose name resolves to all trainer
    pods. The port is the first that the first container declares, or torch's default.
    """
    name = trainers_name(job)
    service = f"{name}.{job.metadata['namespace']}.svc"
    host = f"{name}-0.{service}" if job.spec.trainer.kind is TrainerKind.STATEFUL_SET else service
    return f"{host}:{first_port(job.spec.trainer.template.get('spec') or {}, RENDEZVOUS_PORT)}"


def sampler_port(job: RLJob) -> int:
    """The port of the samplers' servers, as their template shows it."""
    pod_spec = job.spec.sampler.template.get("spec") or {}
    return server_port(pod_spec, ENGINES[job.spec.sampler.engine])


def sampler_workload(job: RLJob, split: Split, replicas: int, *, bare: bool = False) -> dict[str, Any]:
    """The samplers' Deployment with ``replicas`` pods; of the split, only the shape of a replica is used.

    ``bare`` is as the version before the records made it (``upgrade``), without what the engine needs. Raises TemplateError if the job's name or
    template can't be made into one.
    """
    return _deployment(job, SAMPLER, split, replicas, bare=bare)


def trainer_workload(job: RLJob, split: Split, replicas: int) -> dict[str, Any]:
    """The trainers' Deployment or StatefulSet with ``replicas`` pods, as ``spec.trainer.kind`` says.

    A StatefulSet starts and stops its pods in parallel: a trainer waits for all of its pods, so that one by one would wait
    forever. Raises TemplateError if the job's name or template can't be made into one.
    """
    if job.spec.trainer.kind is TrainerKind.DEPLOYMENT:
        return _deployment(job, TRAINER, split, replicas)
    spec = {
        "replicas": replicas,
        "serviceName": trainers_name(job),
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": 2,
        "minReadySeconds": 0,
        "updateStrategy": {"type": "RollingUpdate"},
        "selector": {"matchLabels": selector_of(job, TRAINER)},
        "template": _checked_template(job, TRAINER, split),
    }
    made = stamped_object(job, TRAINER, "apps/v1", "StatefulSet", trainers_name(job), {"spec": spec})
    return recorded(made, TRAINER, trainer_part(job, split))


def layout_config_map(job: RLJob, text: str) -> dict[str, Any]:
    """The ConfigMap that holds ``layout.json``; mounted as a directory, so that it follows changes."""
    return {**head(job, None, "v1", "ConfigMap", layout_name(job)), "data": {LAYOUT_FILE: text}}


def services(job: RLJob) -> tuple[dict[str, Any], ...]:
    """The headless Services of samplers and trainers.

    Trainers are published before they are ready, since they become ready only after they have met.
    """
    samplers: dict[str, Any] = {
        "clusterIP": "None",
        "selector": selector_of(job, SAMPLER),
        "ports": [service_port(sampler_port(job), "http")],
    }
    trainers: dict[str, Any] = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector_of(job, TRAINER),
        "ports": [service_port(int(rendezvous(job).rpartition(":")[2]), "rendezvous")],
    }
    return (
        stamped_object(job, SAMPLER, "v1", "Service", samplers_name(job), {"spec": samplers}),
        stamped_object(job, TRAINER, "v1", "Service", trainers_name(job), {"spec": trainers}),
    )


def trial_pods(job: RLJob, split: Split) -> tuple[dict[str, Any], ...]:
    """One Pod a role, samplers' first and companions' last, for a server-side dry run (create, ``dryRun=All``, ``fieldValidation=Strict``).

    A Deployment's dry run skips pod admission, so a pod is tried before anything is created. The trial pods carry the budget
    gate like all others: even if one came to exist, it would never be scheduled. Raises TemplateError.
    """
    pods = []
    for role in (SAMPLER, TRAINER):
        template = _checked_template(job, role, split)
        own = head(job, role, "v1", "Pod", f"{job.metadata['name']}-trial-{role}")
        pods.append({**own, "metadata": {**template["metadata"], **own["metadata"]}, "spec": template["spec"]})
        # A generated name can't be taken by a pod of somebody else.
        pods[-1]["metadata"]["generateName"] = pods[-1]["metadata"].pop("name") + "-"
        pods[-1]["metadata"]["labels"] = template["metadata"]["labels"]
    return (*pods, *companion_trials(job))


def another_autoscaler(hpas: Iterable[Mapping[str, Any]], name: str) -> str | None:
    """Name of the HorizontalPodAutoscaler that scales the child ``name``, None if none does.

    ``hpas`` are those of the job's namespace (KEDA's ScaledObjects appear there as well). Two that scale one workload fight.
    """
    for hpa in hpas:
        target = (hpa.get("spec") or {}).get("scaleTargetRef") or {}
        if target.get("kind") in ("Deployment", "StatefulSet") and target.get("name") == name:
            return str(hpa["metadata"]["name"])
    return None


def _deployment(job: RLJob, role: str, split: Split, replicas: int, *, bare: bool = False) -> dict[str, Any]:
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 2,
        "minReadySeconds": 0,
        "progressDeadlineSeconds": _PROGRESS_DEADLINE_S,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
        "selector": {"matchLabels": selector_of(job, role)},
        "template": _checked_template(job, role, split, bare=bare),
    }
    name = samplers_name(job) if role == SAMPLER else trainers_name(job)
    made = stamped_object(job, role, "apps/v1", "Deployment", name, {"spec": spec})
    return recorded(made, role, sampler_part(job, split) if role == SAMPLER else trainer_part(job, split))


def _checked_template(job: RLJob, role: str, split: Split, *, bare: bool = False) -> dict[str, Any]:
    name, longest = str(job.metadata["name"]), _LONGEST_NAME[job.spec.trainer.kind]
    if len(name) > longest or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise TemplateError(
            f"metadata.name {name!r} can't name Services and StatefulSets: write at most {longest} lower-case letters, "
            f"digits and dashes, a letter first"
        )
    # Said only where it is so: whoever stands in for the maker of templates need not know of it.
    return pod_template(job, role, split, bare=True) if bare else pod_template(job, role, split)
