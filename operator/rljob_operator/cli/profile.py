"""What earlier runs measured, from the file of an RLJobProfile, for a plan without a cluster."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_operator.cli.console import fail, read

if TYPE_CHECKING:
    from rljob_operator.cli.cases import Case


def with_profile(case: Case, file: Path) -> Case:
    """The case as the operator would plan it on a cluster that holds this profile; ends the command if the file teaches nothing."""
    from rljob_operator import profiles
    from rljob_planner.accelerators import accelerators_of
    from rljob_planner.errors import PlanningError

    document = _document(file)
    try:
        found = profiles.read_profile(document)
        lesson = profiles.lesson_of(found, case.spec, time.time())
    except ValueError as error:
        fail(f"{file}: this RLJobProfile can't be used: {error}")
    words = [lesson.words()]
    try:
        subject = profiles.subject_of(case.spec, accelerators_of(case.spec, case.rooms))
        words += _unlike(found.spec.subject.model_dump(by_alias=True), subject.model_dump(by_alias=True))
    except PlanningError:
        # What is wrong with the job is said by the plan.
        pass
    if case.calibration is not None and case.calibration.observations > 0 and case.calibration.measured_on is None:
        return replace(case, words=(*case.words, f"{file} is left out: the run itself has measured more"))
    spec = case.spec if case.lengths is not None else profiles.taught(case.spec, lesson)
    calibration = profiles.calibration_of(lesson, time.time(), case.calibration)
    return replace(case, spec=spec, calibration=calibration, words=(*case.words, *words))


def _document(file: Path) -> dict[str, Any]:
    from rljob_planner.documents import InvalidDocumentError, parse_documents

    text, source = read(str(file))
    try:
        documents = parse_documents(text, source)
    except InvalidDocumentError as error:
        fail(str(error))
    found = documents[0] if documents else None
    items = found.get("items") if isinstance(found, dict) else None
    found = items[0] if isinstance(items, list) and items else found
    if not isinstance(found, dict) or found.get("kind") != "RLJobProfile":
        fail(f"{file}: this is no RLJobProfile: kubectl get rljobprofiles lists them, -o yaml prints one")
    return found


def _unlike(of: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What the profile is of and the job is not."""
    return [
        f"the profile is of another job: its {name} is {of[name] or 'none'}, this job's is {wanted[name] or 'none'}"
        for name in of
        if name in wanted and of[name] != wanted[name] and name != "constants"
    ]
