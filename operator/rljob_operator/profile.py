"""Measures a live server: completions at several concurrencies, by what its engine counts or, where it counts nothing, by the streams.

The server is asked as a sampler would be: a closed loop of so many requests, each started when another ends. An engine that counts its own
steps (``vllm:*``, ``engine_counters``) is believed, since a busy server delivers tokens later than the engine makes them; those counters also
tell when somebody else's requests ran meanwhile, which would make every row wrong. Any other server with an OpenAI API is measured
by its streams, token by token.

Levels are gone through several times, there and back, and the median of each counts: what slows the machine for a while then falls on all
of them, and how far the rounds differ tells what a measurement is worth.

Prompts are random token ids, so that no prefix cache has seen them. Responses go on to their limit (``ignore_eos``), so that the load
stays what it is said to be. Everything is bounded: requests, seconds, tokens. A level that ran out of time counts with what it
finished.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from rljob_operator.engine_counters import (
    SPREAD,
    EngineCounters,
    engine_counters,
    grown,
    mean_step,
    prefill_s,
    spread_length,
)
from rljob_operator.exposition import ExpositionError, Sample, cache_tokens, engines, parse_exposition, total
from rljob_planner.bench_files import RequestTiming, row_of_requests
from rljob_planner.fit import MeasuredStep, median_row
from rljob_planner.fit_seconds import prefill_row

CONNECT_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 60.0
"""Seconds without a byte after which a stream is dead: a busy engine has been seen to stall for several."""
OTHERS = 0.10
"""Share of generated tokens beyond our own from which somebody else uses the server."""
DISAGREEMENT = 0.15
"""Relative difference between rounds, or between our time per token and the engine's own, from which something is in the way."""

CUT_SHORT = "the server cut a response short: it is draining, paused, or out of room"

_CUT = ("abort", "error")
_LOWEST_TOKEN, _HIGHEST_TOKEN = 10, 100
"""Token ids that every vocabulary has."""


class ProfileError(Exception):
    """A server that could not be measured; the message says what to check."""


