"""Why a new version of the operator rolls no pods: a workload keeps the pod template that it runs.

A change of a pod template replaces all of a workload's pods, and what the operator adds to templates differs from version to version.
So each workload carries two annotations. The digest is that of the user's part: the template in the spec and the fields and labels of the RLJob that
go into pods, and nothing that a version of the operator thought of. The record is the template as it was applied, additions included.
While the digest of the spec stays the same, the recorded template is wished as it stands, and only what is outside of it (replicas, strategy,
labels, owner) follows this version. A change by the user makes another digest, and the template of this version is applied as a whole. A
workload without pods takes it too, since nothing can roll there: suspending and resuming a job brings its pods up to date.

The record, and not the live template, is what is kept: a live template may have been edited, and an edit of a template that an older version made
is still found and undone (``drift``). Server-side apply owns what it applies, so applying the record again changes no field and no owner.

The record is an annotation, so whoever may edit the workload can write another one, and it is read with that in mind. A seal beside the digest
is made of both: a record that does not go with its seal was edited, which is reported, and the template of this version is applied. The seal is
no secret. Whoever makes one for a record of his own has his template applied, as if he had made a Deployment, until the RLJob's is changed
the next time; so what budget, plan and selector count on is asked of every record: GPUs, gate and labels. Whatever does not fit, or can't even be
compared, is no record, and nothing in it can end a pass.

Two kinds of workloads have no record to keep. Those of the version before there were records have a template that this version can make
as well (``unrecorded``), which a test holds fast, so that giving them the annotations rolls nothing, unless the user changed the spec meanwhile. No likeness
short of that is taken for the user's part: a field that the user has just removed looks there like an addition of an older version. And
templates of hundreds of kilobytes are not recorded, since annotations have an end.

Where pods must not run on as they are, as after a fix that closes a hole, ``TEMPLATE_EPOCHS`` is raised for their role: it is in
the digest. An older version takes no notice of what a newer one has recorded only if it is older than the records; all others keep the
template of the newer version.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rljob_operator import queueing
from rljob_operator.drift import APPLIED_ANNOTATION, edited_fields, stamped, workload_differs
from rljob_operator.eligibility import nodes_of, template_of
from rljob_operator.gate import GATE, SAMPLER, TRAINER, pod_gpus
from rljob_planner.api.spec import EngineName, RLJob
from rljob_planner.split import Split

DIGEST_ANNOTATION = "rljob.dev/template-digest"
"""Annotation of a workload: the digest of the user's part of its pod template, a dot, and the seal of digest and record."""

RECORD_ANNOTATION = "rljob.dev/template"
"""Annotation of a workload: its pod template as it was applied; JSON, deflated, in base64."""

TEMPLATE_EPOCHS: Mapping[str, int] = {SAMPLER: 1, TRAINER: 1, "driver": 1, "sandbox": 1}
"""By role. To raise one rolls, within the budget, all running pods of that role at the upgrade: only for what can't wait for the next
start of a job, and the changelog says so."""

LARGEST_RECORD_BYTES = 131_072
"""Longer records are left out: all annotations of an object together may have 256 KiB."""

_LARGEST_TEMPLATE_BYTES = 4_194_304
"""More than an object may have in etcd; whatever inflates to more is no record of ours."""

_DEEPEST = 64
"""Levels of a record's JSON: several times those of a pod, and few enough for everything that walks through it."""

_LARGEST_KEPT_CHARS = 65_536
"""Longer templates are packed again each time: their number is the authors' to choose, and memory is shared."""

_UNFIT = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What comes of treating any JSON as a pod template."""

_OWN_LABELS = "rljob.dev/"

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
    if job.spec.sampler.engine is not EngineName.VLLM:
        part["engine"] = job.spec.sampler.engine.value
    if not job.spec.sampler.engine_defaults:
        part["engineDefaults"] = False
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
    record: str | None = _record(template)
    if record is not None and len(record) > LARGEST_RECORD_BYTES:
        record = None
    own = {DIGEST_ANNOTATION: sealed(_digest({**part, "epoch": TEMPLATE_EPOCHS[role]}), record)}
    if record is not None:
        own[RECORD_ANNOTATION] = record
    metadata = workload["metadata"]
    return {**workload, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **own}}}


def sealed(digest: str, record: str | None) -> str:
    """The digest of a user's part with the seal of it and of the record, None for a template that is not recorded."""
    return f"{digest}.{hashlib.sha256(f'{digest} {record or str()}'.encode()).hexdigest()[:16]}"


def change(live: Mapping[str, Any], desired: Json, unrecorded: Callable[[], Json] | None = None) -> Change:
    """What makes a child that is there what it should be; ``desired`` is what this version would make from nothing.

    ``unrecorded`` makes what the version before the records would have made, where that is something else.
    """
    keeping = _keeping(live, desired)
    if unrecorded is not None and all(_annotation(live, own) is None for own in _OWN):
        keeping = _as_before(live, desired, unrecorded())
    edited = tuple(path for path in edited_fields(live, keeping) if path not in _OWN_PATHS)
    if _is_forged(live):
        edited = (*edited, _RECORD_PATH)
    if (live.get("spec") or {}).get("replicas") == 0:
        keeping = desired
    differing = workload_differs(live, keeping)
    digest = _annotation(live, DIGEST_ANNOTATION)
    # What is applied in place of another template removes fields, which a comparison does not show.
    other = digest is not None and (
        _part(digest) != _part(_annotation(desired, DIGEST_ANNOTATION))
        or (_RECORD_PATH in edited and digest != _annotation(keeping, DIGEST_ANNOTATION))
    )
    rolls = other or any(path.startswith("spec.template") for path in differing)
    return Change(keeping, differing, edited, rolls)


