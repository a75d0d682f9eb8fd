"""The metrics port with the status page on it: a thin edge between HTTP and what ``document`` writes.

It answers GET and HEAD and nothing else, changes nothing, and knows no user, so it belongs where the metrics port belongs: inside the
cluster. The browser is told to run nothing and to fetch nothing: what a job's author writes can become text and no more. ``/metrics`` is the
same as without the page.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, make_wsgi_app

from rljob_operator.page.document import job_page, jobs_page, missing_page
from rljob_operator.page.history import Recorder
from rljob_operator.page.model import JobPageJson, StatusPageJson
from rljob_operator.page.sheet import DIGEST
from rljob_operator.rebalance import timestamp
from rljob_planner import __version__

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

FRESH_S = 1.0
"""How long an answer is given again: reloading pages must not take the operator's time from its jobs."""

MOST_ANSWERS = 64
"""Answers that are kept at a time."""

_POLICY = f"default-src 'none'; style-src '{DIGEST}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_HTML, _JSON = "text/html; charset=utf-8", "application/json"
_JOB = re.compile(r"(?P<api>/api)?/jobs/(?P<namespace>[a-z0-9.-]{1,253})/(?P<name>[a-z0-9.-]{1,253})")

Answer = tuple[str, str, bytes]
"""Status, content type and body."""


class StatusPage:
    """The WSGI application of the metrics port."""

    def __init__(
        self,
        recorder: Recorder,
        registry: CollectorRegistry,
        *,
        leads: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Show what ``recorder`` has seen, and the metrics of ``registry``; ``leads`` says whether this replica does."""
        self._recorder = recorder
        self._metrics: WSGIApplication = make_wsgi_app(registry)
        self._leads = leads
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, bool], tuple[float, Answer]] = {}

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        path, method = str(environ.get("PATH_INFO") or "/"), environ["REQUEST_METHOD"]
        if path == "/metrics":
            return self._metrics(environ, start)
        if method not in ("GET", "HEAD"):
            return _send(
                start, ("405 Method Not Allowed", "text/plain", b"only GET and HEAD\n"), True, ("Allow", "GET, HEAD")
            )
        refresh = parse_qs(str(environ.get("QUERY_STRING", ""))[:200]).get("refresh") != ["off"]
        return _send(start, self._fresh(path, refresh), method == "GET")

    def _fresh(self, path: str, refresh: bool) -> Answer:
        """The answer to a path, written at most once in ``FRESH_S``; one at a time is."""
        if not (path in ("/", "/api/jobs") or _JOB.fullmatch(path)):
            return _missing(
                path, "There is no page of this name. Metrics are at /metrics, the jobs at / and /api/jobs."
            )
        with self._lock:
            now_s = self._clock()
            known = self._answers.get((path, refresh))
            if known is not None and 0.0 <= now_s - known[0] < FRESH_S:
                return known[1]
            if len(self._answers) >= MOST_ANSWERS:
                self._answers.clear()
            answer = self._answer(path, refresh, now_s)
            self._answers[path, refresh] = (now_s, answer)
            return answer

    def _answer(self, path: str, refresh: bool, now_s: float) -> Answer:
        about: dict[str, Any] = {
            "version": __version__,
            "recorded_since": timestamp(self._recorder.since_s),
            "at": timestamp(now_s),
            "leading": self._leads(),
        }
        wanted = _JOB.fullmatch(path)
        if wanted is None:
            jobs = StatusPageJson(**about, jobs=self._recorder.jobs())
            if path == "/api/jobs":
                return "200 OK", _JSON, _dumped(jobs)
            return "200 OK", _HTML, jobs_page(jobs, self._recorder.curves(), refresh=refresh).encode()
        found = self._recorder.job(wanted["namespace"], wanted["name"])
        if found is None:
            return _missing(
                path, f"There is no RLJob {wanted['name']} in the namespace {wanted['namespace']}, or not any more."
            )
        job = JobPageJson(**about, job=found)
        if wanted["api"]:
            return "200 OK", _JSON, _dumped(job)
        return "200 OK", _HTML, job_page(job, refresh=refresh).encode()


def _missing(path: str, words: str) -> Answer:
    if path.startswith("/api/"):
        return "404 Not Found", _JSON, b'{"error": "not found"}\n'
    return "404 Not Found", _HTML, missing_page(words).encode()


def _dumped(model: StatusPageJson | JobPageJson) -> bytes:
    return (model.model_dump_json(by_alias=True, exclude_none=True) + "\n").encode()


def _send(start: StartResponse, answer: Answer, with_body: bool, *more: tuple[str, str]) -> Iterable[bytes]:
    status, kind, body = answer
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *_HEADERS, *more])
    return [body] if with_body else [b""]
