"""The two pages: all jobs, and one job with everything that was seen of it.

A page is a whole document without a script: it is loaded anew every few seconds by itself, unless its reader asks for it to stand still. The
first thing on a job's page is what the operator says of it in words; the curves show the same, and the tables hold the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_operator.observation import epoch_s
from rljob_operator.page.chart import Band, Line, Span, chart, clock, shares, sparkline
from rljob_operator.page.history import Point
from rljob_operator.page.markup import Html, element, join, style
from rljob_operator.page.model import (
    ConditionJson,
    DecisionJson,
    JobHistoryJson,
    JobJson,
    JobPageJson,
    MoveJson,
    PointJson,
    StatusPageJson,
)
from rljob_operator.page.sheet import SHEET

REFRESH_S = 10
"""Seconds after which a page is loaded anew."""

MOST_ROWS = 30
"""Rows of the table of numbers: enough to read, and the rest is in ``/api/jobs``."""

SPARK_POINTS = 50
"""Points of a small curve, about: its few pixels show no more."""

UNKNOWN = "–"

_WAITING = ("Pending", "Planned", "Starting", "Rebalancing", "Suspended")
_FAILING = ("Failed", "Unreadable")


def jobs_page(shown: StatusPageJson, curves: Mapping[str, Sequence[Point]], *, refresh: bool) -> str:
    """All jobs, those that need somebody first."""
    at_s, since_s = epoch_s(shown.at), epoch_s(shown.recorded_since)
    ordered = sorted(shown.jobs, key=lambda job: (not _alarms(job), job.namespace, job.name))
    rows = [_job_row(job, curves.get(job.uid, ()), Span(since_s, at_s)) for job in ordered]
    heads = ("Job", "State", "Split, GPUs", "Period", "Staleness", "Queue", "Last decision")
    table = element(
        "table",
        element("caption", "The jobs, those that need somebody first", class_="unseen"),
        element("thead", element("tr", *(element("th", head, scope="col") for head in heads))),
        element("tbody", *rows),
        class_="stack",
    )
    none = element("p", "There are no RLJobs that this operator watches.", class_="lead")
    failing = sum(bool(_alarms(job)) for job in shown.jobs)
    count = f"{len(shown.jobs)} jobs" if len(shown.jobs) != 1 else "1 job"
    words = f"{count}, {failing} with a condition that asks for somebody" if failing else count
    body = element("div", element("div", table, class_="scroll") if shown.jobs else none, class_="card")
    return _document(
        "RLJobs", join(element("h1", "RLJobs"), element("p", words)), body, shown, refresh, "/", "/api/jobs"
    )


def job_page(shown: JobPageJson, *, refresh: bool) -> str:
    """One job: what is said of it, how it went, and why."""
    job = shown.job
    end_s = epoch_s(shown.at)
    span = Span(epoch_s(job.history[0].at) if job.history else end_s, end_s)
    head = join(
        element("h1", job.name),
        element("p", element("a", "all jobs", href="/"), f" · namespace {job.namespace}"),
    )
    path = f"/{job.namespace}/{job.name}"
    body = join(
        _said(job),
        element("div", *_charts(job, span), class_="charts"),
        _moves_key(job),
        _moves(job.moves),
        _decisions(job.decisions),
        _conditions(job.conditions),
        _numbers(job.history),
    )
    return _document(job.name, head, body, shown, refresh, f"/jobs{path}", f"/api/jobs{path}")


def missing_page(words: str) -> str:
    """What is not there, and where to go on."""
    content = element(
        "main", element("h1", "Not found"), element("p", words), element("p", element("a", "all jobs", href="/"))
    )
    return _page("Not found", content, refresh=False)


def _document(
    title: str, head: Html, body: Html, shown: StatusPageJson | JobPageJson, refresh: bool, path: str, json_path: str
) -> str:
    now, since = clock(epoch_s(shown.at), seconds=True), clock(epoch_s(shown.recorded_since), seconds=True)
    day = shown.recorded_since[:10]
    toggle = (
        element("a", "let it stand still", href=f"{path}?refresh=off")
        if refresh
        else element("a", "refresh by itself", href=path)
    )
    rate = f"loaded anew every {REFRESH_S} s, " if refresh else "stands still, "
    role = "this replica leads" if shown.leading else "this replica stands by, and shows the same"
    foot = element(
        "footer",
        element("p", f"{now} UTC, {rate}", toggle, " · ", element("a", "as JSON", href=json_path)),
        element(
            "p",
            f"What is shown over time begins with this process, on {day} at {since} UTC. rljob-operator {shown.version}; {role}.",
        ),
    )
    return _page(title, join(element("header", head), element("main", body), foot), refresh=refresh)


def _page(title: str, content: Html, *, refresh: bool) -> str:
    again = element("meta", attributes={"http-equiv": "refresh", "content": REFRESH_S}) if refresh else None
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        again,
        element("title", f"{title} · rljob-operator"),
        style(SHEET),
    )
    return f"<!doctype html>\n{element('html', head, element('body', content), lang='en')}\n"


def _job_row(job: JobJson, points: Sequence[Point], span: Span) -> Html:
    now = job.now
    start_s = points[0].at_s if points else span.start_s
    periods = [(point.at_s, point.period_s) for point in points[:: max(1, len(points) // SPARK_POINTS)]]
    link = element("a", job.name, href=f"/jobs/{job.namespace}/{job.name}")
    predicted = None if now.predicted_period_seconds is None else f"predicted {now.predicted_period_seconds:.1f} s"
    return element(
        "tr",
        element("th", element("div", link, " ", element("small", job.namespace)), scope="row", data_label="Job"),
        _cell("State", _phase(job), *(_badge(c) for c in _alarms(job))),
        _cell("Split, GPUs", *_split_words(job)),
        _cell(
            "Period",
            element("span", _number(now.period_seconds, " s"), class_="number"),
            element("small", " ", predicted, class_="number") if predicted else None,
            sparkline(periods, Span(start_s, span.end_s), f"the period since {clock(start_s)} UTC")
            if len(points) > 1
            else None,
        ),
        _cell("Staleness", element("span", _staleness(job), class_="number")),
        _cell("Queue", element("span", _number(now.queue_groups, "", 0), class_="number")),
        _cell("Last decision", *_decision_words(job.last_decision)),
    )


def _cell(label: str, *children: str | None) -> Html:
    return element("td", element("div", *children), data_label=label)


def _split_words(job: JobJson) -> tuple[Html | str, ...]:
    split = job.split
    if split is None or job.gpus is None:
        return (UNKNOWN,)
    words = element("span", f"{split.samplers.gpus} sample, {split.trainers.gpus} train", class_="number")
    return words, element("small", f" of {job.gpus}"), shares(split.samplers.gpus, split.trainers.gpus, job.gpus)


def _decision_words(decision: DecisionJson | None) -> tuple[Html | str, ...]:
    if decision is None:
        return (UNKNOWN,)
    repeated = f", {decision.count} times" if decision.count > 1 else ""
    at = element("small", f" at {clock(epoch_s(decision.at))}{repeated}")
    return element("b", decision.code), at, element("br"), element("small", decision.message)


def _said(job: JobHistoryJson) -> Html:
    now = job.now
    progress = None
    if now.policy_version is not None and job.steps:
        progress = f"of {job.steps:,}, {min(1.0, now.policy_version / job.steps):.0%}"
    predicted = None if now.predicted_period_seconds is None else f"predicted {now.predicted_period_seconds:.2f} s"
    split = job.split
    figures = (
        (
            "Split, GPUs",
            UNKNOWN if split is None else f"{split.samplers.gpus} + {split.trainers.gpus}",
            None if split is None else split.label,
        ),
        ("Held, GPUs", _number(now.gpus_held, "", 0), f"budget {job.gpus}" if job.gpus is not None else None),
        ("Period", _number(now.period_seconds, " s", 2), predicted),
        ("Staleness, mean", _staleness(job), _bound(job)),
        ("Queue, groups", _number(now.queue_groups, "", 0), None),
        (
            "In flight, samples",
            _number(now.in_flight_samples, "", 0),
            None if split is None else f"cap {split.in_flight:,}",
        ),
        ("Response, tokens", _number(now.response_tokens_mean, "", 0), None),
        ("Policy version", _number(now.policy_version, "", 0), progress),
    )
    badges = [_phase(job), *(_badge(c) for c in _alarms(job)), element("span", f"mode {job.mode}", class_="badge soft")]
    return element(
        "div",
        element("p", *badges),
        element("p", job.summary, class_="lead") if job.summary else None,
        element("p", element("b", "Next: "), job.next) if job.next else None,
        _under_way(job.move),
        element("dl", *(_figure(*figure) for figure in figures)),
        class_="card",
    )


def _figure(name: str, value: str, more: str | None) -> Html:
    return element("div", element("dt", name), element("dd", value, element("small", more) if more else None))


def _under_way(move: MoveJson | None) -> Html | None:
    if move is None:
        return None
    back = " It rolls back." if move.rolling_back else ""
    waits = f" It waits for {move.waiting_for}." if move.waiting_for else ""
    return element(
        "p", element("b", f"A move is under way, in {move.phase}: "), f"to {move.to_split.label}.{back}{waits}"
    )


def _charts(job: JobHistoryJson, span: Span) -> tuple[Html, ...]:
    points = job.history
    bands = [
        Band(epoch_s(m.started_at), None if m.ended_at is None else epoch_s(m.ended_at), _move_words(m))
        for m in job.moves
    ]
    ends = (span.start_s, span.end_s)

    def values(*names: str) -> list[list[tuple[float, float | None]]]:
        found = [[(epoch_s(point.at), getattr(point, name)) for point in points] for name in names]
        # What was known last is what is known now.
        return [[*each, (span.end_s, each[-1][1])] if each else [] for each in found]

    samplers, trainers, held = values("sampler_gpus", "trainer_gpus", "gpus_held")
    period, predicted = values("period_seconds", "predicted_period_seconds")
    mean, largest = values("staleness_mean", "staleness_max")
    queue, in_flight, length = values("queue_groups", "in_flight_samples", "response_tokens_mean")
    (cap,) = values("in_flight_cap")
    budget = [] if job.gpus is None else [(at, float(job.gpus)) for at in ends]
    limit = [] if job.staleness_limit is None else [(at, float(job.staleness_limit)) for at in ends]
    split = [
        Line("samplers", "samplers", samplers, holds=True),
        Line("trainers", "trainers", trainers, holds=True),
        Line("held", "predicted", held, holds=True),
        Line("budget", "limit", budget),
    ]
    staleness = [Line("mean", "measured", mean), Line("largest", "largest", largest), Line("limit", "limit", limit)]
    periods = [Line("measured", "measured", period), Line("predicted", "predicted", predicted, holds=True)]
    flying = [Line("in flight", "measured", in_flight), Line("cap", "limit", cap, holds=True)]
    return (
        chart("Split", "GPUs", split, span, bands=bands, stacked=True, digits=0),
        chart("Period", "seconds", periods, span, bands=bands, digits=2),
        chart("Staleness", "policy versions", staleness, span, bands=bands, digits=1),
        chart(
            "Queue", "groups that wait for the trainer", [Line("queue", "measured", queue)], span, bands=bands, digits=0
        ),
        chart("In flight", "samples", flying, span, bands=bands, digits=0),
        chart("Response length", "tokens, mean", [Line("mean", "measured", length)], span, bands=bands, digits=0),
    )


def _moves_key(job: JobHistoryJson) -> Html | None:
    if not job.moves:
        return None
    return element("p", element("i", class_="swatch"), "a move, from its beginning to its end", class_="soft")


def _moves(moves: Sequence[MoveJson]) -> Html | None:
    if not moves:
        return None
    rows = [
        (
            _when(move.started_at),
            move.from_split.label,
            move.to_split.label,
            _how(move),
            f"{move.predicted_gain:.1%}",
            move.reason,
        )
        for move in reversed(moves)
    ]
    return _table("Moves", ("Began", "From", "To", "How it went", "Predicted gain", "Why"), rows)


def _decisions(decisions: Sequence[DecisionJson]) -> Html | None:
    if not decisions:
        return None
    rows = [
        (
            _when(decision.at) + (f", {decision.count} times" if decision.count > 1 else ""),
            element("b", decision.code),
            decision.to_split if decision.to_split not in (None, decision.from_split) else UNKNOWN,
            _gain(decision.predicted_gain),
            _gain(decision.measured_gain),
            decision.message,
        )
        for decision in reversed(decisions)
    ]
    return _table("Decisions", ("When", "Code", "Wished split", "Predicted gain", "Measured gain", "Why"), rows)


def _conditions(conditions: Sequence[ConditionJson]) -> Html | None:
    if not conditions:
        return None
    rows = [(element("b", c.type), _badge(c), c.message) for c in conditions]
    return _table("Conditions", ("Condition", "State", "What to do"), rows)


def _numbers(points: Sequence[PointJson]) -> Html | None:
    """The curves as numbers, for those who can't see them and those who want to copy them."""
    if not points:
        return None
    rows = [
        (
            _when(p.at),
            UNKNOWN if p.sampler_gpus is None else f"{p.sampler_gpus} + {p.trainer_gpus}",
            _number(p.period_seconds, "", 2),
            _number(p.predicted_period_seconds, "", 2),
            _number(p.staleness_mean, "", 2),
            _number(p.staleness_max, "", 0),
            _number(p.queue_groups, "", 0),
            _number(p.in_flight_samples, "", 0),
            _number(p.response_tokens_mean, "", 0),
        )
        for p in reversed(points[-MOST_ROWS:])
    ]
    heads = ("When", "Split", "Period, s", "Predicted, s", "Staleness", "Largest", "Queue", "In flight", "Tokens")
    return element("details", element("summary", f"The last {len(rows)} points as numbers"), _table("", heads, rows))


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    written = [
        element(
            "tr", *(element("td", element("div", cell), data_label=head) for head, cell in zip(heads, row, strict=True))
        )
        for row in rows
    ]
    table = element(
        "table",
        element("thead", element("tr", *(element("th", head, scope="col") for head in heads))),
        element("tbody", *written),
        class_="stack",
    )
    card = element("div", element("div", table, class_="scroll"), class_="card")
    return join(element("h2", title), card) if title else card


