"""Measures a live server: streams completions at several concurrencies and reads its metrics beside them.

The server is asked as a sampler would be: a closed loop of so many requests, each started when another ends. What is timed is the
stream itself, token by token, so that any server with an OpenAI API can be measured; what its engine says of itself (``vllm:*``)
is a second opinion, and tells when somebody else's requests ran meanwhile, which would make every row wrong.

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

from rljob_operator.exposition import ExpositionError, Sample, cache_tokens, engines, parse_exposition, total
from rljob_planner.bench_files import RequestTiming, row_of_requests
from rljob_planner.fit import MeasuredStep

CONNECT_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 60.0
"""Seconds without a byte after which a stream is dead: a busy engine has been seen to stall for several."""
OTHERS = 0.10
"""Share of generated tokens beyond our own from which somebody else uses the server."""
DISAGREEMENT = 0.15
"""Relative difference between our time per token and the engine's own from which the network is in the way."""

_LOWEST_TOKEN, _HIGHEST_TOKEN = 10, 250
"""Token ids that every vocabulary has."""


class ProfileError(Exception):
    """A server that could not be measured; the message says what to check."""


@dataclass(frozen=True)
class Load:
    """What a server is asked to do."""

    concurrency: tuple[int, ...] = (1, 4, 16)
    """Requests at a time, one level after the other."""
    requests: int | None = None
    """Requests of a level; None: three times its concurrency, at least six."""
    prompt_tokens: tuple[int, ...] = (128,)
    """Lengths of prompts; each level is run with each of them, so that contexts differ."""
    response_tokens: int = 128
    max_s: float = 120.0
    """Seconds for everything."""

    def count(self, concurrency: int) -> int:
        """Requests of a level."""
        return max(concurrency, self.requests if self.requests is not None else max(6, 3 * concurrency))


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
        levels = [(c, p) for p in self.load.prompt_tokens for c in self.load.concurrency]
        rows: list[MeasuredStep] = []
        skipped: list[tuple[str, str]] = []
        self.progress("warming up")
        warm_up = min(self.load.prompt_tokens)
        await self._request(served, warm_up, min(16, self.load.response_tokens), loop.time() + STALL_TIMEOUT_S)
        for number, (concurrency, prompt) in enumerate(levels):
            name = f"{self.base}, {concurrency} at a time, prompts of {prompt}"
            if longest is not None and prompt + self.load.response_tokens > longest:
                skipped.append((name, f"longer than the server's {longest} tokens"))
                continue
            if loop.time() >= deadline:
                skipped.append((name, f"the {self.load.max_s:g} s were over: raise --max-seconds"))
                continue
            self.progress(
                f"{number + 1} of {len(levels)}: {concurrency} requests at a time, prompts of {prompt} tokens"
            )
            # What is left is shared out over the levels that are left.
            until = loop.time() + (deadline - loop.time()) / (len(levels) - number)
            row, reason = await self._level(name, served, concurrency, prompt, until)
            if row is None:
                skipped.append((name, reason))
            else:
                rows.append(row)
        kv_tokens, several = (None, 1) if metrics is None else (cache_tokens(metrics), engines(metrics))
        if several > 1:
            self.notes.append(
                f"the server runs {several} engines: what is said is of one of them, with its share of the requests"
            )
        return Profile(
            tuple(rows), tuple(skipped), root, None if kv_tokens is None else kv_tokens // several, tuple(self.notes)
        )

    async def _level(
        self, name: str, served: str, concurrency: int, prompt: int, until: float
    ) -> tuple[MeasuredStep | None, str]:
        """One closed loop, and what its streams and the engine say of it."""
        before = await self._metrics()
        left = self.load.count(concurrency)
        timings: list[RequestTiming] = []
        failures: list[str] = []

        async def worker() -> None:
            nonlocal left
            while left > 0 and asyncio.get_running_loop().time() < until:
                left -= 1
                try:
                    timing = await self._request(served, prompt, self.load.response_tokens, until)
                except ProfileError as error:
                    failures.append(str(error))
                    return
                if timing is not None:
                    timings.append(timing)

        await asyncio.gather(*(worker() for _ in range(concurrency)))
        if len(timings) < min(concurrency, 2):
            why = (
                failures[0]
                if failures
                else "too few requests were done in time: raise --max-seconds or shorten responses"
            )
            return None, why
        if failures:
            self.notes.append(f"{name}: {len(failures)} requests failed ({failures[0]})")
        row = row_of_requests(name, timings)
        if row is None:
            return None, "no stream had more than one token"
        after = await self._metrics()
        checked, reason = self._checked(row, timings, before, after)
        return (checked if checked is None else _of_one_engine(checked, engines(after or []))), reason

    def _checked(
        self,
        row: MeasuredStep,
        timings: Sequence[RequestTiming],
        before: list[Sample] | None,
        after: list[Sample] | None,
    ) -> tuple[MeasuredStep | None, str]:
        """The row, unless the engine says that it is not what it seems."""
        if before is None or after is None:
            return row, ""

        def grown(*names: str) -> float | None:
            old, new = total(before, *names), total(after, *names)
            return None if old is None or new is None or new < old else new - old

        ours = sum(t.response_tokens for t in timings)
        generated, preempted = grown("vllm:generation_tokens_total"), grown("vllm:num_preemptions_total")
        # Requests that ran out of time generated tokens that are ours and not among the timings; the room allows for them.
        if generated is not None and generated > (1.0 + OTHERS) * ours + row.running * self.load.response_tokens:
            return None, f"others used the server: it generated {generated:.0f} tokens, {ours:.0f} of them for this"
        if preempted:
            return None, f"{preempted:.0f} preemptions: the KV cache was full, so that tokens were computed twice"
        seconds = grown("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum")
        tokens = grown("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count")
        if seconds and tokens and abs(row.measured_s / (seconds / tokens) - 1.0) > DISAGREEMENT:
            self.notes.append(
                f"{row.source}: a token took {row.measured_s * 1e3:.2f} ms here and {seconds / tokens * 1e3:.2f} ms by the "
                "engine's own metrics: measure from nearer to the server"
            )
        return row, ""

    async def _request(self, served: str, prompt: int, response: int, until: float) -> RequestTiming | None:
        """One streamed completion; None if time ran out before it ended."""
        body: dict[str, Any] = {
            "model": served,
            "prompt": [self.random.randint(_LOWEST_TOKEN, _HIGHEST_TOKEN) for _ in range(prompt)],
            "max_tokens": response,
            "temperature": 1.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.exact:
            body |= {"ignore_eos": True, "min_tokens": response}
        loop = asyncio.get_running_loop()
        remaining = until - loop.time()
        if remaining <= 0:
            return None
        try:
            async with asyncio.timeout(remaining):
                async with self.session.post(f"{self.base}/v1/completions", json=body, allow_redirects=False) as answer:
                    if answer.status == 400 and self.exact:
                        self.exact = False
                        self.notes.append("the server does not take ignore_eos: responses may end before their limit")
                        return await self._request(served, prompt, response, until)
                    if answer.status != 200:
                        raise ProfileError(_refusal(self.base, answer.status, await answer.text()))
                    return await _timed(answer, prompt)
        except TimeoutError:
            return None
        except (aiohttp.ClientError, OSError) as error:
            raise ProfileError(f"{self.base}: the stream broke ({error or type(error).__name__})") from error

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


def _of_one_engine(row: MeasuredStep, several: int) -> MeasuredStep:
    """The row of one of so many engines, over which the server spreads its requests evenly."""
    return replace(row, running=max(1.0, row.running / several), prefills_per_step=row.prefills_per_step / several)


async def _timed(answer: aiohttp.ClientResponse, prompt: int) -> RequestTiming | None:
    """The times of a stream's tokens. A chunk may carry several, so the count is the server's own where it gives one."""
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
        if choices[0].get("finish_reason") in ("abort", "error"):
            raise ProfileError("the server cut a response short: it is draining, paused, or out of room")
        if choices[0].get("text") or choices[0].get("token_ids"):
            chunks += 1
            first, last = first or now, now
    if chunks < 2:
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
