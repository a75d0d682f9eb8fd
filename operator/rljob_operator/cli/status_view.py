"""How a job stands, drawn: rows of a name and a text, so that a terminal shows them all and a pipe those that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rljob_operator.observation import epoch_s
from rljob_operator.overview import OverviewJson
from rljob_planner.api.status import MoveCause, Phase
from rljob_planner.durations import seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = tuple[str, str]
"""What it is about, and what holds."""

DECISIONS = 4
"""Decisions that are shown; all that are kept stand in the JSON."""

_STYLES = {
    Phase.RUNNING: "green",
    Phase.REBALANCING: "cyan",
    Phase.COMPLETE: "green",
    Phase.SUSPENDED: "yellow",
    Phase.FAILED: "red",
}

_PERSONS_MOVES = {
    "Accepted": "is under way",
    "Done": "is done",
    "RolledBack": "was rolled back",
    "Refused": "was refused",
}


def title(job: OverviewJson) -> str:
    """The job and what it is in, in a line."""
    paused = ", rebalancing paused" if job.rebalancing_paused else ""
    return f"{job.namespace or 'default'}/{job.name}: {job.phase.value}, mode {job.mode.value}{paused}"


def rows(job: OverviewJson, now_s: float | None = None) -> list[Row]:
    """What there is to say of a job; with ``now_s`` (epoch seconds) times are told as so long ago, else as they stand."""
    found = [("job", title(job)), ("summary", job.summary), ("next", job.next)]
    split = job.split
    if split is not None:
        ready = [
            f"{side.ready or '?'} {name} of {side.gpus_per_replica} GPU{'' if side.gpus_per_replica == 1 else 's'}"
            for name, side in (("samplers", split.samplers), ("trainers", split.trainers))
        ]
        held = f"? of {job.gpus}" if job.gpus_held is None else f"{job.gpus_held} of {job.gpus}"
        found.append(("split", f"{' and '.join(ready)} ready; {held} GPUs held"))
        if job.recommended is not None and job.recommended != split.label:
            found.append(("recommended", job.recommended))
    if job.period_seconds is not None or job.planned_period_seconds is not None:
        planned = "" if job.planned_period_seconds is None else f" ({seconds(job.planned_period_seconds)} planned)"
        measured = "not measured yet" if job.period_seconds is None else seconds(job.period_seconds)
        found.append(("period", f"{measured}{planned}"))
    if job.staleness_mean is not None:
        most = "?" if job.staleness_max is None else f"{job.staleness_max:g}"
        limit = f"at most {job.staleness_limit}, by {job.bound.value}"
        found.append(("staleness", f"mean {job.staleness_mean:.2f}, max {most} ({limit})"))
    if job.queue_groups is not None:
        cap = "" if split is None else f" of {split.in_flight_cap}"
        flying = "?" if job.in_flight_samples is None else f"{job.in_flight_samples:.0f}"
        found.append(("queue", f"{job.queue_groups:.0f} groups wait; {flying}{cap} samples in flight"))
    if job.steps_made is not None:
        share = f"{job.steps_made / job.steps_total:.0%}" if job.steps_total else "?"
        left = "" if job.remaining_seconds is None else f", about {seconds(job.remaining_seconds)} to go at this pace"
        found.append(("steps", f"{job.steps_made} of {job.steps_total} ({share}){left}"))
    if job.response_tokens_mean is not None:
        found.append(("responses", f"{job.response_tokens_mean:,.0f} tokens in the mean"))
    found += _of_move(job, now_s)
    if job.requests:
        last = job.requests[-1]
        who, what = last.by or "somebody", last.split or "a move"
        outcome = _PERSONS_MOVES[last.outcome.value]
        found.append(("asked", f"{what} by {who}, {_when(last.at, now_s)}: {outcome}: {last.message}"))
    found += [(f"! {each.condition}", f"{each.reason}: {each.message}") for each in job.attention]
    return found


def decisions(job: OverviewJson, now_s: float | None = None, most: int = DECISIONS) -> list[Row]:
    """The last decisions, the newest first."""
    return [
        (d.code + (f" ×{d.count}" if d.count > 1 else ""), f"{_when(d.at, now_s)}: {d.message}")
        for d in list(reversed(job.decisions))[:most]
    ]


def _of_move(job: OverviewJson, now_s: float | None) -> list[Row]:
    move = job.move
    if move is None:
        return []
    back = "back to" if move.rolling_back else "→"
    by_hand = ", by hand" if move.cause is MoveCause.BY_HAND else ""
    found = [("move", f"{move.from_split} {back} {move.to_split}{by_hand}")]
    steps = " → ".join(f"[{phase.value}]" if phase is move.phase else phase.value for phase in move.phases)
    if now_s is None:
        spent = f"since {move.since}, due by {move.deadline}"
    else:
        since_s, left_s = now_s - epoch_s(move.since), epoch_s(move.deadline) - now_s
        due = f"{seconds(left_s)} left" if left_s > 0 else f"overdue by {seconds(-left_s)}"
        spent = f"for {seconds(max(0.0, since_s))}, {due}"
    found.append(("phase", f"{steps}, {spent}"))
    if move.waits_for:
        found.append(("waits for", move.waits_for))
    return found


def _when(at: str, now_s: float | None) -> str:
    if now_s is None:
        return at[:19] + "Z"
    return f"{seconds(max(0.0, now_s - epoch_s(at)))} ago"


def one(job: OverviewJson, now_s: float, *, wide: bool = False) -> RenderableType:
    """One job for people; ``wide`` with all decisions that are kept."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows(job, now_s)[1:]:
        table.add_row(Text(name, style="red" if name.startswith("!") else ""), Text(text))
    parts: list[RenderableType] = [Text(title(job), style=f"bold {_STYLES.get(job.phase, '')}".strip()), table]
    last = decisions(job, now_s, most=len(job.decisions) if wide else DECISIONS)
    if last:
        table = Table("Decision", "", box=None, padding=(0, 2, 0, 0), title_justify="left")
        for name, text in last:
            table.add_row(Text(name, no_wrap=True), Text(text))
        parts += [Text(""), table]
    return Group(*parts)


