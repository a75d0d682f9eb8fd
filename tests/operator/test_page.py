"""The status page: what it keeps, what it shows, what it lets nobody do, and how it looks in a real browser."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest, start_http_server

from rljob_operator.config import Config
from rljob_operator.listening import serve
from rljob_operator.observation import epoch_s
from rljob_operator.page.chart import Line, Span, chart
from rljob_operator.page.history import (
    LONGEST_CURVE,
    MOST_DECISIONS,
    MOST_POINTS,
    SHORTEST_CURVE,
    Curve,
    Point,
    Recorder,
)
from rljob_operator.page.markup import element, join
from rljob_operator.page.server import FRESH_S, StatusPage
from rljob_operator.page.sheet import DIGEST, SHEET
from rljob_operator.rebalance import timestamp
from rljob_planner.api.status import ConditionType, DecisionCode, MoveHistory, Phase
from tests.operator.page_jobs import (
    BEGAN_S,
    FIRST,
    SECOND,
    Clock,
    body,
    condition,
    decision,
    move,
    observed,
    run,
    status,
)

SCHEMAS = Path(__file__).resolve().parents[2] / "docs/schemas"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(clock: Clock) -> Recorder:
    return Recorder(clock=clock)


@contextmanager
def served(recorder: Recorder, clock: Clock, registry: CollectorRegistry | None = None) -> Iterator[int]:
    server, thread = serve(0, StatusPage(recorder, registry or CollectorRegistry(), clock=clock), "127.0.0.1")
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


# What is kept


def test_a_run_is_kept_as_it_went(recorder: Recorder, clock: Clock) -> None:
    run(recorder, clock)
    job = recorder.job("rl", "math")
    assert job is not None
    assert [m.outcome for m in job.moves] == ["Committed", "Committed"]
    assert [m.to_split.samplers.gpus for m in job.moves] == [40, 48]
    assert epoch_s(job.moves[0].ended_at or "") - epoch_s(job.moves[0].started_at) == 180.0
    assert [d.code for d in job.decisions] == ["InitialPlan", "Move", "MoveCommitted", "Move", "MoveCommitted"]
    assert [p.sampler_gpus for p in job.history][:1] == [32]
    assert job.history[-1].sampler_gpus == 48
    assert {p.at for p in job.history if p.period_seconds is None} == {
        timestamp(BEGAN_S + 60.0 * m) for m in (20, 21, 22, 40, 41, 42)
    }, "what was unknown in a move is a gap, and no zero"


def test_decisions_that_the_status_has_dropped_are_still_there(recorder: Recorder, clock: Clock) -> None:
    taken = []
    for i in range(25):
        clock.now_s = BEGAN_S + 60.0 * i
        code = DecisionCode.AT_OPTIMUM if i % 2 else DecisionCode.UNCERTAIN
        taken.append(decision(clock.now_s, code, f"number {i}"))
        recorder.saw(body(shown=status(decisions=tuple(taken[-10:]))))
    job = recorder.job("rl", "math")
    assert job is not None
    assert [d.message for d in job.decisions] == [f"number {i}" for i in range(25)]


def test_a_decision_that_is_repeated_is_one(recorder: Recorder, clock: Clock) -> None:
    for i in range(1, 6):
        clock.now_s = BEGAN_S + 60.0 * i
        recorder.saw(body(shown=status(decisions=(decision(clock.now_s, DecisionCode.AT_OPTIMUM, count=i),))))
    job = recorder.job("rl", "math")
    assert job is not None
    assert [(d.code, d.count) for d in job.decisions] == [("AtOptimum", 5)]


def test_a_gain_that_is_measured_later_is_shown_with_its_decision(recorder: Recorder, clock: Clock) -> None:
    first = decision(BEGAN_S, DecisionCode.MOVE, from_split=FIRST, to_split=SECOND)
    recorder.saw(body(shown=status(decisions=(first,))))
    clock.now_s += 600.0
    measured = first.model_copy(update={"measured_gain": 0.2})
    recorder.saw(body(shown=status(decisions=(measured, decision(clock.now_s, DecisionCode.AT_OPTIMUM)))))
    job = recorder.job("rl", "math")
    assert job is not None
    assert [(d.code, d.measured_gain) for d in job.decisions] == [("Move", 0.2), ("AtOptimum", None)]


def test_a_move_that_follows_at_once_ends_the_one_before(recorder: Recorder, clock: Clock) -> None:
    recorder.saw(body(shown=status(rebalance=move(FIRST, SECOND, BEGAN_S))))
    clock.now_s += 100.0
    ended = MoveHistory(last_ended_at=timestamp(clock.now_s), last_outcome="RolledBack")
    recorder.saw(body(shown=status(rebalance=move(FIRST, SECOND, clock.now_s), moves=ended)))
    job = recorder.job("rl", "math")
    assert job is not None
    assert [(m.outcome, m.phase) for m in job.moves] == [("RolledBack", None), (None, "Drain")]


@pytest.mark.parametrize(
    "broken",
    [
        {"phase": "Sleeping"},
        {"phase": "Running", "decisions": [{"at": "yesterday", "code": "AtOptimum", "message": "m"}]},
        {"version": 7},
        {"decisions": 3},
    ],
)
def test_a_status_that_can_t_be_read_is_said_to_be_so(recorder: Recorder, clock: Clock, broken: Any) -> None:
    recorder.saw(body(shown=broken))
    job = recorder.job("rl", "math")
    assert job is not None
    assert job.phase == "Unreadable"
    with served(recorder, clock) as port:
        assert ask(port, "/jobs/rl/math")[0] == 200
        assert "Unreadable" in ask(port, "/")[2]


def test_a_job_that_is_gone_is_forgotten(recorder: Recorder) -> None:
    recorder.saw(body())
    recorder.forgot("uid-rl-math")
    recorder.forgot("uid-rl-math")
    assert recorder.jobs() == ()
    assert recorder.job("rl", "math") is None


@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.integers(0, 3)), min_size=1, max_size=400), st.integers(2, 50))
@settings(max_examples=60, deadline=None)
def test_a_curve_keeps_its_ends_and_its_bound(seen: list[tuple[float, int]], most: int) -> None:
    curve, at_s = Curve(), 0.0
    for gap_s, gpus in seen:
        at_s += gap_s
        curve = curve.with_point(Point(at_s, sampler_gpus=gpus), most)
    times = [p.at_s for p in curve.points]
    assert len(times) <= most
    assert times == sorted(set(times))
    assert times[0] == min(times)
    assert times[-1] == at_s
    assert curve.points[-1].sampler_gpus == seen[-1][1]
    if len(times) > 1:
        assert times[0] == seen[0][0]


def test_memory_is_bounded_whatever_runs(recorder: Recorder, clock: Clock) -> None:
    jobs = 150
    for round_ in range(400):
        clock.now_s += 7.0
        for i in range(jobs if round_ % 40 == 0 else 1):
            seen = observed(clock.now_s, policy_version=round_, queue_groups=float(round_ % 5))
            recorder.saw(body(f"job-{i}", shown=status(observed=seen)))
    curves = recorder.curves()
    assert len(curves) == jobs
    assert sum(len(points) for points in curves.values()) <= MOST_POINTS
    longest = max(len(points) for points in curves.values())
    assert SHORTEST_CURVE <= longest <= min(LONGEST_CURVE, MOST_POINTS // jobs)
    many = [decision(BEGAN_S + i, DecisionCode.AT_OPTIMUM, str(i)) for i in range(200)]
    for i in range(0, 200, 10):
        recorder.saw(body(shown=status(decisions=tuple(many[i : i + 10]))))
    job = recorder.job("rl", "math")
    assert job is not None
    assert len(job.decisions) == MOST_DECISIONS


# What is shown


def test_the_list_shows_those_that_need_somebody_first(recorder: Recorder, clock: Clock) -> None:
    bad = condition(ConditionType.SCHEDULED, "False", "Unschedulable", "free GPUs on matching nodes")
    recorder.saw(body("a-fine", shown=status()))
    recorder.saw(body("b-bad", shown=status(conditions=(bad,))))
    recorder.saw(body("c-new", "zoo"))
    with served(recorder, clock) as port:
        page = ask(port, "/")[2]
    assert page.index("b-bad") < page.index("a-fine") < page.index("c-new")
    assert "3 jobs, 1 with a condition that asks for somebody" in page
    assert 'title="Scheduled: free GPUs on matching nodes"' in page


def test_what_is_unknown_is_a_dash_and_no_zero(recorder: Recorder, clock: Clock) -> None:
    recorder.saw(body(shown=None))
    with served(recorder, clock) as port:
        page = ask(port, "/jobs/rl/math")[2]
        found = json.loads(ask(port, "/api/jobs/rl/math")[2])["job"]
    assert "<dt>Period</dt><dd>–" in page
    assert "0.0" not in re.sub(r'd="[^"]*"|y[12]="[^"]*"|x[12]?="[^"]*"', "", page)
    assert set(found["now"]) == {"at"}
    assert "split" not in found


def test_a_job_s_page_says_why_the_last_move_happened(recorder: Recorder, clock: Clock) -> None:
    run(recorder, clock)
    with served(recorder, clock) as port:
        page = ask(port, "/jobs/rl/math")[2]
    text = Texts.of(page)
    assert "responses got longer" in text
    assert "40×1 samplers + 3×8 trainers" in text
    assert "Committed after 180 s" in text
    assert "What is shown over time begins with this process" in text
    assert page.count('class="move"') == 2 * 6, "each chart marks each move"
    assert "Split over time, in GPUs: now samplers 48; trainers 16" in text


def test_both_answers_hold_to_their_schemas(recorder: Recorder, clock: Clock) -> None:
    run(recorder, clock)
    recorder.saw(body("new", "other"))
    with served(recorder, clock) as port:
        for path, name in (("/api/jobs", "status-page"), ("/api/jobs/rl/math", "status-page-job")):
            code, headers, text = ask(port, path)
            assert (code, headers["content-type"]) == (200, "application/json")
            jsonschema.validate(json.loads(text), json.loads((SCHEMAS / f"{name}.schema.json").read_text()))
        jobs = json.loads(ask(port, "/api/jobs")[2])["jobs"]
    assert [(j["namespace"], j["name"]) for j in jobs] == [("other", "new"), ("rl", "math")]
    assert jobs[1]["split"]["samplers"] == {"replicas": 48, "gpusPerReplica": 1, "gpus": 48}


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), max_size=30))
@example([5e-324])
@example([sys.float_info.min])
@settings(max_examples=40, deadline=None)
def test_any_values_make_a_drawing_that_can_be_read(values: list[float | None]) -> None:
    points = [(BEGAN_S + i, value) for i, value in enumerate(values)]
    drawn = chart("Any", "units", [Line("any", "measured", points)], Span(BEGAN_S, BEGAN_S + len(values)))
    numbers = re.findall(r'd="([^"]*)"', drawn)
    assert "nan" not in "".join(numbers)
    assert "inf" not in "".join(numbers)


# What nobody can do with it


class Texts(HTMLParser):
    """What a browser would see of a page: its elements, their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @classmethod
    def of(cls, page: str) -> str:
        found = cls()
        found.feed(page)
        return found.text

    @classmethod
    def shape(cls, page: str) -> list[tuple[str, tuple[str, ...]]]:
        found = cls()
        found.feed(page)
        return [(tag, tuple(sorted(attrs))) for tag, attrs in found.elements]


