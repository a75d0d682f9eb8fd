"""Whether a pod of a role may run on a node, by the rules of the scheduler that a template can speak of.

The plan is made before any pod exists, so the operator has to answer what the scheduler will answer later: node selector,
required node affinity, taints. Where a rule is unknown (an operator of a newer Kubernetes), the answer is no: a plan that
leaves a node out is repaired by the next one, a plan that counts on a node that refuses leaves pods Pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_operator.gate import SAMPLER, TRAINER
from rljob_planner.api.pools import SamplerPool
from rljob_planner.api.spec import Nodes, RLJobSpec, Toleration

_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def nodes_of(spec: RLJobSpec, role: str) -> Nodes:
    """The nodes that may run a role: its own ``nodes`` replaces ``spec.nodes`` as a whole.

    Samplers that span pools tolerate what any pool asks for; which labels their nodes carry is said by each pool (``pool_of``).
    """
    if role == SAMPLER and spec.sampler.pools:
        tolerations = (*spec.nodes.tolerations, *(t for pool in spec.sampler.pools for t in pool.tolerations))
        return spec.nodes.model_copy(update={"selector": {}, "tolerations": tuple(dict.fromkeys(tolerations))})
    own = {SAMPLER: spec.sampler.nodes, TRAINER: spec.trainer.nodes}[role]
    return spec.nodes if own is None else own


def pool_of(spec: RLJobSpec, node: Mapping[str, Any]) -> SamplerPool | None:
    """The pool of the samplers that a node belongs to: the first whose labels it carries."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    carried = (p for p in spec.sampler.pools if all(labels.get(key) == value for key, value in p.selector.items()))
    return next(carried, None)


def template_of(spec: RLJobSpec, role: str) -> dict[str, Any]:
    """The pod template of a role, as the user wrote it."""
    return {SAMPLER: spec.sampler.template, TRAINER: spec.trainer.template}[role]


def gpu_resources(spec: RLJobSpec) -> frozenset[str]:
    """The extended resources that count the job's GPUs: one, or two where the roles run on different kinds of nodes."""
    return frozenset({nodes_of(spec, SAMPLER).gpu_resource, nodes_of(spec, TRAINER).gpu_resource})


def tolerations_of(spec: RLJobSpec, role: str) -> list[dict[str, Any]]:
    """The tolerations that the children of a role carry: the template's, those of its nodes, and one for GPU nodes.

    GPU nodes are usually tainted with the name of their resource, to keep other pods away; clusters that run the
    ExtendedResourceToleration admission add this toleration by themselves, so it is added everywhere, and what the
    inventory counts on does not depend on an admission plugin that nobody can see.
    """
    nodes = nodes_of(spec, role)
    tolerations = [dict(t) for t in (template_of(spec, role).get("spec") or {}).get("tolerations") or ()]
    added = [_as_dict(t) for t in nodes.tolerations]
    added.append({"key": nodes.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    tolerations.extend(t for i, t in enumerate(added) if t not in tolerations and t not in added[:i])
    return tolerations


def selects(spec: RLJobSpec, role: str, node: Mapping[str, Any]) -> bool:
    """Whether selector, required node affinity and nodeName of a role allow a node; taints are another question."""
    metadata = node.get("metadata") or {}
    labels = metadata.get("labels") or {}
    pod_spec = template_of(spec, role).get("spec") or {}
    wanted = {**(pod_spec.get("nodeSelector") or {}), **nodes_of(spec, role).selector}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    if pod_spec.get("nodeName") not in (None, "", metadata.get("name")):
        return False
    if role == SAMPLER and spec.sampler.pools and pool_of(spec, node) is None:
        return False
    required = ((pod_spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required is None:
        return True
    return any(
        _term_matches(term, labels, str(metadata.get("name", ""))) for term in required.get("nodeSelectorTerms") or ()
    )


def untolerated_taints(spec: RLJobSpec, role: str, node: Mapping[str, Any]) -> tuple[str, ...]:
    """The taints of a node that keep a role's pods away, as ``key=value:effect``.

    The tolerations count that the children carry, and those that admission gives to every pod: for nodes that are not
    ready or unreachable, for a while.
    """
    taints = [
        taint
        for taint in (node.get("spec") or {}).get("taints") or ()
        if taint.get("effect") in ("NoSchedule", "NoExecute")
    ]
    if not taints:
        return ()
    tolerations = tolerations_of(spec, role)
    tolerations += [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in _UNREACHABLE]
    return tuple(_taint_text(taint) for taint in taints if not any(_tolerates(t, taint) for t in tolerations))


def is_node_ready(node: Mapping[str, Any]) -> bool:
    """Whether the node's Ready condition is True; a node that reports none is not ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _as_dict(toleration: Toleration) -> dict[str, Any]:
    return toleration.model_dump(by_alias=True, exclude_none=True)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key = toleration.get("key") or ""
    operator = toleration.get("operator") or "Equal"
    if not key:
        return bool(operator == "Exists")
    if key != taint.get("key"):
        return False
    return bool(
        operator == "Exists" or (operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or ""))
    )


def _taint_text(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


def _term_matches(term: Mapping[str, Any], labels: Mapping[str, str], node_name: str) -> bool:
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    # An empty term selects nothing in the core API, unlike an empty selector.
    if not expressions and not fields:
        return False
    return all(_matches(e, labels) for e in expressions) and all(
        _matches(f, {"metadata.name": node_name}) for f in fields
    )


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(str(expression.get("key")))
    values: Sequence[str] = expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                have, limit = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return have > limit if operator == "Gt" else have < limit
        case _:
            return False
