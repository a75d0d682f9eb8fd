"""An asynchronous client of a Prometheus server, as far as this operator needs one.

Only instant queries at a given time, so that all of a job's readings speak of one instant. Every failure becomes one
exception whose message says what to check. Warnings count as failures: Thanos and Mimir answer with one when a part of the
data did not come, and a part must never be read as the whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

LONGEST_URL = 2000
"""Characters of a question beyond which it is sent as a form: proxies cut long addresses off, and all can take a form."""

NONSENSE = 1e15
"""Beyond every count, size and time of a job: such a number, or infinity, is no measurement, and is left out as NaN is."""


class PrometheusError(Exception):
    """Prometheus did not answer as it should; the message says what to check."""


@dataclass(frozen=True)
class Series:
    """One series of an answer."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]
    """Pairs of time (s since the epoch) and value, in order of time; one pair in the answer to a vector query. Never NaN, nor
    ``NONSENSE`` or more."""

    @property
    def name(self) -> str:
        """The metric's name, empty where an expression removed it."""
        return self.labels.get("__name__", "")

    @property
    def pod(self) -> str:
        """The pod that was scraped, empty if the scrape does not say."""
        return self.labels.get("pod", "")

    @property
    def last(self) -> tuple[float, float]:
        """Time and value of the newest point."""
        return self.points[-1]


class Prometheus:
    """Instant queries against one server; the session (TLS, credentials, connection limits) belongs to the caller."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, timeout_s: float = 10.0) -> None:
        """Query the server whose API is under ``url`` + ``/api/v1``; ``timeout_s`` bounds each query."""
        self.url = url.rstrip("/")
        self._session = session
        self._timeout_s = timeout_s

    async def query(self, promql: str, *, at: float) -> list[Series]:
        """The series that ``promql`` (an instant or range vector) gives at ``at`` (s since the epoch).

        Raises PrometheusError if the server cannot be reached, is too slow, refuses, or answers only in part.
        """
        try:
            question = {"query": promql, "time": f"{at:.3f}"}
            form = len(promql) > LONGEST_URL
            async with self._session.request(
                "POST" if form else "GET",
                f"{self.url}/api/v1/query",
                params=None if form else question,
                data=question if form else None,
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                # The operator's configuration allows named servers; a redirect must not lead to another.
                allow_redirects=False,
            ) as response:
                status, body = response.status, await response.text()
        except TimeoutError as error:
            raise PrometheusError(
                f"Prometheus at {self.url} did not answer within {self._timeout_s:g} s: check that it runs and is not overloaded"
            ) from error
        except (aiohttp.ClientError, UnicodeDecodeError, ValueError) as error:
            raise PrometheusError(
                f"cannot reach Prometheus at {self.url} ({error}): check that it runs, that spec.metrics.prometheus is its URL "
                "as seen from the operator, and that no NetworkPolicy stands between"
            ) from error
        return _parsed(self.url, status, body)


def _parsed(url: str, status: int, body: str) -> list[Series]:
    if status in (401, 403):
        raise PrometheusError(
            f"Prometheus at {url} refuses the operator (HTTP {status}): give the operator credentials for it"
        )
    if status == 404 or 300 <= status < 400:
        raise PrometheusError(
            f"{url} has no query API (HTTP {status}): spec.metrics.prometheus must be the URL before /api/v1"
        )
    try:
        answer = json.loads(body)
        data = answer.get("data") or {}
        error, warnings = answer.get("error"), answer.get("warnings")
    except (ValueError, AttributeError) as problem:
        raise PrometheusError(
            f"{url} did not answer as Prometheus does (HTTP {status}): check spec.metrics.prometheus"
        ) from problem
    if status != 200 or answer.get("status") != "success":
        raise PrometheusError(
            f"Prometheus at {url} could not answer (HTTP {status}: {error or 'no reason given'}): check its log and its limits"
        )
    if warnings:
        raise PrometheusError(f"Prometheus at {url} answered only in part ({warnings[0]}): check its stores")
    try:
        return [series for row in data["result"] if (series := _series(row)).points]
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise PrometheusError(
            f"{url} sent a result that is not a vector: check that it is a Prometheus server"
        ) from problem


def _series(row: dict[str, Any]) -> Series:
    points = row["values"] if "values" in row else [row["value"]]
    numbers = [(float(time), float(value)) for time, value in points]
    return Series(row["metric"], tuple((time, value) for time, value in numbers if abs(value) < NONSENSE))
