"""From the user's pod template to the pods of a role.

The template stays the user's: what they wrote is kept, and what the operator needs is added, so that a template that runs by
itself runs here. Where both speak of the same thing and disagree, the job is refused with the words to write instead; the
one exception is the GPUs of the first container, which follow the split and are replaced (``template_notes`` says so).

Nothing that changes in a move is in the result: a change of a pod template rolls all pods. What moves is in the layout.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_operator import queueing, serving, width
from rljob_operator.eligibility import nodes_of, template_of, tolerations_of
from rljob_operator.engines import ENGINES
from rljob_operator.gate import GATE, MANAGED_BY_LABEL, NAME_LABEL, ROLE_LABEL, SAMPLER, TRAINER, UID_LABEL, pod_gpus
from rljob_operator.quantity import QuantityError, quantity
from rljob_planner.api.spec import RLJob
from rljob_planner.split import Split

LAYOUT_VOLUME = "rljob-layout"
"""Name of the volume that carries the layout ConfigMap."""

LAYOUT_DIRECTORY = "/etc/rljob"
"""Where containers see the layout. The directory is mounted, since a subPath never updates."""

_HOSTNAME = "kubernetes.io/hostname"

_REFUSED = {
    "nodeName": (
        "pins the pods to a node past the scheduler, and so past the budget: use a nodeSelector on kubernetes.io/hostname"
    ),
    "resourceClaims": (
        "may bring GPUs that can't be counted against spec.gpus: ask for devices by extended resources instead"
    ),
    "activeDeadlineSeconds": "is not allowed in pods that are kept running: remove it; the job ends after workload.steps",
    "ephemeralContainers": "can't be part of a template: remove it",
}


class TemplateError(ValueError):
    """A job whose name or pod template can't be made into children; the message says what to write instead."""


def pod_template(job: RLJob, role: str, split: Split, *, bare: bool = False) -> dict[str, Any]:
    """The pod template of a role's children: the user's, with what the operator needs added.

    Added: labels, the budget gate, the GPUs of the first container, environment and layout volume in all containers,
    node selector and tolerations of the role's nodes, a sampler's grace period, and what its engine needs (``serving``). ``bare`` leaves the
    last out, as the versions did that kept no record of templates. Raises TemplateError.
    """
    try:
        return _pod_template(job, role, split, bare)
    except TemplateError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TemplateError(f"spec.{role}.template can't be read as a PodTemplateSpec ({error}): correct it") from error


def _pod_template(job: RLJob, role: str, split: Split, bare: bool) -> dict[str, Any]:
    template = template_of(job.spec, role)
    refuse(f"spec.{role}.template", template)
    unfit = queueing.refusal(job) or width.refusal(
        role, template, replica_gpus(split, role), split.samplers.tensor_parallel
    )
    if unfit is not None:
        raise TemplateError(unfit)
    metadata = template.get("metadata") or {}
    spec: dict[str, Any] = {**template["spec"]}
    where = f"spec.{role}.template"
    spec["containers"] = [_container(job, role, split, c) for c in spec["containers"]]
    spec["containers"][0] = _with_gpus(job, role, split, spec["containers"][0])
    if spec.get("initContainers"):
        spec["initContainers"] = [_container(job, role, split, c) for c in spec["initContainers"]]
    spec["schedulingGates"] = [g for g in spec.get("schedulingGates") or () if g.get("name") != GATE] + [{"name": GATE}]
    spec["volumes"] = [*(spec.get("volumes") or ()), layout_volume(job)]
    nodes = nodes_of(job.spec, role)
    selector = merged(
        spec.get("nodeSelector") or {}, nodes.selector, f"{where}.spec.nodeSelector", "the selector of the role's nodes"
    )
    if selector:
        spec["nodeSelector"] = selector
    spec["tolerations"] = tolerations_of(job.spec, role)
    spec |= _packing(spec)
    annotations = dict(metadata.get("annotations") or {})
    if role == SAMPLER:
        annotations |= _with_engine(job, split, spec, annotations, bare=bare or not job.spec.sampler.engine_defaults)
    labels = merged(
        metadata.get("labels") or {}, labels_of(job, role), f"{where}.metadata.labels", "the operator's labels"
    )
    labels = merged(labels, queueing.labels_of(job), f"{where}.metadata.labels", "the RLJob's own label")
    result: dict[str, Any] = {"metadata": {"labels": labels}, "spec": spec}
    if annotations:
        result["metadata"]["annotations"] = annotations
    if metadata.get("finalizers"):
        result["metadata"]["finalizers"] = metadata["finalizers"]
    if pod_gpus(result, nodes.gpu_resource) != replica_gpus(split, role):
        raise TemplateError(
            f"{where}: the pod would hold {pod_gpus(result, nodes.gpu_resource)} GPUs instead of the "
            f"{replica_gpus(split, role)} of a {role} replica: only the first container may ask for {nodes.gpu_resource}, "
            f"remove the requests of the others"
        )
    return result