@dataclass(frozen=True)
class Load:
    """What a server is asked to do."""

    concurrency: tuple[int, ...] = (1, 4, 16)
    """Requests at a time, one level after the other."""
    requests: int | None = None
    """Requests of a level, over all rounds; None: three times its concurrency in each, at least six."""
    prompt_tokens: tuple[int, ...] = (128,)
    """Lengths of prompts; each level is run with each of them, so that contexts differ."""
    response_tokens: int = 128
    """Length of responses; their mean where an engine is measured by its counters (``engine_counters.spread_length``)."""
    max_s: float = 120.0
    """Seconds for everything."""
    rounds: int = 2
    """How often all levels are gone through, each time in the other direction."""

    def count(self, concurrency: int) -> int:
        """Requests of a level in one round."""
        if self.requests is None:
            return max(6, 3 * concurrency)
        return max(concurrency, -(-self.requests // self.rounds))


@dataclass(frozen=True)
class Profile:
    """What a live server showed."""

    rows: tuple[MeasuredStep, ...]
    skipped: tuple[tuple[str, str], ...]
    model: str
    """Name or path of the weights, as the server gives it."""
    kv_tokens: int | None
    """KV room that the server reports, None if it does not."""
    notes: tuple[str, ...] = ()


Progress = Callable[[str], None]


async def profile(
    url: str, load: Load, *, model: str | None = None, api_key: str | None = None, progress: Progress = lambda _: None
) -> Profile:
    """Measures the server under ``url`` (with or without ``/v1``).

    ``model``: which of the server's models, by default its first. ``api_key``: sent as a bearer token. ``progress`` is told what is being done. Raises ProfileError if
    the server cannot be reached or refuses.
    """
    base = url.rstrip("/").removesuffix("/v1").rstrip("/")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=STALL_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    headers = None if api_key is None else {"Authorization": f"Bearer {api_key}"}
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:
        return await _Profiler(session, base, load, progress).run(model)


@dataclass
class _Profiler:
    session: aiohttp.ClientSession
    base: str
    load: Load
    progress: Progress
    random: random.Random = field(default_factory=lambda: random.Random(0))
    exact: bool = True
    """Whether the server takes vLLM's extra parameters."""
    notes: list[str] = field(default_factory=list)

    async def run(self, wished: str | None) -> Profile:
        served, root, longest = await self._model(wished)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.load.max_s
        metrics = await self._metrics()
        if metrics is None:
            self.notes.append(
                f"{self.base}/metrics has no metrics: the KV room is computed, and others' requests would go unnoticed"
            )
        skipped: list[tuple[str, str]] = []
        self.progress("warming up")
        warm_up = min(self.load.prompt_tokens)
        await self._streamed(served, warm_up, min(16, self.load.response_tokens), loop.time() + STALL_TIMEOUT_S)
        levels = []
        for prompt in self.load.prompt_tokens:
            if longest is not None and prompt + self._longest_response(metrics) > longest:
                skipped.append((f"{self.base}, prompts of {prompt}", f"longer than the server's {longest} tokens"))
                continue
            levels += [(concurrency, prompt) for concurrency in self.load.concurrency]
        runs = [level for number in range(self.load.rounds) for level in (levels if number % 2 == 0 else levels[::-1])]
        found: dict[tuple[int, int], list[MeasuredStep]] = {}
        alone: dict[int, list[MeasuredStep]] = {}
        reasons: dict[tuple[int, int], str] = {}
        for number, (concurrency, prompt) in enumerate(runs):
            if loop.time() >= deadline:
                reasons.setdefault((concurrency, prompt), f"the {self.load.max_s:g} s were over: raise --max-seconds")
                continue
            self.progress(f"{number + 1} of {len(runs)}: {concurrency} requests at a time, prompts of {prompt} tokens")
            # What is left is shared out over the runs that are left.
            until = loop.time() + (deadline - loop.time()) / (len(runs) - number)
            rows, reason = await self._level(_name(self.base, concurrency, prompt), served, concurrency, prompt, until)
            if rows:
                found.setdefault((concurrency, prompt), []).append(rows[0])
                alone.setdefault(prompt, []).extend(rows[1:])
            else:
                reasons[concurrency, prompt] = reason
        rows = [self._of_rounds(found[level]) for level in levels if level in found]
        rows += [median_row(several) for several in alone.values() if several]
        skipped += [(_name(self.base, *level), reasons[level]) for level in levels if level not in found]
        kv_tokens, several = (None, 1) if metrics is None else (cache_tokens(metrics), engines(metrics))
        if several > 1:
            self.notes.append(
                f"the server runs {several} engines: what is said is of one of them, with its share of the requests"
            )
        notes = tuple(dict.fromkeys(self.notes))
        return Profile(tuple(rows), tuple(skipped), root, None if kv_tokens is None else kv_tokens // several, notes)

    def _of_rounds(self, rows: Sequence[MeasuredStep]) -> MeasuredStep:
        """The median of a level's rounds, with a word where they differ."""
        times = [row.measured_s for row in rows]
        if max(times) > (1.0 + DISAGREEMENT) * min(times):
            self.notes.append(
                f"{rows[0].source}: its rounds took {min(times) * 1e3:.2f} to {max(times) * 1e3:.2f} ms a token: the machine is not "
                "quiet; more rounds (--rounds) even that out"
            )
        return median_row(rows)

    async def _level(
        self, name: str, served: str, concurrency: int, prompt: int, until: float
    ) -> tuple[list[MeasuredStep], str]:
        """One closed loop: the mean step, and that of a prompt alone where it is told; or why there is none."""
        before = await self._metrics()
        counted = None if before is None else engine_counters(before)
        loop = asyncio.get_running_loop()
        began, count = loop.time(), self.load.count(concurrency)
        left = count
        timings: list[RequestTiming] = []
        failures: list[str] = []
        full: list[tuple[float, list[Sample] | None]] = []

        async def worker() -> None:
            nonlocal left
            while left > 0 and loop.time() < until:
                left -= 1
                try:
                    if counted is None:
                        timing = await self._streamed(served, prompt, self.load.response_tokens, until)
                    else:
                        response = spread_length(self.load.response_tokens, count - left)
                        timing = await self._whole(served, prompt, response, until)
                except ProfileError as error:
                    failures.append(str(error))
                    return
                if timing is not None:
                    timings.append(timing)
            if not full:
                # From here on fewer run than the level is of.
                full.append((loop.time(), None))
                full[0] = (loop.time(), await self._metrics())

        await asyncio.gather(*(worker() for _ in range(concurrency)))
        if failures and len(timings) >= min(concurrency, 2):
            self.notes.append(f"{name}: {len(failures)} requests failed ({failures[0]})")
        elif failures:
            return [], failures[0]
        after = await self._metrics()
        if counted is not None and before is not None and full:
            reason = self._disturbed(before, after, timings, concurrency)
            response = self._mean_response(timings)
            return (
                ([], reason) if reason else self._counted(name, counted, full[0], began, concurrency, prompt, response)
            )
        if len(timings) < min(concurrency, 2):
            return [], "too few requests were done in time: raise --max-seconds or shorten responses"
        row = row_of_requests(name, timings)
        if row is None:
            return [], "no stream had more than one token"
        reason = self._disturbed(before, after, timings, concurrency)
        return (
            ([], reason) if reason else ([self._compared(_of_one_engine(row, engines(after or [])), before, after)], "")
        )

    def _counted(
        self,
        name: str,
        before: EngineCounters,
        full: tuple[float, list[Sample] | None],
        began: float,
        concurrency: int,
        prompt: int,
        response: float,
    ) -> tuple[list[MeasuredStep], str]:
        """The rows of a level by what the engine counted while it was full."""
        ended, samples = full
        later = None if samples is None else engine_counters(samples)
        window = None if later is None else grown(before, later)
        if window is None:
            return [], "its metrics went away or began anew in between"
        row = mean_step(name, window, ended - began, engines(samples or []), concurrency, prompt, response)
        if row is None:
            return [], "too few tokens were made in time: raise --max-seconds"
        seconds = prefill_s(window, prompt) if concurrency == 1 else None
        return [row, *([] if seconds is None else [prefill_row(f"{name}, its prefill", prompt, seconds)])], ""

    def _longest_response(self, metrics: list[Sample] | None) -> int:
        """Tokens of the longest response that is asked for."""
        spread = 0.0 if metrics is None or engine_counters(metrics) is None else SPREAD
        return round(self.load.response_tokens * (1.0 + spread))

    def _mean_response(self, timings: Sequence[RequestTiming]) -> float:
        """Mean length of the responses that were finished; what was asked for where none was."""
        lengths = [t.response_tokens for t in timings]
        return sum(lengths) / len(lengths) if lengths else float(self.load.response_tokens)

    def _disturbed(
        self,
        before: list[Sample] | None,
        after: list[Sample] | None,
        timings: Sequence[RequestTiming],
        concurrency: int,
    ) -> str:
        """Why a level is not what it seems by the engine's own word; empty if it is."""
        ours = sum(t.response_tokens for t in timings)
        generated = _growth(before, after, "vllm:generation_tokens_total")
        preempted = _growth(before, after, "vllm:num_preemptions_total")
        # Requests that ran out of time generated tokens that are ours and not among the timings; the room allows for them.
        unfinished = concurrency * (1.0 + SPREAD) * self.load.response_tokens
        if generated is not None and generated > (1.0 + OTHERS) * ours + unfinished:
            return f"others used the server: it generated {generated:.0f} tokens, {ours:.0f} of them for this"
        if preempted:
            return f"{preempted:.0f} preemptions: the KV cache was full, so that tokens were computed twice"
        return ""

    def _compared(self, row: MeasuredStep, before: list[Sample] | None, after: list[Sample] | None) -> MeasuredStep:
        """The row of streams, with a word where the engine says something else."""
        seconds = _growth(
            before, after, "vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"
        )
        tokens = _growth(
            before, after, "vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"
        )
        if seconds and tokens and abs(row.measured_s / (seconds / tokens) - 1.0) > DISAGREEMENT:
            self.notes.append(
                f"{row.source}: a token took {row.measured_s * 1e3:.2f} ms here and {seconds / tokens * 1e3:.2f} ms by the "
                "engine's own metrics: measure from nearer to the server"
            )
        return row

    async def _streamed(self, served: str, prompt: int, response: int, until: float) -> RequestTiming | None:
        """One streamed completion; None if time ran out before it ended."""
        beside = {"stream": True, "stream_options": {"include_usage": True}}
        timing = await self._request(served, prompt, response, until, beside)
        return timing if isinstance(timing, RequestTiming) else None

    async def _whole(self, served: str, prompt: int, response: int, until: float) -> RequestTiming | None:
        """One completion in a piece, which a busy server has less work with; None if time ran out before it ended."""
        answer = await self._request(served, prompt, response, until, {"stream": False})
        if not isinstance(answer, dict):
            return None
        choices = answer.get("choices") or [{}]
        if choices[0].get("finish_reason") in _CUT:
            raise ProfileError(CUT_SHORT)
        usage = answer.get("usage") or {}
        now = asyncio.get_running_loop().time()
        return RequestTiming(now, now, float(prompt), float(usage.get("completion_tokens") or response))

    async def _request(
        self, served: str, prompt: int, response: int, until: float, beside: dict[str, Any]
    ) -> RequestTiming | dict[str, Any] | None:
        """One completion: the times of a stream, or the whole answer; None if time ran out before it ended."""
        body: dict[str, Any] = {
            "model": served,
            "prompt": [self.random.randint(_LOWEST_TOKEN, _HIGHEST_TOKEN) for _ in range(prompt)],
            "max_tokens": response,
            "temperature": 1.0,
            **beside,
        }
        if self.exact:
            body |= {"ignore_eos": True, "min_tokens": response, "return_token_ids": True}
        # A whole answer comes when it is done, a stream all the time.
        patience = None if beside["stream"] else aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        loop = asyncio.get_running_loop()
        remaining = until - loop.time()
        if remaining <= 0:
            return None
        try:
            async with asyncio.timeout(remaining):
                async with self.session.post(
                    f"{self.base}/v1/completions",
                    json=body,
                    allow_redirects=False,
                    timeout=patience or self.session.timeout,
                ) as answer:
                    if answer.status == 400 and self.exact:
                        self.exact = False
                        self.notes.append("the server does not take ignore_eos: responses may end before their limit")
                        return await self._request(served, prompt, response, until, beside)
                    if answer.status != 200:
                        raise ProfileError(_refusal(self.base, answer.status, await answer.text()))
                    if beside["stream"]:
                        return await _timed(answer, prompt)
                    whole = await answer.json()
                    return whole if isinstance(whole, dict) else None
        except TimeoutError:
            return None
        except (aiohttp.ClientError, OSError) as error:
            raise ProfileError(f"{self.base}: the answer broke off ({error or type(error).__name__})") from error
        except ValueError as error:
            raise ProfileError(f"{self.base}: the answer is no JSON, so that this is no OpenAI API") from error

    async def _model(self, wished: str | None) -> tuple[str, str, int | None]:
        """The name to ask for, the weights behind it, and the longest context."""
        try:
            async with self.session.get(f"{self.base}/v1/models", allow_redirects=False) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise ProfileError(_refusal(self.base, answer.status, text))
                listed = json.loads(text)["data"]
                models = {str(m["id"]): m for m in listed}
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ProfileError(
                f"cannot reach {self.base} ({error or type(error).__name__}): check that the server runs and that this is its URL"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ProfileError(f"{self.base}/v1/models is not an OpenAI API's: check the URL") from error
        if not models:
            raise ProfileError(f"{self.base} serves no model")
        served = wished if wished in models else next(iter(models))
        longest = models[served].get("max_model_len")
        return served, str(models[served].get("root") or served), longest if isinstance(longest, int) else None

    async def _metrics(self) -> list[Sample] | None:
        """What ``/metrics`` shows, None if there is nothing to read."""
        try:
            async with self.session.get(f"{self.base}/metrics", allow_redirects=False) as answer:
                if answer.status != 200:
                    return None
                return parse_exposition(await answer.text(), f"{self.base}/metrics")
        except (aiohttp.ClientError, OSError, TimeoutError, ExpositionError):
            return None


def _name(base: str, concurrency: int, prompt: int) -> str:
    return f"{base}, {concurrency} at a time, prompts of {prompt}"


def _growth(before: list[Sample] | None, after: list[Sample] | None, *names: str) -> float | None:
    """What a counter grew by, None where it is not known or began anew."""
    old, new = total(before or [], *names), total(after or [], *names)
    return None if old is None or new is None or new < old else new - old


def _of_one_engine(row: MeasuredStep, several: int) -> MeasuredStep:
    """The row of one of so many engines, over which the server spreads its requests evenly."""
    return replace(row, running=max(1.0, row.running / several), prefills_per_step=row.prefills_per_step / several)


async def _timed(answer: aiohttp.ClientResponse, prompt: int) -> RequestTiming | None:
    """The times of a stream's tokens. A chunk may carry several, so the count is the server's own where it gives one.

    A chunk without text is a token, too: part of a character, or one of a server that returns token ids alone.
    """
    loop = asyncio.get_running_loop()
    first = last = 0.0
    chunks = 0
    counted: int | None = None
    prompted: int | None = None
    async for line in answer.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            break
        now = loop.time()
        try:
            event = json.loads(data)
        except ValueError:
            continue
        if event.get("error"):
            raise ProfileError(f"the server ended a stream: {event['error']}")
        usage = event.get("usage")
        if isinstance(usage, dict):
            counted, prompted = usage.get("completion_tokens"), usage.get("prompt_tokens")
        choices = event.get("choices") or []
        if not choices:
            continue
        if choices[0].get("finish_reason") in _CUT:
            raise ProfileError(CUT_SHORT)
        chunks += len(choices[0].get("token_ids") or ()) or 1
        first, last = first or now, now
    if last <= first:
        return None
    tokens = float(counted) if isinstance(counted, int) and counted >= chunks else float(chunks)
    return RequestTiming(first, last, float(prompted or prompt), tokens)


def _refusal(base: str, status: int, text: str) -> str:
    why = {
        401: "it wants an API key (--api-key)",
        403: "it refuses access",
        404: "there is no OpenAI API: give the server's URL, without a path",
        503: "it is paused, full, or still loading",
    }
    said = " ".join(text.split())[:200]
    return f"{base} answered HTTP {status}: {why.get(status, said or 'no reason given')}"
