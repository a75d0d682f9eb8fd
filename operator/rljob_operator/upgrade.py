"""Why a new version of the operator rolls no pods: a workload keeps the pod template that it runs.

A change of a pod template replaces all of a workload's pods, and what the operator adds to templates differs from version to version.
So each workload carries two annotations. The digest is that of the user's part: the template in the spec and the fields and labels of the RLJob that
go into pods, and nothing that a version of the operator thought of. The record is the template as it was applied, additions included.
While the digest of the spec stays the same, the recorded template is wished as it stands, and only what is outside of it (replicas, strategy,
labels, owner) follows this version. A change by the user makes another digest, and the template of this version is applied as a whole. A
workload without pods takes it too, since nothing can roll there: suspending and resuming a job brings its pods up to date.

The record, and not the live template, is what is kept: a live template may have been edited, and an edit of a template that an older version made
is still found and undone (``drift``). Server-side apply owns what it applies, so applying the record again changes no field and no owner.

Two kinds of workloads have no record to keep. Those of the version before there were records have the template that this version makes
as well, which a test holds fast, so that giving them the annotations rolls nothing, unless the user changed the spec meanwhile. No likeness
short of that is taken for the user's part: a field that the user has just removed looks there like an addition of an older version. And
templates of hundreds of kilobytes are not recorded, since annotations have an end.

Where pods must not run on as they are, as after a fix that closes a hole, ``TEMPLATE_EPOCHS`` is raised for their role: it is in
the digest. An older version takes no notice of what a newer one has recorded only if it is older than the records; all others keep the
template of the newer version.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rljob_operator import queueing
from rljob_operator.drift import APPLIED_ANNOTATION, edited_fields, stamped, workload_differs
from rljob_operator.eligibility import nodes_of, template_of
from rljob_operator.gate import GATE, SAMPLER, TRAINER
from rljob_planner.api.spec import RLJob
from rljob_planner.split import Split

DIGEST_ANNOTATION = "rljob.dev/template-digest"
"""Annotation of a workload: the digest of the user's part of its pod template."""

RECORD_ANNOTATION = "rljob.dev/template"
"""Annotation of a workload: its pod template as it was applied; JSON, deflated, in base64."""

TEMPLATE_EPOCHS: Mapping[str, int] = {SAMPLER: 1, TRAINER: 1, "driver": 1, "sandbox": 1}
"""By role. To raise one rolls, within the budget, all running pods of that role at the upgrade: only for what can't wait for the next
start of a job, and the changelog says so."""

LARGEST_RECORD_BYTES = 131_072
"""Longer records are left out: all annotations of an object together may have 256 KiB."""