def identity(desired: Mapping[str, Any]) -> str:
    """A word that differs where two desired states of a child do."""
    return f"{_annotation(desired, APPLIED_ANNOTATION)} {_annotation(desired, DIGEST_ANNOTATION)}"


_OWN = (DIGEST_ANNOTATION, RECORD_ANNOTATION)

_OWN_PATHS = tuple(f"metadata.annotations.{name}" for name in _OWN)
"""A version without records leaves them out, and whoever takes them off has changed nothing that runs: written again without a word."""

_RECORD_PATH = _OWN_PATHS[1]


def _is_forged(live: Mapping[str, Any]) -> bool:
    """Whether somebody else has changed the digest or the record. To take both off is what a version without them does."""
    digest = _annotation(live, DIGEST_ANNOTATION)
    return digest is not None and digest != sealed(_part(digest), _annotation(live, RECORD_ANNOTATION))


def _part(digest: str | None) -> str:
    return (digest or "").partition(".")[0]


def _keeping(live: Mapping[str, Any], desired: Json) -> Json:
    """The desired state with the recorded template, or as it is if there is none to keep; raises nothing, whatever the record holds."""
    digest, record = _annotation(live, DIGEST_ANNOTATION), _annotation(live, RECORD_ANNOTATION)
    if record is None or digest is None or _part(digest) != _part(_annotation(desired, DIGEST_ANNOTATION)):
        return desired
    if _is_forged(live):
        return desired
    try:
        template = _template(record)
        if template is None or _text(template) == _text(desired["spec"]["template"]) or not _fits(template, desired):
            return desired
        made = _with_template(desired, template, {DIGEST_ANNOTATION: digest, RECORD_ANNOTATION: record})
        # Whoever is given this compares it again: what can't be compared is found out here.
        workload_differs(live, made)
    except _UNFIT:
        return desired
    return made


def _as_before(live: Mapping[str, Any], desired: Json, before: Json) -> Json:
    """Which of two desired states a workload without annotations was made from: this version's, or that of the version before them."""
    applied = _annotation(live, APPLIED_ANNOTATION)
    for each in (desired, before):
        if applied is not None and applied == _annotation(each, APPLIED_ANNOTATION):
            return each
    for each in (desired, before):
        if not any(path.startswith("spec.template") for path in workload_differs(live, each)):
            return each
    return desired


def _with_template(desired: Json, template: Json, kept: Mapping[str, str]) -> Json:
    metadata = desired["metadata"]
    others = {k: v for k, v in metadata["annotations"].items() if k not in {APPLIED_ANNOTATION, *kept}}
    bare = {key: value for key, value in metadata.items() if key != "annotations"}
    if others:
        bare["annotations"] = others
    made = stamped({**desired, "metadata": bare, "spec": {**desired["spec"], "template": template}})
    return {**made, "metadata": {**made["metadata"], "annotations": {**made["metadata"]["annotations"], **kept}}}


def _fits(template: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Whether the workload may have a recorded template: one that its selector finds, gated if its pods must be, and of as many GPUs.

    What was written by hand is refused here, and not by the API server or, worse, by a budget that is exceeded. Raises one of ``_UNFIT``
    for what is no pod template.
    """
    spec = desired["spec"]
    wished = spec["template"]
    gated = {"name": GATE} in (wished["spec"].get("schedulingGates") or ())
    least = {
        "metadata": {"labels": spec["selector"]["matchLabels"]},
        "spec": {"schedulingGates": [{"name": GATE}] if gated else []},
    }
    if not template["spec"]["containers"] or workload_differs(template, least):
        return False
    own, labels = wished["metadata"]["labels"], template["metadata"]["labels"]
    # A label that another version adds is its own affair; one that both have is how pods are found and counted.
    if any(labels[key] != own[key] for key in labels.keys() & own.keys() if key.startswith(_OWN_LABELS)):
        return False
    devices = _devices(template) | _devices(wished)
    return all(pod_gpus(template, each) == pod_gpus(wished, each) for each in devices)


def _devices(template: Mapping[str, Any]) -> set[str]:
    """The extended resources that a pod asks for, GPUs under whatever name among them."""
    spec = template["spec"]
    asking = [c.get("resources") or {} for kind in ("containers", "initContainers") for c in spec.get(kind) or ()]
    named = [resources.get(kind) or {} for resources in asking for kind in ("requests", "limits")]
    return {str(name) for each in (*named, spec.get("overhead") or {}) for name in each if "/" in name}


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
    text = _text(template)
    return _packed(text) if len(text) <= _LARGEST_KEPT_CHARS else _pack(text)


@lru_cache(maxsize=512)
def _packed(text: str) -> str:
    """Kept, since each pass over a job asks for the same again."""
    return _pack(text)


def _pack(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode())).decode()


def _template(record: str) -> Json | None:
    """The template of a record; None for what no version has written."""
    try:
        inflating = zlib.decompressobj()
        found = json.loads(inflating.decompress(base64.b64decode(record, validate=True), _LARGEST_TEMPLATE_BYTES))
    except (ValueError, RecursionError, zlib.error):
        return None
    return found if isinstance(found, dict) and _is_shallow(found, _DEEPEST) else None


def _is_shallow(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_shallow(each, levels - 1) for each in inner)


def _digest(part: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(part).encode()).hexdigest()[:16]


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _annotation(obj: Mapping[str, Any], name: str) -> str | None:
    found = ((obj.get("metadata") or {}).get("annotations") or {}).get(name)
    return None if found is None else str(found)
