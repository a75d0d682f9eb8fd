"""What a sampler is doing, asked over its own HTTP server: vLLM or SGLang.

One look is several questions, because no single one tells the truth at all times:

- ``/metrics`` counts running and waiting samples, but while an engine is paused or asleep (a weight update under way) the numbers stand still
  and new samples are counted nowhere.
- ``/is_paused`` and ``/is_sleeping`` tell that; they exist only where the engine can be paused from outside.
- ``/load`` counts requests in every state, but only with ``--enable-server-load-tracking``; without it, it is always 0. So a 0 there is worth
  something only after another number was seen, or where the caller knows. A client that goes away may be taken off twice
  (vllm-project/vllm#49526): below 0 it counts nothing any more. Or it is never taken off (seen of 0.32): ``drain`` finds out what is counted too much.
- Gauges of some versions keep their last value when all clients go away at once, for ever if nobody comes (vllm-project/vllm#22545, #29928; 0.32
  does not). Counters tell: while anything runs, every iteration moves one.
- ``/health`` stays 200 while an engine is paused, asleep or draining; 503 says that the engine is dead.

A busy server may take seconds to answer. No answer is no news: neither idle nor gone.
"""

from __future__ import annotations

import http.client
import json
import math
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from enum import Enum, auto

from prometheus_client.parser import text_string_to_metric_families

RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
"""Gauges of samples that run."""

WAITING = (
    "vllm:num_requests_waiting",
    "vllm:num_requests_swapped",
    "sglang:num_queue_reqs",
    "sglang:num_paused_reqs",
)
"""Gauges of samples that were accepted and do not run."""

PROGRESS = (
    "vllm:iteration_tokens_total_count",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:realtime_tokens_total",
)
"""Counters of which at least one moves with every iteration of an engine that has something to run."""


class State(Enum):
    """What one look tells."""

    IDLE = auto()
    """Nothing runs or waits."""
    BUSY = auto()
    """Something runs or waits."""
    BLIND = auto()
    """Paused or asleep, and what it holds is not known."""
    SILENT = auto()
    """No answer in time, or none that says anything."""
    DEAD = auto()
    """The server answers that its engine is dead."""
    GONE = auto()
    """Nothing listens: not yet, or no more."""


@dataclass(frozen=True)
class Look:
    """One look at a sampler."""

    state: State
    """What it tells."""
    running: float = math.nan
    """Samples that run; NaN if unknown."""
    waiting: float = math.nan
    """Samples that wait; NaN if unknown."""
    load: float = math.nan
    """Requests that the server counts itself; NaN if it does not."""
    progress: float = math.nan
    """Sum of counters that stands still only while nothing runs; NaN if there are none."""
    halted: str = ""
    """``paused``, ``asleep``, or both where the engine does not tell them apart; empty if it goes on."""
    why: str = ""
    """Why there was no answer."""

    def __str__(self) -> str:
        if self.state in (State.SILENT, State.GONE, State.DEAD):
            return self.why
        counts = [
            f"{number:g} {what}"
            for number, what in ((self.running, "running"), (self.waiting, "waiting"), (self.load, "counted by /load"))
            if not math.isnan(number)
        ]
        # While it is halted, the metrics tell of the past.
        if self.halted:
            return f"{self.halted}, {counts[-1] if not math.isnan(self.load) else 'its requests unknown'}"
        return ", ".join(counts)


