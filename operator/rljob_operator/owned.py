"""What all objects of a job have in common: labels by which they are found, and an owner that takes them along when it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_operator import queueing
from rljob_operator.drift import stamped
from rljob_operator.gate import ROLE_LABEL, SAMPLER, TRAINER, UID_LABEL
from rljob_operator.template import labels_of
from rljob_planner.api.spec import RLJob


def selector_of(job: RLJob, role: str) -> dict[str, str]:
    """The labels that select a role's pods."""
    # The uid, not the name: pods of an earlier job of the same name, still terminating, are none of ours.
    return {UID_LABEL: str(job.metadata["uid"]), ROLE_LABEL: role}


def service_port(port: int, name: str) -> dict[str, Any]:
    """A port of a Service that leads to the same port of the pods."""
    return {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}


def stamped_object(
    job: RLJob, role: str, api_version: str, kind: str, name: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    """An object of a job with the digest of its desired state."""
    made = head(job, role, api_version, kind, name)
    if role in (SAMPLER, TRAINER) and kind in ("Deployment", "StatefulSet"):
        made["metadata"]["labels"] |= queueing.labels_of(job)
    return stamped({**made, **body})


def head(job: RLJob, role: str | None, api_version: str, kind: str, name: str) -> dict[str, Any]:
    """Type, name, labels and owner of an object of a job; ``role`` is None for what belongs to none."""
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