def many(jobs: Sequence[OverviewJson], *, wide: bool, all_namespaces: bool) -> RenderableType:
    """Several jobs, a line each."""
    from rich.table import Table
    from rich.text import Text

    columns = ["NAME", "PHASE", "SPLIT", "PERIOD", "STALENESS", "STEPS", "MOVE"]
    extra = ["MODE", "GPUS", "QUEUE", "RECOMMENDED", "NEXT"] if wide else []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in (["NAMESPACE"] if all_namespaces else []) + columns + extra:
        table.add_column(name, no_wrap=name not in ("MOVE", "NEXT"), overflow="fold")
    for job in jobs:
        staleness = "" if job.staleness_mean is None else f"{job.staleness_mean:.2f}/{job.staleness_limit}"
        made = "?" if job.steps_made is None else str(job.steps_made)
        troubled = "!" if job.attention else ""
        cells = [
            *([job.namespace or ""] if all_namespaces else []),
            job.name,
            job.phase.value + troubled,
            "" if job.split is None else job.split.label,
            "" if job.period_seconds is None else seconds(job.period_seconds),
            staleness,
            f"{made}/{job.steps_total}",
            "" if job.move is None else f"{job.move.phase.value} to {job.move.to_split}",
        ]
        if wide:
            cells += [
                job.mode.value + (" (paused)" if job.rebalancing_paused else ""),
                f"{'?' if job.gpus_held is None else job.gpus_held}/{job.gpus}",
                "" if job.queue_groups is None else f"{job.queue_groups:.0f}",
                job.recommended or "",
                job.next,
            ]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def brief(job: OverviewJson) -> str:
    """A job in a line, for a pipe that follows several."""
    split = "no split yet" if job.split is None else job.split.label
    move = "" if job.move is None else f", {job.move.phase.value} to {job.move.to_split}"
    steps = "" if job.steps_made is None else f", step {job.steps_made} of {job.steps_total}"
    return f"{job.namespace or 'default'}/{job.name}: {job.phase.value}, {split}{move}{steps}"
