"""The CustomResourceDefinition, made from the models.

Kubernetes takes a dialect of JSON Schema: structural (every node has one type, nothing is referenced), without unions, with
lists of pairs written as lists, and with its own extensions. Pydantic's own schema is therefore the start, so that no
constraint is written twice, and what the dialect spells otherwise is rewritten here. A spelling that is not known to be allowed
raises: a CRD that silently lost a constraint would accept what the planner then rejects.

Absent is the only way to say nothing (no field is nullable). Only the spec has defaults in the schema: ``kubectl get -o yaml``
then shows what applies, while a status shows what was reported and no more.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from rljob_planner.api import GROUP, KIND, PLURAL, VERSION, RLJob
from rljob_planner.api.base import ApiModel, Rule
from rljob_planner.api.profile import PROFILE_KIND, PROFILE_PLURAL, RLJobProfile
from rljob_planner.api.spec import Metrics, Nodes, Rebalance

NAME = f"{PLURAL}.{GROUP}"
"""Name of the CustomResourceDefinition."""

PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
RULES = "x-kubernetes-validations"

HEADER = "# Generated from the models in planner/rljob_planner/api by `python -m dev.crds`; edit those instead.\n"

_KEPT = (
    "description", "type", "format", "default", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems",
    "maxItems", "minProperties", "maxProperties", "required", PRESERVE, INT_OR_STRING, "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys", RULES, "properties", "additionalProperties", "items",
)  # fmt: skip
_DROPPED = ("title", "$defs", "$ref", "anyOf", "const", "prefixItems", "examples")

_EMPTY_OBJECTS: tuple[type[ApiModel], ...] = (Nodes, Rebalance, Metrics)

PRINTER_COLUMNS: tuple[Mapping[str, Any], ...] = (
    {
        "name": "Phase",
        "type": "string",
        "jsonPath": ".status.phase",
        "description": "Where the job stands in its life.",
    },
    {"name": "GPUs", "type": "integer", "jsonPath": ".spec.gpus", "description": "The budget in GPUs."},
    {
        "name": "Samplers",
        "type": "string",
        "jsonPath": ".status.samplers",
        "description": "Ready and wished sampler pods.",
    },
    {
        "name": "Trainers",
        "type": "string",
        "jsonPath": ".status.trainers",
        "description": "Ready and wished trainer pods.",
    },
    {
        "name": "Period",
        "type": "number",
        "jsonPath": ".status.observed.periodSeconds",
        "description": "Observed seconds between two published policy versions.",
    },
    {
        "name": "Staleness",
        "type": "number",
        "jsonPath": ".status.observed.stalenessMean",
        "description": "Mean staleness of trained samples in policy versions.",
    },
    {
        "name": "Mode",
        "type": "string",
        "jsonPath": ".spec.rebalance.mode",
        "priority": 1,
        "description": "What the operator may do to the split.",
    },
    {
        "name": "Model",
        "type": "string",
        "jsonPath": ".spec.model.name",
        "priority": 1,
        "description": "The model that is trained.",
    },
    {
        "name": "Version",
        "type": "integer",
        "jsonPath": ".status.observed.policyVersion",
        "priority": 1,
        "description": "The policy version published last.",
    },
    {
        "name": "Sandboxes",
        "type": "integer",
        "jsonPath": ".status.sandboxes.ready",
        "priority": 1,
        "description": "Sandbox pods that are ready.",
    },
    {
        "name": "Next",
        "type": "string",
        "jsonPath": ".status.next",
        "priority": 1,
        "description": "What comes next, and what it waits for.",
    },
    {
        "name": "Planned",
        "type": "string",
        "jsonPath": '.status.conditions[?(@.type=="Planned")].reason',
        "priority": 1,
        "description": "Reason of the Planned condition.",
    },
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
)
"""Columns of ``kubectl get rljobs``; those of priority 1 stand in ``-o wide`` only."""


PROFILE_COLUMNS: tuple[Mapping[str, Any], ...] = (
    {
        "name": "Model",
        "type": "string",
        "jsonPath": ".spec.subject.model",
        "description": "The model that was trained.",
    },
    {
        "name": "Samplers",
        "type": "string",
        "jsonPath": ".spec.subject.samplerAccelerator",
        "description": "GPU of the samplers.",
    },
    {
        "name": "Trainers",
        "type": "string",
        "jsonPath": ".spec.subject.trainerAccelerator",
        "description": "GPU of the trainers.",
    },
    {
        "name": "Last-Run",
        "type": "string",
        "jsonPath": ".spec.runs[-1:].job",
        "description": "The job whose run ended last.",
    },
    {
        "name": "Ended",
        "type": "date",
        "jsonPath": ".spec.runs[-1:].endedAt",
        "description": "How long ago it ended.",
    },
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
)
"""Columns of ``kubectl get rljobprofiles``."""


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition ``rljobs.rljob.dev``."""
    version = {
        "subresources": {"status": {}},
        "additionalPrinterColumns": [dict(column) for column in PRINTER_COLUMNS],
        "selectableFields": [{"jsonPath": ".status.phase"}],
    }
    return _definition(KIND, PLURAL, "rlj", object_schema(), version)


def profile_crd() -> dict[str, Any]:
    """The CustomResourceDefinition ``rljobprofiles.rljob.dev``."""
    version = {"additionalPrinterColumns": [dict(column) for column in PROFILE_COLUMNS]}
    return _definition(PROFILE_KIND, PROFILE_PLURAL, "rljp", _of_object(RLJobProfile), version)


def _definition(kind: str, plural: str, short: str, schema: dict[str, Any], version: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    **version,
                }
            ],
        },
    }


def crd_yaml() -> str:
    """The CRD of RLJobs as the file that users apply."""
    return _as_yaml(crd())


