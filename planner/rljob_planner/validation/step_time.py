"""RL step times: each row predicted from data sheets, and once more with what the other rows of its family say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rljob_planner.validation.cases import Case
from rljob_planner.validation.family import (
    ROWS_FOR_FACTORS,
    Learned,
    learned,
    measured_period_s,
    settings_of,
)
from rljob_planner.validation.physics import hand_over_s, mean_of
from rljob_planner.validation.rows import Row
from rljob_planner.validation.setting import SYNC, Setting
from rljob_planner.validation.side import measured_side, predicted_wait, side_of, wait_share
from rljob_planner.validation.simulated import Simulated, simulated


@dataclass(frozen=True)
class Outcome:
    """What is said of a row before it becomes one: both predictions, or a reason."""

    case: Case
    setting: Setting | None = None
    plain: Simulated | None = None
    plain_learned: Learned | None = None
    calibrated: Simulated | None = None
    calibrated_learned: Learned | None = None
    reason: str | None = None


def step_time_rows(cases: Sequence[Case], progress: Callable[[str], None]) -> list[Row]:
    """Rows of kind ``step_time``, in the order of the file."""
    return [_row(o) for o in outcomes(cases, progress)]


def outcomes(cases: Sequence[Case], progress: Callable[[str], None]) -> list[Outcome]:
    """Both predictions of every case, family by family."""
    found: dict[str, Outcome] = {}
    for family in dict.fromkeys(c.family for c in cases):
        members = [c for c in cases if c.family == family]
        progress(f"{family} ({len(members)} rows)")
        usable, reasons = settings_of(members)
        found |= {c.id: Outcome(c, reason=reasons[c.id]) for c in members if c.id in reasons}
        for setting in usable:
            found[setting.case.id] = _outcome(setting, [s for s in usable if s is not setting])
    return [found[c.id] for c in cases]


def _outcome(setting: Setting, others: Sequence[Setting]) -> Outcome:
    witnesses = [s for s in others if _speaks(s.case)]
    plain = learned(witnesses, setting, factors=False)
    if plain is None:
        return Outcome(
            setting.case,
            setting,
            reason="lengths.mean_response is null in the file, and no other row of the family tells it",
        )
    calibrated = None
    if len(witnesses) >= ROWS_FOR_FACTORS - 1:
        calibrated = learned(witnesses, setting, factors=True)
    return Outcome(
        case=setting.case,
        setting=setting,
        plain=simulated(setting, plain.law(setting), plain.factors),
        plain_learned=plain,
        calibrated=None if calibrated is None else simulated(setting, calibrated.law(setting), calibrated.factors),
        calibrated_learned=calibrated,
    )


def _speaks(case: Case) -> bool:
    return measured_period_s(case) is not None


def _row(o: Outcome) -> Row:
    case = o.case
    row = Row(
        id=case.id,
        kind=case.kind,
        family=case.family,
        measured=measured_period_s(case) or case.value("sync_step_s"),
        unit="s",
        reason=o.reason,
        note=case.notes or None,
    )
    if o.setting is None or o.plain is None or o.plain_learned is None:
        return row
    best = o.calibrated or o.plain
    collecting_s = hand_over_s(o.setting)
    in_turn = o.setting.mode == SYNC
    side = None if in_turn else measured_side(case, collecting_s)
    waits = predicted_wait(best.parts, collecting_s)
    return replace(
        row,
        predicted=float(o.plain.parts.period_s),
        calibrated=None if o.calibrated is None else float(o.calibrated.parts.period_s),
        note=_note(o),
        measured_side=side,
        predicted_side=None if in_turn else side_of(waits),
        plain_side=None if in_turn else side_of(predicted_wait(o.plain.parts, collecting_s)),
        measured_wait=None if side is None else wait_share(case, collecting_s),
        predicted_wait=None if in_turn else waits,
    )


def _note(o: Outcome) -> str:
    assert o.setting is not None
    assert o.plain_learned is not None
    said = list(o.setting.notes)
    best = o.calibrated_learned or o.plain_learned
    if mean_of(o.setting) is None:
        said.append(f"mean response of {best.law(o.setting).mean():.0f} tokens from the other rows of the family")
    if o.calibrated_learned is not None:
        f = o.calibrated_learned.factors
        said.append(f"factors from the other rows: samplers {f.sampler:.2f}, trainers {f.trainer:.2f}")
    if o.case.notes:
        said.append(o.case.notes)
    return "; ".join(said)
