"""docs/api.md: every field of RLJob and RLJobProfile, read from the CRDs that are installed.

The CRDs are the source and not the models, since what the API server enforces is what a reader has to know: defaults, limits, and the rules
that it checks when an object is applied. Objects that occur in several places (a split, the nodes of a role) are told once and linked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from dev.crds import CRD_FILE, PROFILE_CRD_FILE
from dev.docs.page import page, require

Schema = Mapping[str, Any]

SHARED = {
    "split": ("samplers", "trainers"),
    "inputs": ("samplerFactor", "remainingSteps"),
    "phases": ("announce", "drain"),
    "evidence": ("readings", "scatter"),
    "nodes": ("selector", "gpuResource"),
    "reference": ("kind", "name", "apiVersion"),
}
"""Objects that occur in several places, by some of their fields."""

_DURATION = re.compile(r"^\^\(\[0-9\].*\(ms\|s\|m\|h\)\)\+\$$")
_PERCENTAGE = re.compile(r"^\^\[0-9\].*%\$$")


@dataclass(frozen=True)
class Field:
    """One line of a table."""

    path: str
    """From the section's object on, with dots; ``[]`` are the items of a list."""
    schema: Schema
    """What the CRD says of it."""
    required: bool
    """Whether the object that holds it can't be without it."""
    shared: str | None = None
    """Where its own fields are told, if elsewhere."""


def text() -> str:
    """The page."""
    job, profile = _version(CRD_FILE.read_text()), _version(PROFILE_CRD_FILE.read_text())
    schema = job["schema"]["openAPIV3Schema"]
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    _complete((spec, status))
    return page(
        _beginning(job),
        "## spec",
        "Required: "
        + ", ".join(f"`{name}`" for name in spec["required"])
        + ". Fields that are objects have sections of their own.",
        _table(_fields(spec, depth=0)),
        _rules(_own_rules(schema) + _own_rules(spec)),
        *_sections("spec", spec),
        "## Nodes of a role",
        "`spec.nodes` is for all pods with GPUs; `sampler.nodes` and `trainer.nodes` take its place for theirs.",
        _table(_fields(spec["properties"]["nodes"])),
        _rules(_own_rules(spec["properties"]["nodes"])),
        "## status",
        "Written by the operator alone, through the subresource `status`. It is the operator's only memory: what a restart has to know is here. A field that is "
        "absent is unknown, which is not zero. [operations.md](operations.md) says what conditions, reasons and codes ask of a person.",
        _table(_fields(status, depth=0)),
        *_sections("status", status),
        *_shared_sections(status),
        "## Columns",
        "What `kubectl get rljobs` shows; those with a star only with `-o wide`.",
        _left(
            ("column", "from", "meaning"),
            (
                (
                    column["name"] + (" *" if column.get("priority") else ""),
                    f"`{column['jsonPath']}`",
                    column.get("description", ""),
                )
                for column in job["additionalPrinterColumns"]
            ),
        ),
        "## RLJobProfile",
        str(profile["schema"]["openAPIV3Schema"]["description"])
        + " Written by the operator; to forget what was learned, delete it.",
        _table(_fields(profile["schema"]["openAPIV3Schema"], leave_out=("apiVersion", "kind", "metadata"))),
    )


def _version(text: str) -> dict[str, Any]:
    """The one version of a CRD."""
    versions = yaml.safe_load(text)["spec"]["versions"]
    require(len(versions) == 1, "the API has one version: this page describes one")
    return dict(versions[0])


def _beginning(job: Mapping[str, Any]) -> str:
    return (
        "# API\n\n"
        f"`rljob.dev/{job['name']}`, kind `RLJob`, plural `rljobs`, short `rlj`, in a namespace; and kind `RLJobProfile`. Everything here is enforced by the API server, "
        "before the operator sees an object, and `kubectl explain rljob.spec` shows the same. What may change between versions: "
        "[upgrading.md](upgrading.md). Objects to start from: [samples.md](samples.md) and [crds/samples](../crds/samples).\n\n"
        "A *duration* is written as `90s`, `15m` or `1h30m`, a *percentage* as `5%`, both in quotes where YAML needs them."
    )


def _shared(schema: Schema) -> str | None:
    """The name under which an object is told once, None for one that is told in its place."""
    properties = schema.get("properties", {})
    return next((name for name, some in SHARED.items() if all(field in properties for field in some)), None)


def _sections(prefix: str, parent: Schema) -> Iterator[str]:
    """A heading and a table for each field of an object that is one itself."""
    for name, schema in parent["properties"].items():
        inner = schema.get("items", schema)
        if "properties" not in inner or _shared(inner):
            continue
        yield f"### {prefix}.{name}"
        yield _table(_fields(inner))
        if rules := _rules(_own_rules(inner)):
            yield rules