_LARGEST_TEMPLATE_BYTES = 4_194_304
"""More than an object may have in etcd; whatever inflates to more is no record of ours."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """What is to be done to a workload, or another child, that is there."""

    desired: Json
    """What to apply: the desired state, with the template that the workload keeps."""
    differing: tuple[str, ...]
    """Paths of the fields that are otherwise, empty if there is nothing to do."""
    edited: tuple[str, ...]
    """Those of them that somebody else has edited."""
    rolls: bool
    """Whether its pods would be replaced."""


def sampler_part(job: RLJob, split: Split) -> Json:
    """The user's part of the samplers' pod template; of the split, the shape of a replica."""
    part = _fleet_part(job, SAMPLER, split.samplers.gpus_per_replica)
    part |= {"tensorParallel": split.samplers.tensor_parallel, "maxRunning": split.samplers.max_running}
    if _grace_is_free(part["template"]):
        part["drainTimeoutSeconds"] = job.spec.sampler.drain_timeout_s
    return part


def trainer_part(job: RLJob, split: Split) -> Json:
    """The user's part of the trainers' pod template; of the split, the shape of a replica."""
    return _fleet_part(job, TRAINER, split.trainers.gpus_per_replica)


def driver_part(job: RLJob) -> Json:
    """The user's part of the driver's pod template."""
    return {"template": None if job.spec.driver is None else job.spec.driver.template}


def sandbox_part(job: RLJob) -> Json:
    """The user's part of the sandboxes' pod template."""
    part: Json = {"template": None if job.spec.sandbox is None else job.spec.sandbox.template}
    environment = job.spec.workload.environment
    if environment is not None and _grace_is_free(part["template"] or {}):
        part["secondsPerTurn"] = environment.seconds_per_turn
    return part


def recorded(workload: Mapping[str, Any], role: str, part: Mapping[str, Any]) -> Json:
    """A stamped workload with the digest of the user's ``part`` and the record of its template.

    A part must say the same in all versions as long as the user says the same. What a later version lets the user add stands in it only
    where the user has added it.
    """
    template = workload["spec"]["template"]
    own = {DIGEST_ANNOTATION: _digest({**part, "epoch": TEMPLATE_EPOCHS[role]})}
    record = _record(template)
    if len(record) <= LARGEST_RECORD_BYTES:
        own[RECORD_ANNOTATION] = record
    metadata = workload["metadata"]
    return {**workload, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **own}}}


def change(live: Mapping[str, Any], desired: Json) -> Change:
    """What makes a child that is there what it should be; ``desired`` is what this version would make from nothing."""
    keeping = _keeping(live, desired)
    edited = tuple(path for path in edited_fields(live, keeping) if path not in _OWN_PATHS)
    if (live.get("spec") or {}).get("replicas") == 0:
        keeping = desired
    differing = workload_differs(live, keeping)
    digest = _annotation(live, DIGEST_ANNOTATION)
    rolls = any(path.startswith("spec.template") for path in differing) or (
        digest is not None and digest != _annotation(desired, DIGEST_ANNOTATION)
    )
    return Change(keeping, differing, edited, rolls)


def identity(desired: Mapping[str, Any]) -> str:
    """A word that differs where two desired states of a child do."""
    return f"{_annotation(desired, APPLIED_ANNOTATION)} {_annotation(desired, DIGEST_ANNOTATION)}"


_OWN_PATHS = tuple(f"metadata.annotations.{name}" for name in (DIGEST_ANNOTATION, RECORD_ANNOTATION))
"""A version without records leaves them out, and whoever takes them off has changed nothing that runs: written again without a word."""


def _keeping(live: Mapping[str, Any], desired: Json) -> Json:
    digest, record = _annotation(live, DIGEST_ANNOTATION), _annotation(live, RECORD_ANNOTATION)
    if record is None or digest is None or digest != _annotation(desired, DIGEST_ANNOTATION):
        return desired
    wished = desired["spec"]["template"]
    template = _template(record)
    if template is None or _text(template) == _text(wished) or not _fits(template, desired):
        return desired
    kept = {DIGEST_ANNOTATION: digest, RECORD_ANNOTATION: record}
    metadata = desired["metadata"]
    others = {k: v for k, v in metadata["annotations"].items() if k not in {APPLIED_ANNOTATION, *kept}}
    bare = {key: value for key, value in metadata.items() if key != "annotations"}
    if others:
        bare["annotations"] = others
    made = stamped({**desired, "metadata": bare, "spec": {**desired["spec"], "template": template}})
    return {**made, "metadata": {**made["metadata"], "annotations": {**made["metadata"]["annotations"], **kept}}}


def _fits(template: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Whether the workload may have a recorded template: one that its selector finds, and gated if its pods must be.

    What was written by hand is refused here, and not by the API server or, worse, by a budget that is exceeded.
    """
    spec = desired["spec"]
    gated = {"name": GATE} in (spec["template"]["spec"].get("schedulingGates") or ())
    least = {
        "metadata": {"labels": spec["selector"]["matchLabels"]},
        "spec": {"schedulingGates": [{"name": GATE}] if gated else []},
    }
    try:
        return bool(template["spec"]["containers"]) and not workload_differs(template, least)
    except (AttributeError, KeyError, TypeError):
        return False


def _fleet_part(job: RLJob, role: str, gpus: int) -> Json:
    nodes, labels = nodes_of(job.spec, role), queueing.labels_of(job)
    return {
        "template": template_of(job.spec, role),
        "nodeSelector": dict(nodes.selector),
        "tolerations": [t.model_dump(by_alias=True, exclude_none=True) for t in nodes.tolerations],
        "gpuResource": nodes.gpu_resource,
        "gpus": gpus,
        **({"labels": labels} if labels else {}),
    }


def _grace_is_free(template: Mapping[str, Any]) -> bool:
    return (template.get("spec") or {}).get("terminationGracePeriodSeconds") is None


def _record(template: Mapping[str, Any]) -> str:
    return _packed(_text(template))


@lru_cache(maxsize=512)
def _packed(text: str) -> str:
    """Kept, since each pass over a job asks for the same again."""
    return base64.b64encode(zlib.compress(text.encode())).decode()


def _template(record: str) -> Json | None:
    """The template of a record; None for what no version has written."""
    try:
        inflating = zlib.decompressobj()
        found = json.loads(inflating.decompress(base64.b64decode(record, validate=True), _LARGEST_TEMPLATE_BYTES))
    except (ValueError, binascii.Error, zlib.error):
        return None
    return found if isinstance(found, dict) else None


def _digest(part: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(part).encode()).hexdigest()[:16]


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _annotation(obj: Mapping[str, Any], name: str) -> str | None:
    found = ((obj.get("metadata") or {}).get("annotations") or {}).get(name)
    return None if found is None else str(found)