HOSTILE = st.one_of(
    st.sampled_from(
        [
            "<script>alert(1)</script>",
            '"><img src=x onerror=alert(1)>',
            "' onmouseover='alert(1)",
            "</title><script>alert(1)</script>",
            "</style><svg onload=alert(1)>",
            "<!--",
            "&lt;b&gt;",
            "javascript:alert(1)",
            "]]>",
            "\u202e\u0000<b>",
        ]
    ),
    st.text(max_size=60),
)


def told(words: str) -> Any:
    """A job with these words wherever a job's author or the cluster can put some."""
    return body(
        words,
        words,
        model={"name": words},
        shown=status(
            summary=words,
            next=words,
            samplers=words,
            conditions=(condition(ConditionType.DEGRADED, "True", words, words),),
            decisions=(decision(BEGAN_S, DecisionCode.AT_OPTIMUM, words),),
            rebalance=move(FIRST, SECOND, BEGAN_S, reason=words, waiting_for=words),
        ),
    )


def pages_of(shown: Any) -> tuple[str, str]:
    """List and job page of one job, without the server, whose paths such a name does not reach."""
    from rljob_operator.page.document import job_page, jobs_page
    from rljob_operator.page.model import JobPageJson, StatusPageJson

    clock = Clock()
    recorder = Recorder(clock=clock)
    recorder.saw(shown)
    about: dict[str, Any] = {
        "version": "1",
        "recorded_since": timestamp(BEGAN_S),
        "at": timestamp(BEGAN_S + 60.0),
        "leading": True,
    }
    (job,) = recorder.jobs()
    history = recorder.job(job.namespace, job.name)
    assert history is not None
    return (
        jobs_page(StatusPageJson(**about, jobs=(job,)), recorder.curves(), refresh=True),
        job_page(JobPageJson(**about, job=history), refresh=True),
    )