def _alarms(job: JobJson) -> tuple[ConditionJson, ...]:
    """The conditions that ask for somebody: not a move under way, and not what is unknown while pods start."""
    return tuple(c for c in job.bad if c.status != "Unknown" and c.type != "Rebalancing")


def _badge(condition: ConditionJson) -> Html:
    kind = (
        "good"
        if condition.good
        else "wait"
        if condition.status == "Unknown" or condition.type == "Rebalancing"
        else "bad"
    )
    return element("span", condition.reason, class_=f"badge {kind}", title=f"{condition.type}: {condition.message}")


def _phase(job: JobJson) -> Html:
    kind = "bad" if job.phase in _FAILING else "wait" if job.phase in _WAITING else "good"
    return element("span", job.phase, class_=f"badge {kind}")


def _how(move: MoveJson) -> str:
    if move.ended_at is None:
        return f"under way: {move.phase}"
    took_s = epoch_s(move.ended_at) - epoch_s(move.started_at)
    return f"{move.outcome or UNKNOWN} after {took_s:,.0f} s"


def _move_words(move: MoveJson) -> str:
    return f"{_when(move.started_at)}: {move.from_split.label} to {move.to_split.label}, {_how(move)}. {move.reason}"


def _staleness(job: JobJson) -> str:
    limit = "" if job.staleness_limit is None else f" / {job.staleness_limit}"
    return f"{_number(job.now.staleness_mean)}{limit}"


def _bound(job: JobJson) -> str | None:
    largest = None if job.now.staleness_max is None else f"largest {job.now.staleness_max:.0f}"
    bound = None if job.bound is None else f"bound {job.bound}"
    return ", ".join(part for part in (largest, bound) if part) or None


def _when(at: str) -> str:
    return clock(epoch_s(at), seconds=True)


def _gain(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"


def _number(value: float | None, unit: str = "", digits: int = 1) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}{unit}"
