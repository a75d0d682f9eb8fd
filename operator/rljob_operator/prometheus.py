"""An asynchronous client of a Prometheus server, as far as this operator needs one.

Only instant queries at a given time, so that all of a job's readings speak of one instant. Every failure becomes one
exception whose message says what to check. Warnings count as failures: Thanos and Mimir answer with one when a part of the
data did not come, and a part must never be read as the whole.

A server is asked and not trusted: no redirect is followed, an answer is read up to a size and for a time and no further, packed or
not, and whatever it holds becomes numbers or an error. What a server says of itself ends up in messages only shortened.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from rljob_operator.credentials import Credentials, CredentialsError

LONGEST_URL = 2000
"""Characters of a question beyond which it is sent as a form: proxies cut long addresses off, and all can take a form."""

NONSENSE = 1e15
"""Beyond every count, size and time of a job: such a number, or infinity, is no measurement, and is left out as NaN is."""

LARGEST_ANSWER_BYTES = 8 << 20
"""Bytes, unpacked, beyond which an answer is refused: ten thousand series, more than any job has, and no more than the operator's memory bears."""

LONGEST_QUOTE = 300
"""Characters of what a server says of itself that are passed on to people: they end up in the status of a job."""

CONNECTIONS = 20
"""Connections to all Prometheus servers together, and so the answers that are in memory at a time."""


def open_session() -> aiohttp.ClientSession:
    """A session for all Prometheus servers: no cookies, no proxy from the environment, not many connections."""
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)


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
    """Instant queries against one server; the session (connection limits) belongs to the caller."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        credentials: Credentials | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Query the server whose API is under ``url`` + ``/api/v1``; ``timeout_s`` bounds each query. Without ``credentials`` it shows none."""
        self.url = url.rstrip("/")
        self._session = session
        self._credentials = credentials or Credentials()
        self._timeout_s = timeout_s

    async def query(self, promql: str, *, at: float) -> list[Series]:
        """The series that ``promql`` (an instant or range vector) gives at ``at`` (s since the epoch).

        Raises PrometheusError if the server cannot be reached, is too slow, refuses, answers only in part, or with more than can be.
        """
        try:
            access = self._credentials.access(self.url)
            question = {"query": promql, "time": f"{at:.3f}"}
            form = len(promql) > LONGEST_URL
            async with self._session.request(
                "POST" if form else "GET",
                f"{self.url}/api/v1/query",
                params=None if form else question,
                data=question if form else None,
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                headers={**access.headers, "Accept": "application/json", "Accept-Encoding": "gzip"},
                ssl=access.ssl,
                # The operator's configuration allows named servers; a redirect must not lead to another.
                allow_redirects=False,
                # Unpacked below, where its size is bounded.
                auto_decompress=False,
            ) as response:
                status, body = response.status, await _read(self.url, response)
        except CredentialsError as error:
            raise PrometheusError(f"Prometheus at {self.url} was not asked: {error}") from error
        except TimeoutError as error:
            raise PrometheusError(
                f"Prometheus at {self.url} did not answer within {self._timeout_s:g} s: check that it runs and is not overloaded"
            ) from error
        except aiohttp.ClientSSLError as error:
            raise PrometheusError(
                f"Prometheus at {self.url} could not show who it is ({_short(error)}): check that its certificate is for this name, and "
                "that RLJOB_OPERATOR_PROMETHEUS_CA_FILE holds the authority that signed it"
            ) from error
        except (aiohttp.ClientError, OSError, UnicodeError, ValueError) as error:
            raise PrometheusError(
                f"cannot reach Prometheus at {self.url} ({_short(error)}): check that it runs, that spec.metrics.prometheus is its URL "
                "as seen from the operator, and that no NetworkPolicy stands between"
            ) from error
        return _parsed(self.url, status, body)


async def _read(url: str, response: aiohttp.ClientResponse) -> bytes:
    """The body, unpacked, up to the largest size that is taken; raises PrometheusError beyond it."""
    coding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip"):
        raise PrometheusError(
            f"{url} answered packed as {_short(coding)}, which was not asked for: check what stands before it"
        )
    packed = zlib.decompressobj(zlib.MAX_WBITS | 16) if coding == "gzip" else None
    body = bytearray()
    try:
        async for chunk in response.content.iter_any():
            left = LARGEST_ANSWER_BYTES + 1 - len(body)
            body += chunk[:left] if packed is None else packed.decompress(chunk, left)
            if len(body) > LARGEST_ANSWER_BYTES:
                raise PrometheusError(
                    f"Prometheus at {url} answered with more than {LARGEST_ANSWER_BYTES >> 20} MiB: check that it is a Prometheus, and that "
                    "the job's series carry no needless labels"
                )
    except zlib.error as error:
        raise PrometheusError(
            f"{url} sent an answer that can't be unpacked ({_short(error)}): check what stands before it"
        ) from error
    return bytes(body)


def _parsed(url: str, status: int, body: bytes) -> list[Series]:
    if status in (401, 403):
        raise PrometheusError(
            f"Prometheus at {url} refuses the operator (HTTP {status}): give the operator credentials for it, by "
            "RLJOB_OPERATOR_PROMETHEUS_BEARER_TOKEN_FILE and, for a server that jobs name, RLJOB_OPERATOR_PROMETHEUS_BEARER_TOKEN_URLS"
        )
    if status == 404 or 300 <= status < 400:
        raise PrometheusError(
            f"{url} has no query API (HTTP {status}): spec.metrics.prometheus must be the URL before /api/v1"
        )
    try:
        answer = json.loads(body)
        data = answer.get("data") or {}
        error, warnings = answer.get("error"), answer.get("warnings")
    except (ValueError, AttributeError, RecursionError) as problem:
        raise PrometheusError(
            f"{url} did not answer as Prometheus does (HTTP {status}): check spec.metrics.prometheus"
        ) from problem
    if status != 200 or answer.get("status") != "success":
        raise PrometheusError(
            f"Prometheus at {url} could not answer (HTTP {status}: {_short(error or 'no reason given')}): check its log and its limits"
        )
    if warnings:
        first = warnings[0] if isinstance(warnings, list) else warnings
        raise PrometheusError(f"Prometheus at {url} answered only in part ({_short(first)}): check its stores")
    try:
        return [series for row in data["result"] if (series := _series(row)).points]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as problem:
        raise PrometheusError(
            f"{url} sent a result that is not a vector: check that it is a Prometheus server"
        ) from problem


def _short(words: object) -> str:
    """What a server said, in so many printable characters that it can stand in a message."""
    text = "".join(c if c.isprintable() else " " for c in str(words)[: LONGEST_QUOTE + 1])
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"


def _series(row: dict[str, Any]) -> Series:
    labels = row["metric"]
    if not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise TypeError("a label that is no text")
    points = row["values"] if "values" in row else [row["value"]]
    numbers = [(float(time), float(value)) for time, value in points]
    return Series(labels, tuple((time, value) for time, value in numbers if abs(value) < NONSENSE))