PLAIN = "word"


@given(HOSTILE)
@settings(max_examples=40, deadline=None)
def test_whatever_a_job_says_becomes_text_and_nothing_else(words: str) -> None:
    for page, plain in zip(pages_of(told(words or PLAIN)), pages_of(told(PLAIN)), strict=True):
        assert Texts.shape(page) == Texts.shape(plain)
        assert "<script" not in page.lower()


@given(st.text(string.printable, max_size=40), st.text(string.printable, max_size=40))
@settings(max_examples=60, deadline=None)
def test_an_element_s_text_and_attributes_come_back_as_they_were(text: str, value: str) -> None:
    found = Texts()
    found.feed(element("p", text, title=value, class_="c"))
    found.close()
    assert found.elements == [("p", {"title": value, "class": "c"})]
    assert found.text == text
    assert join(element("b", "<"), "<") == "<b>&lt;</b>&lt;"


def test_the_browser_may_run_nothing_and_fetch_nothing(recorder: Recorder, clock: Clock) -> None:
    run(recorder, clock)
    with served(recorder, clock) as port:
        for path in ("/", "/jobs/rl/math", "/jobs/rl/none", "/no/such/page"):
            _, headers, page = ask(port, path)
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; ")
            assert f"style-src '{DIGEST}';" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            shape = Texts()
            shape.feed(page)
            assert {tag for tag, _ in shape.elements}.isdisjoint({"script", "iframe", "img", "link", "object", "form"})
            names = {name for _, attributes in shape.elements for name in attributes}
            assert not [name for name in names if name.startswith("on") or name == "style"]
            links = [str(attributes["href"]) for _, attributes in shape.elements if "href" in attributes]
            assert all(link.startswith("/") and not link.startswith("//") for link in links)
            assert page.count(f"<style>{SHEET}</style>") == 1
            assert "url(" not in SHEET
            assert "@import" not in SHEET


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/jobs/rl/math", "/api/jobs"])
def test_nothing_but_reading_is_answered(recorder: Recorder, clock: Clock, method: str, path: str) -> None:
    recorder.saw(body())
    with served(recorder, clock) as port:
        code, headers, _ = ask(port, path, method)
    assert code == 405
    assert headers["allow"] == "GET, HEAD"


