"""Reads what was known before a run, and keeps what it measured when it is complete: the edge around ``profiles``.

Both happen once. What is read ends in the job's status, so that all later plans of the run rest on the same; what is kept is
written before the status says that the run is complete, so that an operator that is killed in between does it again, and the run
is in the profile once.

Learning is a courtesy: a profile that is missing, old or unreadable, or a cluster without the kind, changes nothing but a word.
A calibration that the spec asks for is none: a plan without it would not be what its author wished, so there is no plan then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rljob_operator import planning, profiles
from rljob_operator.cluster import CONFIG_MAPS, FIELD_MANAGER, PROFILES, Api, ClusterError, Json
from rljob_operator.gate import MANAGED_BY_LABEL
from rljob_operator.learned import learned_status
from rljob_operator.measured import kept
from rljob_operator.passes import Pass
from rljob_operator.profiles import Lesson
from rljob_operator.rebalance import timestamp
from rljob_operator.status import Verdict, rounded
from rljob_planner._calibration_json import MAP_KEY
from rljob_planner.accelerators import accelerators_of
from rljob_planner.api.profile import ProfileRun, ProfileSubject, RLJobProfile
from rljob_planner.api.spec import CalibrationSource, RLJobSpec
from rljob_planner.api.status import LearnedStatus
from rljob_planner.calibrate import Calibration, calibration_in, judged, parse_calibration, unstated
from rljob_planner.errors import PlanningError
from rljob_planner.job import Job

INLINE = "spec.calibration.inline"

MODEL_LABEL = "rljob.dev/model"
"""Label of a profile: the model's name as far as a label can say it, to find profiles by."""


@dataclass(frozen=True)
class Known:
    """What is known before the run."""

    calibration: Calibration = field(default_factory=Calibration)
    lesson: Lesson | None = None
    learned: LearnedStatus | None = None
    sources: tuple[str, ...] = ()
    """What the plan rests on, a sentence each."""
    words: tuple[str, ...] = ()
    """What was there and is not used, and why."""
    doubts: tuple[str, ...] = ()
    """What a calibration was measured on and the job is not."""

    def spec_of(self, spec: RLJobSpec) -> RLJobSpec:
        """The spec with the lengths that earlier runs measured."""
        return spec if self.lesson is None else profiles.taught(spec, self.lesson)

    def started(self, this: Pass) -> None:
        """Puts what is known into the status of a job that has just been planned first."""
        if self.learned is not None:
            this.update(learned=self.learned)
        for word in self.words:
            this.said.append(("Normal", "ProfileIgnored", word))
        for doubt in self.doubts:
            this.said.append(("Warning", "CalibrationDiffers", doubt))
        if self.lesson is None:
            return
        cost_s = rounded(self.lesson.move_cost_s, 3)
        this.update(
            calibration=kept(self.calibration, None),
            moves=this.now.moves.model_copy(update={"cost_seconds": cost_s, "phases": self.lesson.phases}),
        )