def _shared_sections(status: Schema) -> Iterator[str]:
    """What occurs in several places of the status."""
    titles = {"split": "Split", "inputs": "Inputs of a decision", "phases": "Seconds of phases", "evidence": "Evidence"}
    found = {name: schema for schema in _objects(status) if (name := _shared(schema))}
    for name, title in titles.items():
        yield f"### {title}"
        yield _table(_fields(found[name]))


def _objects(schema: Schema) -> Iterator[Schema]:
    """All objects under a schema that have fields, itself included."""
    if "properties" in schema:
        yield schema
    for inner in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else ())):
        yield from _objects(inner)


def _complete(roots: Iterable[Schema]) -> None:
    """Nothing large is told twice: an object that occurs again has a name."""
    counted: Counter[tuple[str, ...]] = Counter(
        tuple(schema["properties"]) for root in roots for schema in _objects(root) if not _shared(schema)
    )
    for inside in ("split", "nodes"):
        first = next(schema for root in roots for schema in _objects(root) if _shared(schema) == inside)
        for schema in _objects(first):
            counted.pop(tuple(schema["properties"]), None)
    again = [fields for fields, count in counted.items() if count > 2 and len(fields) > 4]
    require(not again, f"an object that occurs often is told once; name it in SHARED: {again}")


def _fields(schema: Schema, depth: int = 9, leave_out: Sequence[str] = (), path: str = "") -> Iterator[Field]:
    """The fields of an object, those of objects in it after them, so many levels deep."""
    for name, inner in schema.get("properties", {}).items():
        if name in leave_out:
            continue
        here = f"{path}{name}"
        item = inner.get("items", inner)
        shared = _shared(item)
        yield Field(here, inner, name in schema.get("required", ()), shared)
        # A template is what Kubernetes says it is.
        if depth and not shared and not item.get("x-kubernetes-preserve-unknown-fields"):
            yield from _fields(item, depth - 1, path=f"{here}[]." if "items" in inner else f"{here}.")


_ANCHORS = {
    "split": "[split](#split)",
    "inputs": "[inputs](#inputs-of-a-decision)",
    "phases": "[seconds](#seconds-of-phases)",
    "evidence": "[evidence](#evidence)",
    "nodes": "[nodes](#nodes-of-a-role)",
    "reference": "reference",
}


def _type(field: Field) -> str:
    schema = field.schema
    if "items" in schema:
        inner = _type(Field(field.path, schema["items"], False, field.shared))
        return f"list of {inner}"
    if field.shared:
        return _ANCHORS[field.shared]
    kind = str(schema.get("type", "any"))
    if field.path.endswith("template") or (
        kind == "object" and {"metadata", "spec"} <= set(schema.get("properties", ()))
    ):
        return "pod template"
    if "additionalProperties" in schema:
        return f"map to {schema['additionalProperties'].get('type', 'any')}"
    pattern = str(schema.get("pattern", ""))
    if _DURATION.match(pattern):
        return "duration"
    if _PERCENTAGE.match(pattern):
        return "percentage"
    return "time" if schema.get("format") == "date-time" else kind


def _limits(schema: Schema) -> str:
    """What the API server holds a value to, but for what its type says."""
    told = []
    values = schema.get("items", schema).get("enum")
    if values:
        told.append(", ".join(f"`{value}`" for value in values))
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        told.append(f"{_short(low)} to {_short(high)}")
    elif low is not None:
        told.append(f"≥ {_short(low)}")
    elif high is not None:
        told.append(f"≤ {_short(high)}")
    return "; ".join(told)


def _short(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None or value == {}:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else f'{value:g}' if isinstance(value, float) else value}`"


def _table(fields: Iterable[Field]) -> str:
    rows = []
    for field in fields:
        description = " ".join(str(field.schema.get("description", "")).split())
        rows.append(
            (
                f"`{field.path}`" + (" **required**" if field.required else ""),
                _type(field),
                _default(field.schema),
                _limits(field.schema),
                description,
            )
        )
    # Columns that are empty everywhere, as defaults are in a status, tell nothing.
    header = ("field", "type", "default", "values", "meaning")
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    return _left([header[i] for i in kept], ([row[i] for i in kept] for row in rows))


def _own_rules(schema: Schema) -> list[str]:
    return [str(rule.get("message", "")) for rule in schema.get("x-kubernetes-validations", ())]


def _rules(messages: Sequence[str]) -> str:
    if not messages:
        return ""
    return "What the API server refuses, in its words:\n\n" + "\n".join(
        f"- {_literal(' '.join(message.split()))}" for message in dict.fromkeys(messages)
    )


def _left(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of words, all columns left."""
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join([':--'] * len(header))}|"]
    lines += ["| " + " | ".join(_literal(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _literal(text: str) -> str:
    """Words as they are: what looks like a tag is none."""
    return re.sub(r"<(?=[a-zA-Z/])", "&lt;", text)
