"""Reads a job from a document and says everything that is wrong with it, in the words of the API server's users.

A file that plans here must apply there, so reading is as strict as ``kubectl apply``: the names of fields as they are written
on the wire, ``apiVersion``, ``kind`` and a name present. The models alone are more lenient, since code builds them, too.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from rljob_planner.api.spec import RLJob

API_VERSION = "rljob.dev/v1alpha1"


_PLAIN = {
    "missing": "is missing",
    "int_type": "write a whole number, without quotes",
    "float_type": "write a number, without quotes",
    "finite_number": "write a finite number",
    "bool_type": "write true or false, without quotes",
    "string_type": "write a text, in quotes if it looks like a number",
}

_BOUNDS = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}


class InvalidJobError(ValueError):
    """A document that is no valid RLJob; ``problems`` has a line for each thing to correct."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def read_job(document: Any) -> RLJob:
    """The RLJob in a document, as ``kubectl apply`` would take it; raises InvalidJobError with all problems at once."""
    if not isinstance(document, Mapping):
        raise InvalidJobError([f"this is no RLJob: write apiVersion: {API_VERSION}, kind: RLJob, metadata and spec"])
    found = _header(document)
    if found and document.get("kind") != "RLJob":
        # All further problems would come from reading something else as a job.
        raise InvalidJobError(found)
    try:
        job = RLJob.model_validate({**document}, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidJobError([*found, *problems(error)]) from error
    if found:
        raise InvalidJobError(found)
    return job


def problems(error: ValidationError) -> tuple[str, ...]:
    """A line for each error, with the path of the field in front, such as ``spec.gpus: is missing``."""
    found = error.errors(include_url=False, include_input=False)
    # A list whose items are wrong also counts as too short, though nothing is missing.
    deeper = {item["loc"][:depth] for item in found for depth in range(len(item["loc"]))}
    return tuple(_line(item) for item in found if not (item["type"] == "too_short" and item["loc"] in deeper))


def _header(document: Mapping[str, Any]) -> list[str]:
    found = []
    for field, wanted in (("apiVersion", API_VERSION), ("kind", "RLJob")):
        given = document.get(field)
        if given is None:
            found.append(f"{field}: is missing: write {field}: {wanted}")
        elif field == "kind" and given != wanted:
            found.append(f"{field}: is {given!r}: write {wanted}")
    metadata = document.get("metadata")
    if not (isinstance(metadata, Mapping) and (metadata.get("name") or metadata.get("generateName"))):
        found.append("metadata.name: is missing: write a name for the job")
    return found


def _line(error: Any) -> str:
    loc = error["loc"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".") or "RLJob"
    return f"{path}: {_words(error['type'], error['msg'], loc, error.get('ctx', {}))}"


def _words(kind: str, message: str, loc: tuple[int | str, ...], context: Mapping[str, Any]) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        limit = context[key]
        return f"write {words} {limit if isinstance(limit, int) else format(limit, 'g')}"
    if kind == "too_short" and "min_length" in context:
        return (
            f"is empty: write at least {context['min_length']}"
            if not context.get("actual_length")
            else f"write at least {context['min_length']}"
        )
    if kind != "extra_forbidden":
        return message[:1].lower() + message[1:] if message.startswith(("Input ", "String ", "Tuple ")) else message
    known = _fields_at(loc[:-1])
    near = difflib.get_close_matches(str(loc[-1]), known, n=1)
    if near:
        return f"there is no such field: did you mean {near[0]}?"
    return "there is no such field" + (f": write one of {', '.join(known)}" if known else "")


def _fields_at(loc: Sequence[int | str]) -> list[str]:
    """The names of the fields of the object at a path, empty if it is no object of the API."""
    model: type[BaseModel] | None = RLJob
    for part in loc:
        if isinstance(part, int):
            continue
        field = next((f for n, f in (model.model_fields if model else {}).items() if (f.alias or n) == part), None)
        model = None if field is None else _model_in(field.annotation)
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner)) is not None), None)
