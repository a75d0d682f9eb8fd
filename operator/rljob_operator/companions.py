"""What a job runs beside samplers and trainers: the driver's pod and the fleet of sandboxes, as desired objects.

Neither holds GPUs: their pods need no budget gate, and a template that asks for GPUs is refused.

Sandboxes run what a model wrote, so they are shut in unless the template says otherwise: no service-account token, no list of the
namespace's Services in the environment, no root, no further privileges, and a NetworkPolicy under which they are reached by the job
alone and reach nobody. Not even DNS is open by default: who may reach nothing has nothing to look up, and a resolver is a way out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rljob_operator.eligibility import gpu_resources
from rljob_operator.gate import ROLE_LABEL, SAMPLER, TRAINER, UID_LABEL, pod_gpus
from rljob_operator.layout import DEFAULT_PORT, first_port
from rljob_operator.owned import head, selector_of, service_port, stamped_object
from rljob_operator.quantity import QuantityError
from rljob_operator.template import (
    TemplateError,
    base_environment,
    labels_of,
    layout_volume,
    merged,
    refuse,
    with_environment,
    with_layout,
)
from rljob_operator.upgrade import driver_part, recorded, sandbox_part
from rljob_planner.api.companions import SandboxNetwork
from rljob_planner.api.spec import RLJob

DRIVER = "driver"
"""The role of the orchestrator's pod."""

SANDBOX = "sandbox"
"""The role of pods that environments run in."""

_GRACE_TURNS = 4
"""Mean turns that a sandbox may take to end what it runs."""
_SHORTEST_GRACE_S, _LONGEST_GRACE_S = 30, 3600
_PROGRESS_DEADLINE_S = 3600


def driver_name(job: RLJob) -> str:
    """Name of the driver's Deployment and Service: ``<job>-driver``."""
    return f"{job.metadata['name']}-driver"


def sandboxes_name(job: RLJob) -> str:
    """Name of the sandboxes' Deployment, Service and NetworkPolicy: ``<job>-sandboxes``."""
    return f"{job.metadata['name']}-sandboxes"


def has_sandboxes(job: RLJob) -> bool:
    """Whether the operator runs the job's sandboxes."""
    return job.spec.sandbox is not None and job.spec.sandbox.template is not None


def companions(job: RLJob, *, drivers: int, sandboxes: int) -> tuple[dict[str, Any], ...]:
    """All companions of a job in the order in which to apply them: a policy before the pods that it is for.

    ``drivers`` is 1 while the job should run, else 0; ``sandboxes`` the wished sandbox pods. Raises TemplateError.
    """
    found: list[dict[str, Any]] = []
    if has_sandboxes(job):
        policy = sandbox_policy(job)
        found += [] if policy is None else [policy]
        found += [_service(job, SANDBOX), sandbox_workload(job, sandboxes)]
    if job.spec.driver is not None:
        found += [_service(job, DRIVER), driver_workload(job, drivers)]
    return tuple(found)


def unwanted(job: RLJob) -> tuple[dict[str, Any], ...]:
    """Type and name of the companions that the spec no longer asks for and that may be there from before."""
    found: list[tuple[str, str, str]] = []
    if not has_sandboxes(job):
        found += [("apps/v1", "Deployment", sandboxes_name(job)), ("v1", "Service", sandboxes_name(job))]
    if not has_sandboxes(job) or sandbox_policy(job) is None:
        found.append(("networking.k8s.io/v1", "NetworkPolicy", sandboxes_name(job)))
    if job.spec.driver is None:
        found += [("apps/v1", "Deployment", driver_name(job)), ("v1", "Service", driver_name(job))]
    return tuple(
        {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": str(job.metadata["namespace"])}}
        for api, kind, name in found
    )


def driver_workload(job: RLJob, replicas: int) -> dict[str, Any]:
    """The driver's Deployment: two drivers would give two sets of orders, so the old one goes before the new one comes."""
    return _deployment(job, DRIVER, replicas, {"type": "Recreate"})


def sandbox_workload(job: RLJob, replicas: int) -> dict[str, Any]:
    """The sandboxes' Deployment with ``replicas`` pods."""
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    return _deployment(job, SANDBOX, replicas, rolling)


def sandbox_policy(job: RLJob) -> dict[str, Any] | None:
    """The NetworkPolicy of the sandboxes; None where the spec leaves that to the user (``network: open``)."""
    sandbox = job.spec.sandbox
    if sandbox is None or sandbox.network is SandboxNetwork.OPEN:
        return None
    own = {
        "podSelector": {
            "matchLabels": {UID_LABEL: str(job.metadata["uid"])},
            "matchExpressions": [{"key": ROLE_LABEL, "operator": "In", "values": [DRIVER, SAMPLER, TRAINER]}],
        }
    }
    egress: list[dict[str, Any]] = []
    if sandbox.network is SandboxNetwork.JOB:
        dns = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
        ports = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
        egress = [{"to": [own]}, {"to": [dns], "ports": ports}]
    return stamped_object(
        job,
        SANDBOX,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        sandboxes_name(job),
        {
            "spec": {
                "podSelector": {"matchLabels": selector_of(job, SANDBOX)},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [own]}],
                "egress": egress,
            }
        },
    )