class Learning:
    """What one job learns from earlier runs, and leaves to later ones."""

    def __init__(self, cluster: Api) -> None:
        self._cluster = cluster

    async def before_run(self, this: Pass) -> Known | Verdict:
        """What is known before the run, or the verdict for ``Planned`` if a calibration that the spec asks for can't be had."""
        measured: Calibration | None = None
        sources: list[str] = []
        words: list[str] = []
        doubts: list[str] = []
        wished = this.spec.calibration
        if wished is not None:
            found = await self._calibration(this, wished)
            if isinstance(found, Verdict):
                return found
            where = INLINE if wished.config_map is None else f"ConfigMap {wished.config_map}"
            try:
                measured, doubts = _of_this_job(this, found, where)
            except PlanningError as error:
                return Verdict(False, "CalibrationInvalid", str(error))
            sources += (f"{where}: {word}" for word in ("speeds measured before the run", *unstated(measured)))
        lesson = await self._lesson(this, measured, words)
        calibration = measured or Calibration()
        if lesson is not None:
            calibration = profiles.calibration_of(lesson, this.now_s, calibration)
            sources.append(lesson.words())
        learned = learned_status(lesson, None if wished is None else wished.config_map, measured)
        return Known(calibration, lesson, learned, tuple(sources), tuple(words), tuple(doubts))

    async def after_run(self, this: Pass) -> None:
        """Keeps what the run measured; raises ClusterError where trying again may help."""
        try:
            subject = _subject(this, this.now.learned)
        except PlanningError as error:
            this.said.append(("Normal", "ProfileNotKept", f"nothing of this run is kept for later ones: {error}"))
            return
        run = profiles.run_of(this.job, this.now, timestamp(this.now_s))
        if run is None:
            words = "nothing of this run is kept for later ones: too little was measured, or it contradicts the model"
            this.said.append(("Normal", "ProfileNotKept", words))
            return
        name = profiles.profile_name(subject)
        try:
            live = await self._cluster.get(PROFILES, this.key[0], name)
            written = profile_object(name, this.key[0], subject, run, live)
            if live is None or live.get("spec") != written["spec"]:
                await self._cluster.apply(written)
        except ClusterError as error:
            if not (error.rejected or error.status == 404):
                raise
            words = (
                f"what this run measured can't be kept for later ones: {error.message}; apply crds/rljob.dev_rljobprofiles.yaml, and "
                "let the operator's role write rljobprofiles"
            )
            this.said.append(("Warning", "ProfileNotKept", words))
            return
        this.said.append(
            ("Normal", "ProfileKept", f"what this run measured is kept in RLJobProfile {name} for later ones")
        )

    async def _calibration(self, this: Pass, wished: CalibrationSource) -> Calibration | Verdict:
        name = wished.config_map
        if name is None:
            try:
                return calibration_in(wished.inline, INLINE)
            except PlanningError as error:
                return Verdict(
                    False,
                    "CalibrationInvalid",
                    f"{error}; write it with rljob calibrate, or leave spec.calibration out",
                )
        how = f"kubectl -n {this.key[0]} create configmap {name} --from-file={MAP_KEY}=FILE, with what rljob calibrate wrote"
        live = await self._cluster.get(CONFIG_MAPS, this.key[0], name)
        if live is None:
            return Verdict(
                False,
                "CalibrationMissing",
                f"spec.calibration names the ConfigMap {name}, which is not there: {how}, or leave spec.calibration out",
            )
        text = (live.get("data") or {}).get(MAP_KEY)
        if not isinstance(text, str):
            return Verdict(False, "CalibrationInvalid", f"ConfigMap {name} has no key {MAP_KEY}: {how}")
        try:
            return parse_calibration(text, f"ConfigMap {name}, {MAP_KEY}")
        except PlanningError as error:
            return Verdict(
                False, "CalibrationInvalid", f"{error}; write it with rljob calibrate, or leave spec.calibration out"
            )

    async def _lesson(self, this: Pass, measured: Calibration | None, words: list[str]) -> Lesson | None:
        """What earlier runs teach; a word is added where there is a profile that teaches nothing."""
        learned = learned_status(None, None, measured)
        try:
            name = profiles.profile_name(_subject(this, learned))
            live = await self._cluster.get(PROFILES, this.key[0], name)
        except PlanningError:
            # The plan says what is wrong with the job, where a person looks for it.
            return None
        except ClusterError as error:
            if not error.rejected:
                raise
            words.append(f"earlier runs are left out: {error.message}; let the operator's role read rljobprofiles")
            return None
        if live is None:
            return None
        try:
            return profiles.lesson_of(profiles.read_profile(live), this.spec, this.now_s)
        except ValueError as error:
            words.append(f"RLJobProfile {name} is left out: {error}; delete it, or let the next run write it anew")
            return None


def profile_object(name: str, namespace: str, subject: ProfileSubject, run: ProfileRun, live: Json | None) -> Json:
    """The profile with one run more, for server-side apply; of a live one exactly the version that was read is changed."""
    try:
        earlier = None if live is None else profiles.read_profile(live)
    except ValueError:
        earlier = None
    found = RLJobProfile(
        metadata={
            "name": name,
            "namespace": namespace,
            "labels": {MODEL_LABEL: _label(subject.model), MANAGED_BY_LABEL: FIELD_MANAGER},
            **({} if live is None else {key: live["metadata"][key] for key in ("uid", "resourceVersion")}),
        },
        spec=profiles.with_run(earlier, subject, run),
    )
    return found.model_dump(mode="json", by_alias=True, exclude_none=True)


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")


def _subject(this: Pass, learned: LearnedStatus | None) -> ProfileSubject:
    spec = planning.limited(this.spec, this.inventory)
    accelerators = accelerators_of(spec, this.inventory.rooms)
    return profiles.subject_of(
        this.spec,
        accelerators,
        None if learned is None else learned.decode,
        None if learned is None else learned.seconds,
    )


def _of_this_job(this: Pass, found: Calibration, where: str) -> tuple[Calibration, list[str]]:
    """The calibration as far as it is of this job, and how it is not; raises PlanningError where it says nothing of it."""
    try:
        job = Job.of(planning.limited(this.spec, this.inventory), this.inventory.rooms)
    except PlanningError:
        # The plan says what is wrong with the job, where a person looks for it.
        return found, []
    measured, words = judged(found, job, where)
    return measured, [f"{where}: {word}" for word in words]
