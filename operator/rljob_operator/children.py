"""The objects that a job is made of, as they should be: desired states for server-side apply.

Two workloads, one a role, each with a headless Service, and the ConfigMap with the layout. All carry the job's labels and an
owner reference, so that deleting the RLJob removes them without the operator. Workloads never surge: a new pod's GPUs are
there only when an old pod's are gone, and the budget gate would hold it back anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rljob_operator.drift import edited_fields, stamped, workload_differs
from rljob_operator.gate import ROLE_LABEL, SAMPLER, TRAINER, UID_LABEL
from rljob_operator.layout import DEFAULT_PORT, LAYOUT_FILE, first_port
from rljob_operator.template import TemplateError, labels_of, pod_template, template_notes
from rljob_planner.api.spec import RLJob, TrainerKind
from rljob_planner.split import Split

__all__ = [
    "TemplateError",
    "another_autoscaler",
    "edited_fields",
    "layout_config_map",
    "layout_name",
    "rendezvous",
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


def sampler_workload(job: RLJob, split: Split, replicas: int) -> dict[str, Any]:
    """The samplers' Deployment with ``replicas`` pods; of the split, only the shape of a replica is used.

    Raises TemplateError if the job's name or template can't be made into one.
    """
    return _deployment(job, SAMPLER, split, replicas)


def trainer_workload(job: RLJob, split: Split, replicas: int) -> dict[str, Any]:
    """The trainers' Deployment or StatefulSet with ``replicas`` pods, as ``spec.trainer.kind`` says.

    A StatefulSet starts and stops its pods in parallel: a trainer waits for all of its pods, so that one by one would wait
    forever. Raises TemplateError if the job's name or template can't be made into one.
    """
    if job.spec.trainer.kind is TrainerKind.DEPLOYMENT:
        return _deployment(job, TRAINER, split, replicas)
    return _stamped(
        job,
        TRAINER,
        "apps/v1",
        "StatefulSet",
        trainers_name(job),
        {
            "spec": {
                "replicas": replicas,
                "serviceName": trainers_name(job),
                "podManagementPolicy": "Parallel",
                "revisionHistoryLimit": 2,
                "minReadySeconds": 0,
                "updateStrategy": {"type": "RollingUpdate"},
                "selector": {"matchLabels": _selector(job, TRAINER)},
                "template": _checked_template(job, TRAINER, split),
            }
        },
    )


def layout_config_map(job: RLJob, text: str) -> dict[str, Any]:
    """The ConfigMap that holds ``layout.json``; mounted as a directory, so that it follows changes."""
    return {**_head(job, None, "v1", "ConfigMap", layout_name(job)), "data": {LAYOUT_FILE: text}}


def services(job: RLJob) -> tuple[dict[str, Any], ...]:
    """The headless Services of samplers and trainers.

    Trainers are published before they are ready, since they become ready only after they have met.
    """
    samplers: dict[str, Any] = {
        "clusterIP": "None",
        "selector": _selector(job, SAMPLER),
        "ports": [_service_port(first_port(job.spec.sampler.template.get("spec") or {}, DEFAULT_PORT), "http")],
    }
    trainers: dict[str, Any] = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _selector(job, TRAINER),
        "ports": [_service_port(int(rendezvous(job).rpartition(":")[2]), "rendezvous")],
    }
    return (
        _stamped(job, SAMPLER, "v1", "Service", samplers_name(job), {"spec": samplers}),
        _stamped(job, TRAINER, "v1", "Service", trainers_name(job), {"spec": trainers}),
    )


def trial_pods(job: RLJob, split: Split) -> tuple[dict[str, Any], ...]:
    """One Pod a role, samplers' first, for a server-side dry run (create, ``dryRun=All``, ``fieldValidation=Strict``).

    A Deployment's dry run skips pod admission, so a pod is tried before anything is created. The trial pods carry the budget
    gate like all others: even if one came to exist, it would never be scheduled. Raises TemplateError.
    """
    pods = []
    for role in (SAMPLER, TRAINER):
        template = _checked_template(job, role, split)
        head = _head(job, role, "v1", "Pod", f"{job.metadata['name']}-trial-{role}")
        pods.append({**head, "metadata": {**template["metadata"], **head["metadata"]}, "spec": template["spec"]})
        # A generated name can't be taken by a pod of somebody else.
        pods[-1]["metadata"]["generateName"] = pods[-1]["metadata"].pop("name") + "-"
        pods[-1]["metadata"]["labels"] = template["metadata"]["labels"]
    return tuple(pods)


def another_autoscaler(hpas: Iterable[Mapping[str, Any]], name: str) -> str | None:
    """Name of the HorizontalPodAutoscaler that scales the child ``name``, None if none does.

    ``hpas`` are those of the job's namespace (KEDA's ScaledObjects appear there as well). Two that scale one workload fight.
    """
    for hpa in hpas:
        target = (hpa.get("spec") or {}).get("scaleTargetRef") or {}
        if target.get("kind") in ("Deployment", "StatefulSet") and target.get("name") == name:
            return str(hpa["metadata"]["name"])
    return None


def _deployment(job: RLJob, role: str, split: Split, replicas: int) -> dict[str, Any]:
    return _stamped(
        job,
        role,
        "apps/v1",
        "Deployment",
        samplers_name(job) if role == SAMPLER else trainers_name(job),
        {
            "spec": {
                "replicas": replicas,
                "revisionHistoryLimit": 2,
                "minReadySeconds": 0,
                "progressDeadlineSeconds": _PROGRESS_DEADLINE_S,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
                "selector": {"matchLabels": _selector(job, role)},
                "template": _checked_template(job, role, split),
            }
        },
    )


def _checked_template(job: RLJob, role: str, split: Split) -> dict[str, Any]:
    name, longest = str(job.metadata["name"]), _LONGEST_NAME[job.spec.trainer.kind]
    if len(name) > longest or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise TemplateError(
            f"metadata.name {name!r} can't name Services and StatefulSets: write at most {longest} lower-case letters, "
            f"digits and dashes, a letter first"
        )
    return pod_template(job, role, split)


def _selector(job: RLJob, role: str) -> dict[str, str]:
    # The uid, not the name: pods of an earlier job of the same name, still terminating, are none of ours.
    return {UID_LABEL: str(job.metadata["uid"]), ROLE_LABEL: role}


def _service_port(port: int, name: str) -> dict[str, Any]:
    return {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}


def _stamped(job: RLJob, role: str, api_version: str, kind: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return stamped({**_head(job, role, api_version, kind, name), **body})


def _head(job: RLJob, role: str | None, api_version: str, kind: str, name: str) -> dict[str, Any]:
    labels = labels_of(job, role or "")
    if role is None:
        del labels[ROLE_LABEL]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": str(job.metadata["namespace"]),
            "labels": labels,
            "ownerReferences": [
                {
                    "apiVersion": job.api_version,
                    "kind": job.kind,
                    "name": str(job.metadata["name"]),
                    "uid": str(job.metadata["uid"]),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
    }