def profile_crd_yaml() -> str:
    """The CRD of RLJobProfiles as the file that users apply."""
    return _as_yaml(profile_crd())


def _as_yaml(definition: dict[str, Any]) -> str:
    return HEADER + yaml.dump(definition, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def object_schema() -> dict[str, Any]:
    """The structural schema of an RLJob."""
    schema = _of_object(RLJob)
    _drop_defaults(schema["properties"]["status"])
    return schema


def _of_object(model: type[ApiModel]) -> dict[str, Any]:
    schema = structural(model)
    # The API server validates these three itself and lets a schema say nothing more of them.
    schema["properties"]["apiVersion"] = {"type": "string", "description": "Version of the API: rljob.dev/v1alpha1."}
    schema["properties"]["kind"] = {"type": "string", "description": f"Kind of the object: {model.__name__}."}
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def structural(model: type[ApiModel]) -> dict[str, Any]:
    """The structural schema of a model, without references; raises ValueError on what Kubernetes has no spelling for."""
    raw = model.model_json_schema(by_alias=True, schema_generator=_WithRules, mode="validation")
    return _rewritten(raw, raw.get("$defs", {}), model.__name__)


def rules_of(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All CEL rules of a structural schema, each with the path of the object that it belongs to."""
    for rule in schema.get(RULES, ()):
        yield path, rule
    for name, child in schema.get("properties", {}).items():
        yield from rules_of(child, f"{path}.{name}" if path else name)
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from rules_of(schema[key], f"{path}[]")


class _WithRules(GenerateJsonSchema):
    """Pydantic's schema with the rules of each model beside its fields, and what the strings under them say."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        docstrings = field_docstrings(schema["cls"])
        for name, child in found.get("properties", {}).items():
            if name in docstrings:
                child.setdefault("description", docstrings[name])
        rules: tuple[Rule, ...] = getattr(schema["cls"], "rules", ())
        return {**found, RULES: [_rule(rule) for rule in rules]} if rules else found

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        found = super().default_schema(schema)
        if schema.get("default_factory") in _EMPTY_OBJECTS:
            # The defaults inside are then filled in, too.
            return {**found, "default": {}}
        return found


def field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The string under each field, by the field's name on the wire.

    Pydantic could read them whenever a model is imported; only a schema needs them, and reading sources takes time.
    """
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not issubclass(cls, ApiModel) or cls is ApiModel:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                info = model.model_fields.get(field.target.id)
                if info is not None and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
                    found[info.alias or field.target.id] = inspect.cleandoc(below.value.value)
    return found


def _rule(rule: Rule) -> dict[str, Any]:
    found = {"rule": rule.rule, "message": rule.message}
    if rule.field:
        found["fieldPath"] = f".{rule.field}"
    return found


def _rewritten(node: Mapping[str, Any], defs: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = _resolved(node, defs, where)
    unknown = set(found) - set(_KEPT) - set(_DROPPED)
    if unknown:
        raise ValueError(f"{where}: no spelling in a CRD for {sorted(unknown)}")
    if "const" in found:
        found["enum"] = [found["const"]]
    if "prefixItems" in found:
        found["items"] = _common(found["prefixItems"], where)
    if found.get("type") == "integer":
        found["format"] = "int64"
    if found.get("type") == "object":
        _close(found)
    if found.get("default") in ([], None) or (found.get("default") == {} and "properties" not in found):
        # Empty says the same as absent, and absent is shorter to read.
        found.pop("default", None)
    if "properties" in found:
        found["properties"] = {
            name: _rewritten(child, defs, f"{where}.{name}") for name, child in found["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if key in found:
            found[key] = _rewritten(found[key], defs, f"{where}[]")
    if found.get("type") == "array":
        found.setdefault("x-kubernetes-list-type", "atomic")
    if "description" in found:
        found["description"] = " ".join(found["description"].split())
    if "type" not in found and INT_OR_STRING not in found:
        raise ValueError(f"{where}: has no type")
    return {key: found[key] for key in _KEPT if key in found}


def _resolved(node: Mapping[str, Any], defs: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The node without reference and without null; what stands beside a reference wins over what it refers to."""
    found = dict(node)
    while "$ref" in found or "anyOf" in found:
        if "$ref" in found:
            base = defs[found.pop("$ref").removeprefix("#/$defs/")]
        else:
            choices = [choice for choice in found.pop("anyOf") if choice.get("type") != "null"]
            if {choice.get("type") for choice in choices} == {"integer", "string"}:
                base = {INT_OR_STRING: True}
            elif len(choices) == 1:
                base = choices[0]
            else:
                raise ValueError(f"{where}: a field of a CRD has one type, not {len(choices)}")
        found = {**base, **found}
    return found


def _close(found: dict[str, Any]) -> None:
    """Kubernetes prunes or rejects undeclared fields by itself, and keeps them where it is told to."""
    extra = found.pop("additionalProperties", None)
    if isinstance(extra, dict) and extra:
        found["additionalProperties"] = extra
    elif extra is True or extra == {}:
        found[PRESERVE] = True


def _common(items: list[Mapping[str, Any]], where: str) -> Mapping[str, Any]:
    """The one schema of a pair's members: a list in a CRD has one type of items."""
    if any(item != items[0] for item in items):
        raise ValueError(f"{where}: the members of a list of a CRD have one schema")
    return items[0]


def _drop_defaults(node: dict[str, Any]) -> None:
    node.pop("default", None)
    for child in node.get("properties", {}).values():
        _drop_defaults(child)
    for key in ("items", "additionalProperties"):
        if key in node:
            _drop_defaults(node[key])


class _Dumper(yaml.SafeDumper):
    """Writes lists indented and never by alias, so that the file reads like one written by hand."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True