def test_head_answers_without_a_body(recorder: Recorder, clock: Clock) -> None:
    with served(recorder, clock) as port:
        code, headers, text = ask(port, "/", "HEAD")
    assert (code, text) == (200, "")
    assert int(headers["content-length"]) > 1000


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/rl/other",
        "/jobs/rl",
        "/jobs/rl/math/more",
        "/jobs/../../etc/passwd",
        "/%00",
        "/jobs/rl/m%3Cb%3E",
        "/x" * 2000,
    ],
)
def test_what_is_not_there_is_not_found(recorder: Recorder, clock: Clock, path: str) -> None:
    recorder.saw(body())
    with served(recorder, clock) as port:
        code, _, page = ask(port, path)
        assert ask(port, f"/api{path}")[0] == 404
    assert code == 404
    assert "<b>" not in page


def test_metrics_are_the_same_as_without_the_page(recorder: Recorder, clock: Clock) -> None:
    registry = CollectorRegistry()
    Gauge("rljob_operator_test", "a test", registry=registry).set(3)
    plain, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        with served(recorder, clock, registry) as port:
            for headers in ({}, {"Accept": "application/openmetrics-text; version=1.0.0"}, {"Accept-Encoding": "gzip"}):
                connections = [
                    http.client.HTTPConnection("127.0.0.1", p, timeout=10) for p in (port, plain.server_port)
                ]
                answers = []
                for connection in connections:
                    connection.request("GET", "/metrics", headers=headers)
                    answer = connection.getresponse()
                    kept = {k: v for k, v in answer.getheaders() if k != "Date"}
                    data = answer.read()
                    unpacked = gzip.decompress(data) if kept.pop("Content-Encoding", "") == "gzip" else data
                    kept.pop("Content-Length")
                    answers.append((answer.status, kept, unpacked))
                    connection.close()
                assert answers[0] == answers[1]
            assert ask(port, "/metrics")[2] == generate_latest(registry).decode()
            assert ask(port, "/metrics?name[]=rljob_operator_test")[2].count("\nrljob_operator_test ") == 1
    finally:
        plain.shutdown()
        plain.server_close()
        thread.join()