class Sampler:
    """A sampler's HTTP server. Not thread-safe."""

    def __init__(self, url: str, *, timeout_s: float = 5.0, tracks_load: bool = False) -> None:
        """Ask the server at base ``url``; an answer that takes longer than ``timeout_s`` is none.

        ``tracks_load``: it is known to run with ``--enable-server-load-tracking``.
        """
        self.url = url.rstrip("/")
        """Base URL."""
        self._timeout_s = timeout_s
        self._tracks_load: bool | None = tracks_load or None
        self._until_s = math.inf
        self._absent: set[str] = set()
        # As a kubelet's probes: the server of this very pod, by an address that no certificate is made for.
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        # A proxy of the environment would answer for a server that is gone.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=unchecked)
        )

    def look(self, within_s: float = math.inf) -> Look:
        """Ask once, for ``within_s`` seconds at most: what has no answer by then is not asked any more. Never raises."""
        self._until_s = time.monotonic() + within_s
        try:
            return self._look()
        except ConnectionRefusedError:
            return Look(State.GONE, why=f"nothing listens at {self.url}")
        except Exception as error:
            return Look(State.SILENT, why=f"{self.url} gave no answer: {error}")

    def _look(self) -> Look:
        status, _ = self._get("/health")
        if status == 503:
            return Look(State.DEAD, why=f"{self.url}/health says that the engine is dead")
        status, text = self._get("/metrics")
        if status != 200:
            return Look(State.SILENT, why=f"{self.url}/metrics answers {status}")
        running, waiting = _sum(text, RUNNING), _sum(text, WAITING)
        if math.isnan(running):
            return Look(State.SILENT, why=f"{self.url}/metrics has none of {', '.join(RUNNING)}")
        load = self._load()
        # Of vLLM 0.32, an engine that sleeps says that it is paused, too, and one that is paused that it sleeps.
        states = (("paused", "/is_paused"), ("asleep", "/is_sleeping"))
        halted = " or ".join(word for word, path in states if self._flag(path))
        if load > 0.0:
            state = State.BUSY
        elif halted:
            state = State.BLIND if math.isnan(load) else State.IDLE
        else:
            state = State.BUSY if running + (0.0 if math.isnan(waiting) else waiting) > 0.0 else State.IDLE
        return Look(state, running, waiting, load, _sum(text, PROGRESS), halted)

    def _load(self) -> float:
        """Requests by ``/load``; NaN as long as it is not known that they are counted, and once they are counted wrongly."""
        found = self._number("/load", "server_load")
        if found is None or found < 0.0:
            self._tracks_load = False
        elif found > 0.0 and self._tracks_load is None:
            self._tracks_load = True
        return found if found is not None and self._tracks_load else math.nan

    def _flag(self, path: str) -> bool:
        return bool(self._number(path, path.removeprefix("/")))

    def _number(self, path: str, key: str) -> float | None:
        """A number of a JSON answer; None where the server has no such question."""
        if path in self._absent:
            return None
        status, text = self._get(path)
        if status in (404, 405):
            self._absent.add(path)
            return None
        if status != 200:
            raise OSError(f"{path} answers {status}")
        answer = json.loads(text)
        return float(answer[key]) if isinstance(answer, dict) and key in answer else None

    def _get(self, path: str) -> tuple[int, str]:
        """Status and text. ConnectionRefusedError if nothing listens, else another OSError."""
        # A connection of its own each time: with several API servers behind a port, one that is kept would ask the same one for ever.
        request = urllib.request.Request(self.url + path, headers={"Connection": "close"})
        begin_s = time.monotonic()
        until_s = min(begin_s + self._timeout_s, self._until_s)
        if until_s <= begin_s:
            raise TimeoutError(f"no time was left to ask for {path}")
        try:
            with self._opener.open(request, timeout=until_s - begin_s) as answer:
                parts = []
                # The timeout is one of each read, so an answer that comes in drops needs a look at the time.
                while part := answer.read1(1 << 16):
                    parts.append(part)
                    if time.monotonic() > until_s:
                        raise TimeoutError(f"{path} was not answered in time")
                return answer.status, b"".join(parts).decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, ""
        except urllib.error.URLError as error:
            raise error.reason if isinstance(error.reason, OSError) else OSError(str(error.reason)) from error
        except http.client.HTTPException as error:
            raise OSError(f"{path}: {error!r}") from error


def _sum(text: str, names: tuple[str, ...]) -> float:
    """The sum of gauges over all engines of the server; NaN if none of them is there."""
    found = [line for line in text.splitlines() if line.startswith(names)]
    samples = [
        sample.value
        for family in text_string_to_metric_families("\n".join(found) + "\n")
        for sample in family.samples
        if sample.name in names
    ]
    return math.fsum(samples) if samples else math.nan
