"""What a file holds: an RLJob, a plan that was printed, or a scenario. Commands that take several kinds tell them apart here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rljob_operator.cli.console import fail, read

if TYPE_CHECKING:
    from rljob_planner._plan_json import PlanJson


class Kind(StrEnum):
    """Kinds of files, as they are called in messages."""

    JOB = "RLJob"
    PLAN = "plan"
    SCENARIO = "scenario"


@dataclass(frozen=True)
class Found:
    """A file that was read and recognized."""

    kind: Kind
    source: str
    """The file, or ``stdin``, in messages."""
    text: str
    document: Any
    """The first document; of a job the whole file counts, which ``console.read_job`` looks through."""


def recognized(file: str) -> Found:
    """Reads a file and tells what it holds; what is no plan and no scenario is taken for a job, whose errors say the most."""
    from rljob_planner.documents import InvalidDocumentError, parse_documents

    text, source = read(file)
    try:
        documents = parse_documents(text, source)
    except InvalidDocumentError as error:
        fail(str(error))
    first = documents[0] if documents else None
    return Found(_kind(first), source, text, first)


def plan_of(document: Any, source: str) -> PlanJson:
    """The plan in a document; ends the command if it is none."""
    from pydantic import ValidationError

    from rljob_planner._plan_json import PlanJson

    try:
        return PlanJson.model_validate(document)
    except ValidationError as error:
        at = ".".join(str(part) for part in error.errors()[0]["loc"])
        fail(f"{source}: this is no plan that this version can read ({at}): make one with rljob plan job.yaml -o json")


def _kind(document: Any) -> Kind:
    if isinstance(document, dict) and "kind" not in document:
        if "runTime" in document and "candidates" in document:
            return Kind.PLAN
        if "samplers" in document or "mode" in document:
            return Kind.SCENARIO
    return Kind.JOB