def _with_engine(
    job: RLJob, split: Split, spec: dict[str, Any], annotations: Mapping[str, Any], *, bare: bool
) -> dict[str, str]:
    """Gives a sampler's pod spec its grace period and, unless ``bare``, what its engine needs; returns annotations to add."""
    engine, container = ENGINES[job.spec.sampler.engine], spec["containers"][0]
    drain, stated = math.ceil(job.spec.sampler.drain_timeout_s), spec.get("terminationGracePeriodSeconds")
    if bare:
        if stated is None:
            spec["terminationGracePeriodSeconds"] = drain + serving.MARGIN_S
        return {}
    container = serving.with_hook(container, engine, stated)
    if stated is None:
        spec["terminationGracePeriodSeconds"] = serving.grace_s(container, engine, drain)
    container = serving.with_defaults(
        container,
        engine,
        shutdown=drain if stated is None else serving.shutdown_s(container, stated),
        tensor_parallel=split.samplers.tensor_parallel,
        host_network=bool(spec.get("hostNetwork")),
    )
    spec["containers"] = [container, *spec["containers"][1:]]
    return serving.scraped(container, engine, annotations)


def _packing(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What makes the scheduler fill nodes that jobs already use, so that whole nodes stay free for the wide pods of this job and others.

    By itself the scheduler spreads the pods of a workload over the nodes: eight samplers of one GPU then keep a trainer of eight from
    all eight nodes, although seven would do. The preference for company works against that; it counts pods of all RLJobs, since what
    one job leaves whole another can use. An own constraint of the pod replaces the scheduler's spreading; this one counts nothing.
    A template that says how its pods shall spread is obeyed instead.
    """
    affinity = dict(spec.get("affinity") or {})
    if spec.get("topologySpreadConstraints") or affinity.get("podAntiAffinity"):
        return {}
    company = {
        "topologyKey": _HOSTNAME,
        "namespaceSelector": {},
        "labelSelector": {"matchExpressions": [{"key": ROLE_LABEL, "operator": "In", "values": [SAMPLER, TRAINER]}]},
    }
    beside = dict(affinity.get("podAffinity") or {})
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    beside[preferred] = [*(beside.get(preferred) or ()), {"weight": 100, "podAffinityTerm": company}]
    nothing = {"matchLabels": {ROLE_LABEL: "none"}}
    no_spreading = {
        "maxSkew": 1,
        "topologyKey": _HOSTNAME,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": nothing,
    }
    return {"affinity": {**affinity, "podAffinity": beside}, "topologySpreadConstraints": [no_spreading]}


def template_notes(job: RLJob, split: Split) -> tuple[str, ...]:
    """Where the operator replaces what the user wrote, as sentences for people; empty if it only adds."""
    notes = []
    for role in ("sampler", "trainer"):
        resource, gpus = nodes_of(job.spec, role).gpu_resource, replica_gpus(split, role)
        containers = (template_of(job.spec, role).get("spec") or {}).get("containers") or ()
        resources = (containers[0].get("resources") or {}) if containers else {}
        written = [str(v) for k in ("requests", "limits") if (v := (resources.get(k) or {}).get(resource)) is not None]
        if any(not _is_count(value, gpus) for value in written):
            notes.append(
                f"spec.{role}.template asks for {written[0]} {resource}; its pods get {gpus}, the GPUs of a {role} replica: "
                f"set spec.{role}.gpusPerReplica to choose"
            )
    return (*notes, *_engine_notes(job, split))


def _engine_notes(job: RLJob, split: Split) -> Iterator[str]:
    """Which arguments are left out since they would go against what the user wrote."""
    template, engine = template_of(job.spec, SAMPLER), ENGINES[job.spec.sampler.engine]
    containers = (template.get("spec") or {}).get("containers") or ()
    if not containers or not job.spec.sampler.engine_defaults:
        return
    container = _container(job, SAMPLER, split, containers[0])
    over = serving.running_over(container, engine)
    flag, limit = engine.max_running.names[0], engine.batch_tokens
    if over is not None:
        yield (
            f"spec.sampler.template says {limit[0]} {over[0]}, with which {engine.title} would not start for the {over[1]} running samples of the plan, "
            f"so that {flag} is left out: write a larger one, or sampler.maxRunning"
        )


def labels_of(job: RLJob, role: str) -> dict[str, str]:
    """The labels by which pods are found, counted and scraped."""
    return {
        NAME_LABEL: str(job.metadata["name"]),
        ROLE_LABEL: role,
        UID_LABEL: str(job.metadata["uid"]),
        MANAGED_BY_LABEL: "rljob-operator",
    }


def replica_gpus(split: Split, role: str) -> int:
    """GPUs of one replica of a role."""
    return split.samplers.gpus_per_replica if role == SAMPLER else split.trainers.gpus_per_replica


def refuse(where: str, template: Mapping[str, Any]) -> None:
    """Raises TemplateError for what no pod of a job may say; ``where`` is the template's path in the RLJob."""
    spec = template.get("spec")
    if not isinstance(spec, Mapping) or not spec.get("containers"):
        raise TemplateError(
            f"{where} has no containers: write a PodTemplateSpec, with at least one under spec.containers"
        )
    if not all(isinstance(c, Mapping) for c in [*spec["containers"], *(spec.get("initContainers") or ())]):
        raise TemplateError(f"{where}: each container must be an object with a name and an image")
    for field, why in _REFUSED.items():
        if spec.get(field):
            raise TemplateError(f"{where}.spec.{field} {why}")
    for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
        if (container.get("resources") or {}).get("claims"):
            raise TemplateError(
                f"{where}, container {container.get('name')}: resources.claims {_REFUSED['resourceClaims']}"
            )
    if spec.get("restartPolicy") not in (None, "Always"):
        raise TemplateError(
            f"{where}.spec.restartPolicy is {spec['restartPolicy']}, but pods of a fleet are restarted: remove it"
        )
    if any(volume.get("name") == LAYOUT_VOLUME for volume in spec.get("volumes") or ()):
        raise TemplateError(
            f"{where} has a volume {LAYOUT_VOLUME}, which the operator adds by itself: remove or rename it"
        )


def layout_volume(job: RLJob) -> dict[str, Any]:
    """The volume with the layout ConfigMap, for a pod spec."""
    return {"name": LAYOUT_VOLUME, "configMap": {"name": f"{job.metadata['name']}-layout", "optional": False}}


def _container(job: RLJob, role: str, split: Split, container: Mapping[str, Any]) -> dict[str, Any]:
    where = f"spec.{role}.template, container {container.get('name')}"
    values = base_environment(job, role)
    if role == SAMPLER:
        values["RLJOB_TENSOR_PARALLEL"] = str(split.samplers.tensor_parallel)
        values["RLJOB_MAX_RUNNING"] = str(split.samplers.max_running)
    return with_layout(where, with_environment(where, container, values))


def base_environment(job: RLJob, role: str) -> dict[str, str]:
    """The environment that every container of a job sees."""
    return {
        "RLJOB_NAME": str(job.metadata["name"]),
        "RLJOB_NAMESPACE": str(job.metadata["namespace"]),
        "RLJOB_ROLE": role,
        "RLJOB_UID": str(job.metadata["uid"]),
    }


def with_environment(where: str, container: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """The container with variables that the template may not set itself; raises TemplateError, which names ``where``."""
    env = list(container.get("env") or ())
    counts = Counter(str(variable.get("name")) for variable in env)
    taken = sorted(counts.keys() & values.keys())
    if taken:
        raise TemplateError(f"{where} sets {', '.join(taken)}, which the operator sets by itself: remove it")
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise TemplateError(f"{where} sets {', '.join(twice)} more than once: keep one")
    # $(VAR) sees only what stands before it, so ours come first.
    return {**container, "env": [*({"name": name, "value": value} for name, value in values.items()), *env]}


def with_layout(where: str, container: Mapping[str, Any]) -> dict[str, Any]:
    """The container with the layout mounted; raises TemplateError, which names ``where``, if the place is taken."""
    mounts = list(container.get("volumeMounts") or ())
    if any(str(mount.get("mountPath", "")).rstrip("/") == LAYOUT_DIRECTORY for mount in mounts):
        raise TemplateError(
            f"{where} mounts something at {LAYOUT_DIRECTORY}, where the layout goes: choose another path"
        )
    layout = {"name": LAYOUT_VOLUME, "mountPath": LAYOUT_DIRECTORY, "readOnly": True}
    return {**container, "volumeMounts": [*mounts, layout]}


def _with_gpus(job: RLJob, role: str, split: Split, container: Mapping[str, Any]) -> dict[str, Any]:
    resources = dict(container.get("resources") or {})
    for kind in ("requests", "limits"):
        own = {nodes_of(job.spec, role).gpu_resource: str(replica_gpus(split, role))}
        resources[kind] = {**(resources.get(kind) or {}), **own}
    return {**container, "resources": resources}


def merged(theirs: Mapping[str, str], ours: Mapping[str, str], where: str, what: str) -> dict[str, str]:
    """Both together; raises TemplateError where they disagree."""
    for key, value in ours.items():
        if theirs.get(key, value) != value:
            raise TemplateError(
                f"{where} sets {key} to {theirs[key]!r}, but {what} to {value!r}: remove one of them, or make them agree"
            )
    return {**theirs, **ours}


def _is_count(value: str, gpus: int) -> bool:
    try:
        return quantity(value) == gpus
    except QuantityError:
        return False