def test_reloading_costs_no_more_than_one_page_a_second(recorder: Recorder, clock: Clock) -> None:
    with served(recorder, clock) as port:
        first = ask(port, "/")[2]
        recorder.saw(body())
        assert ask(port, "/")[2] == first
        clock.now_s += FRESH_S
        assert ask(port, "/")[2] != first


def test_a_page_can_be_told_to_stand_still(recorder: Recorder, clock: Clock) -> None:
    with served(recorder, clock) as port:
        assert 'http-equiv="refresh"' in ask(port, "/")[2]
        assert 'http-equiv="refresh"' not in ask(port, "/?refresh=off")[2]


def test_the_page_is_off_unless_it_is_asked_for_and_needs_a_port() -> None:
    assert not Config.from_env({}).status_page
    with pytest.raises(ValueError, match="METRICS_PORT"):
        Config.from_env({"RLJOB_OPERATOR_STATUS_PAGE": "true"})
    config = Config.from_env({"RLJOB_OPERATOR_STATUS_PAGE": "true", "RLJOB_OPERATOR_METRICS_PORT": "9090"})
    assert config.status_page


# In a real browser


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look at the page with")
def test_a_browser_shows_the_page_and_complains_of_nothing(recorder: Recorder, clock: Clock, tmp_path: Path) -> None:
    run(recorder, clock)
    hostile = "<img src=x onerror=document.title='taken'>"
    recorder.saw(body("odd", shown=status(summary=hostile, phase=Phase.RUNNING)))
    with served(recorder, clock) as port:
        page = browse(f"http://127.0.0.1:{port}/jobs/rl/math?refresh=off", tmp_path, "--dump-dom")
        odd = browse(f"http://127.0.0.1:{port}/jobs/rl/odd?refresh=off", tmp_path, "--dump-dom")
        shot = tmp_path / "page.png"
        complaints = browse(
            f"http://127.0.0.1:{port}/?refresh=off",
            tmp_path,
            f"--screenshot={shot}",
            "--enable-logging=stderr",
            error=True,
        )
    assert page.count("<figure>") == 6
    assert "48×1 samplers + 2×8 trainers" in page
    assert "<title>odd · rljob-operator</title>" in odd
    assert "<img" not in odd
    assert "Refused" not in complaints
    assert "Content Security Policy" not in complaints
    assert shot.stat().st_size > 5_000


def browse(url: str, folder: Path, *arguments: str, error: bool = False) -> str:
    """What a headless browser says of a page."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            f"--user-data-dir={folder / 'browser'}", "--window-size=1280,1000", *arguments, url,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    return done.stderr if error else done.stdout
