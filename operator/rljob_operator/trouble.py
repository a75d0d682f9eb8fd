"""What the operator says on a job for which a pass can't be run: the words, and where they go.

An error that only the operator's log shows looks to the owner of a job like an operator that does nothing. So a pass that
keeps failing ends in the condition ``Degraded`` of its job, written into the status as the API server holds it, since that
status may be the very thing that can't be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from rljob_operator.cluster import ClusterError
from rljob_operator.rebalance import timestamp
from rljob_operator.status import Verdict
from rljob_planner.api.status import ConditionType

NAME_TAKEN = "NameTaken"
"""Reason of ``Planned`` while the name of a child belongs to another object; every job made anew in haste passes through it."""


def owned_by(obj: Mapping[str, Any], uid: str) -> bool:
    """Whether the job with ``uid`` controls an object."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


def taken(strangers: Iterable[Mapping[str, Any]]) -> ClusterError:
    """The refusal to take over objects of somebody else that have the names of children."""
    return ClusterError(422, NAME_TAKEN, ", ".join(_whose(obj) for obj in strangers))


def _whose(obj: Mapping[str, Any]) -> str:
    owners = [
        f"{o.get('kind')} {o.get('name')}, uid {o.get('uid')}" for o in obj["metadata"].get("ownerReferences") or ()
    ]
    name = f"{obj.get('kind', 'object')} {obj['metadata']['name']}"
    return f"{name} (of {'; '.join(owners)})" if owners else f"{name} (of no owner)"


def in_the_way(error: ClusterError) -> bool:
    """Whether a child is refused since an object of that name is there that is none of the job's, or can't become it.

    A selector never changes, and two controllers own nothing together.
    """
    if error.reason == NAME_TAKEN:
        return True
    if "admission webhook" in error.message:
        # Kueue, say, has immutable fields of its own.
        return False
    return "field is immutable" in error.message or "Controller set to true" in error.message


def is_passing(error: Exception) -> bool:
    """Whether an error lies with the API server (unreachable, overloaded), which then can't be told of it either."""
    return isinstance(error, ClusterError) and (error.status in (0, 429) or error.status >= 500)


def failed(error: Exception) -> Verdict:
    """The verdict on a job whose passes fail again and again."""
    what = error.message if isinstance(error, ClusterError) else f"{type(error).__name__}: {error}"
    return Verdict(
        True,
        "PassFailed",
        f"the operator can't go on with this job: {what}; it tries again by itself and changes nothing until then; "
        "if the message names no cause that you can remove, look at the operator's log",
    )


def refused_at_start(error: ClusterError) -> Verdict:
    """The verdict for ``Planned`` on a trial pod that the API server refuses before anything was created."""
    if "exceeded quota" in error.message:
        return Verdict(
            False, "QuotaExceeded", f"{error.message}: raise the quota, or free what uses it; nothing was created"
        )
    return Verdict(
        False,
        "InvalidTemplate",
        f"a pod made from the template is refused: {error.message}; correct the template, nothing was created",
    )


def refused(error: ClusterError) -> Verdict:
    """The verdict for ``Planned`` on children that the API server refuses after the job was planned, as by an edited template."""
    if error.status == 403:
        return Verdict(
            False,
            "ChildrenForbidden",
            f"the API server forbids to write the job's children: {error.message}; check the operator's role, the namespace "
            "and its policies. What runs is left as it is",
        )
    if in_the_way(error):
        return Verdict(
            False,
            NAME_TAKEN,
            f"an object that is none of this job's has the name of one of its children: {error.message}; if an earlier job left "
            "it and it is being deleted, this ends by itself, else delete it or give the job another name",
        )
    return Verdict(
        False,
        "InvalidTemplate",
        f"the API server refuses the job's children: {error.message}; correct the template. What runs is left as it is",
    )


def invalid_spec(error: ValidationError) -> Verdict:
    """The verdict for ``Planned`` on a spec that the API server took and the operator can't."""
    return Verdict(False, "InvalidSpec", f"{_first(error)}; the job is left as it is until the spec is corrected")


def unreadable_status(error: ValidationError, namespace: str, name: str) -> Verdict:
    """The verdict on a job whose status is of another version, or was written by somebody else."""
    return Verdict(
        True,
        "StatusUnreadable",
        f"status.{_first(error)}; the job is left as it is. Run the version of the operator that wrote the status, or "
        f"let this one plan anew: kubectl -n {namespace} patch rljob {name} --subresource=status --type=merge "
        "-p '{\"status\":null}'",
    )


def degraded(raw: Mapping[str, Any], verdict: Verdict, now_s: float) -> dict[str, Any]:
    """The status of ``raw`` with ``verdict`` as its condition ``Degraded``, all else as it is; the same if it is there."""
    found = dict(raw.get("status") or {})
    kind = ConditionType.DEGRADED.value
    conditions = [c for c in found.get("conditions") or () if isinstance(c, Mapping)]
    old = next((c for c in conditions if c.get("type") == kind), {})
    text = str(verdict.status)
    new = {
        "type": kind,
        "status": text,
        "reason": verdict.reason,
        "message": verdict.message,
        "lastTransitionTime": old.get("lastTransitionTime") if old.get("status") == text else timestamp(now_s),
        "observedGeneration": raw["metadata"].get("generation", 0),
    }
    if new == old:
        return found
    return {**found, "conditions": [*(c for c in conditions if c.get("type") != kind), new]}


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