def companion_trials(job: RLJob) -> tuple[dict[str, Any], ...]:
    """One Pod a companion, for a server-side dry run; raises TemplateError."""
    roles = ([SANDBOX] if has_sandboxes(job) else []) + ([DRIVER] if job.spec.driver is not None else [])
    pods = []
    for role in roles:
        template = companion_template(job, role)
        own = head(job, role, "v1", "Pod", f"{job.metadata['name']}-trial-{role}-")
        own["metadata"]["generateName"] = own["metadata"].pop("name")
        own["metadata"]["labels"] = template["metadata"]["labels"]
        # No dry run is bound to a node: an operator that forgot the "dry" would leave a pod that nothing schedules.
        spec = {**template["spec"], "schedulingGates": [{"name": "rljob.dev/trial"}]}
        pods.append({**own, "metadata": {**template["metadata"], **own["metadata"]}, "spec": spec})
    return tuple(pods)


def companion_template(job: RLJob, role: str) -> dict[str, Any]:
    """The pod template of a companion: the user's, with labels, environment and, for the driver, the layout added.

    Raises TemplateError.
    """
    try:
        return _template(job, role)
    except TemplateError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TemplateError(f"spec.{role}.template can't be read as a PodTemplateSpec ({error}): correct it") from error


def _template(job: RLJob, role: str) -> dict[str, Any]:
    part = job.spec.driver if role == DRIVER else job.spec.sandbox
    template: Mapping[str, Any] = (part.template if part is not None else None) or {}
    where = f"spec.{role}.template"
    refuse(where, template)
    metadata, spec = template.get("metadata") or {}, dict(template["spec"])
    values = base_environment(job, role)
    for kind in ("initContainers", "containers"):
        if not spec.get(kind):
            continue
        made = []
        for container in spec[kind]:
            named = f"{where}, container {container.get('name')}"
            with_values = with_environment(named, container, values)
            made.append(with_layout(named, with_values) if role == DRIVER else _confined(with_values))
        spec[kind] = made
    if role == DRIVER:
        spec["volumes"] = [*(spec.get("volumes") or ()), layout_volume(job)]
    else:
        spec = _isolated(job, where, spec)
    labels = merged(
        metadata.get("labels") or {}, labels_of(job, role), f"{where}.metadata.labels", "the operator's labels"
    )
    result: dict[str, Any] = {"metadata": {"labels": labels}, "spec": spec}
    for kept in ("annotations", "finalizers"):
        if metadata.get(kept):
            result["metadata"][kept] = metadata[kept]
    _without_gpus(job, where, result)
    return result


def _isolated(job: RLJob, where: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A sandbox's pod spec with what shuts it in, where the template does not say otherwise."""
    sandbox, environment = job.spec.sandbox, job.spec.workload.environment
    if spec.get("hostNetwork") and sandbox is not None and sandbox.network is not SandboxNetwork.OPEN:
        raise TemplateError(
            f"{where}.spec.hostNetwork goes past the NetworkPolicy of sandbox.network {sandbox.network.value}: remove it, or "
            "write sandbox.network: open"
        )
    turn_s = 0.0 if environment is None else environment.seconds_per_turn
    grace_s = min(_LONGEST_GRACE_S, max(_SHORTEST_GRACE_S, math.ceil(_GRACE_TURNS * turn_s)))
    context = dict(spec.get("securityContext") or {})
    if "runAsUser" not in context:
        # Who names a user has said whether it is root.
        context.setdefault("runAsNonRoot", True)
    context.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_s,
        **spec,
        "securityContext": context,
    }


def _confined(container: Mapping[str, Any]) -> dict[str, Any]:
    context = dict(container.get("securityContext") or {})
    added = (context.get("capabilities") or {}).get("add") or ()
    if not context.get("privileged") and "SYS_ADMIN" not in added and "CAP_SYS_ADMIN" not in added:
        context.setdefault("allowPrivilegeEscalation", False)
        context["capabilities"] = {"drop": ["ALL"], **(context.get("capabilities") or {})}
    return {**container, "securityContext": context}


def _without_gpus(job: RLJob, where: str, template: Mapping[str, Any]) -> None:
    try:
        gpus = pod_gpus(template, gpu_resources(job.spec))
    except QuantityError as error:
        raise TemplateError(f"{where}: {error}") from error
    if gpus:
        raise TemplateError(
            f"{where} asks for {gpus} GPUs, which would count in no budget: remove the request; what needs GPUs is a sampler or a "
            "trainer"
        )


def _deployment(job: RLJob, role: str, replicas: int, strategy: Mapping[str, Any]) -> dict[str, Any]:
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": _PROGRESS_DEADLINE_S,
        "strategy": dict(strategy),
        "selector": {"matchLabels": selector_of(job, role)},
        "template": companion_template(job, role),
    }
    name = driver_name(job) if role == DRIVER else sandboxes_name(job)
    made = stamped_object(job, role, "apps/v1", "Deployment", name, {"spec": spec})
    return recorded(made, role, driver_part(job) if role == DRIVER else sandbox_part(job))


def _service(job: RLJob, role: str) -> dict[str, Any]:
    """A headless Service: the name of the driver, or of all sandboxes that are ready."""
    part = job.spec.driver if role == DRIVER else job.spec.sandbox
    template: Mapping[str, Any] = (part.template if part is not None else None) or {}
    spec: dict[str, Any] = {
        "clusterIP": "None",
        "selector": selector_of(job, role),
        "ports": [service_port(first_port(template.get("spec") or {}, DEFAULT_PORT), "main")],
    }
    if role == DRIVER:
        # A driver may become ready only after the pods that look for it have come.
        spec["publishNotReadyAddresses"] = True
    name = driver_name(job) if role == DRIVER else sandboxes_name(job)
    return stamped_object(job, role, "v1", "Service", name, {"spec": spec})
