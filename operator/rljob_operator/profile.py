"""Measures a live server: completions at several concurrencies, by what its engine counts or, where it counts nothing, by the streams.

The server is asked as a sampler would be: a closed loop of so many requests, each started when another ends. An engine that counts its own
steps (``vllm:*``, ``engine_counters``) is believed, since a busy server delivers tokens later than the engine makes them; those counters also
tell when somebody else's requests ran meanwhile, which would make every row wrong. Any other server with an OpenAI API is measured
by its streams, token by token.

Levels are gone through several times, there and back, and the median of each counts: what slows the machine for a while then falls on all
of them, and how far the rounds differ tells what a measurement is worth.

Everything is bounded: requests, seconds, tokens. A level that ran out of time counts with what it made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rljob_operator.completions import STALL_TIMEOUT_S, Completions, ProfileError, session
from rljob_operator.engine_counters import (
    SPREAD,
    EngineCounters,
    engine_counters,
    grown,
    mean_step,
    prefill_s,
    spread_length,
)
from rljob_operator.exposition import Sample, cache_tokens, engines, total
from rljob_planner.bench_files import RequestTiming, row_of_requests
from rljob_planner.fit import MeasuredStep, median_row
from rljob_planner.fit_seconds import prefill_row

OTHERS = 0.10
"""Share of generated tokens beyond our own from which somebody else uses the server."""
DISAGREEMENT = 0.15
"""Relative difference between rounds, or between our time per token and the engine's own, from which something is in the way."""


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
    async with session(api_key) as opened:
        return await _Profiler(Completions(opened, base), load, progress).run(model)


@dataclass
class _Profiler:
    server: Completions
    load: Load
    progress: Progress

    @property
    def base(self) -> str:
        """The server's address."""
        return self.server.base

    @property
    def notes(self) -> list[str]:
        """What to know of the measurement, a sentence each."""
        return self.server.notes

    async def run(self, wished: str | None) -> Profile:
        served, root, longest = await self.server.model(wished)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.load.max_s
        metrics = await self.server.metrics()
        if metrics is None:
            self.notes.append(
                f"{self.base}/metrics has no metrics: the KV room is computed, and others' requests would go unnoticed"
            )
        skipped: list[tuple[str, str]] = []
        self.progress("warming up")
        warm_up = min(self.load.prompt_tokens)
        await self.server.streamed(served, warm_up, min(16, self.load.response_tokens), loop.time() + STALL_TIMEOUT_S)
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
        before = await self.server.metrics()
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
                        timing = await self.server.streamed(served, prompt, self.load.response_tokens, until)
                    else:
                        response = spread_length(self.load.response_tokens, count - left)
                        timing = await self.server.whole(served, prompt, response, until)
                except ProfileError as error:
                    failures.append(str(error))
                    return
                if timing is not None:
                    timings.append(timing)
            if not full:
                # From here on fewer run than the level is of.
                full.append((loop.time(), None))
                full[0] = (loop.time(), await self.server.metrics())

        await asyncio.gather(*(worker() for _ in range(concurrency)))
        if failures and len(timings) >= min(concurrency, 2):
            self.notes.append(f"{name}: {len(failures)} requests failed ({failures[0]})")
        elif failures:
            return [], failures[0]
        after = await self.server.metrics()
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


def _name(base: str, concurrency: int, prompt: int) -> str:
    return f"{base}, {concurrency} at a time, prompts of {prompt}"


def _growth(before: list[Sample] | None, after: list[Sample] | None, *names: str) -> float | None:
    """What a counter grew by, None where it is not known or began anew."""
    old, new = total(before or [], *names), total(after or [], *names)
    return None if old is None or new is None or new < old else new - old


def _of_one_engine(row: MeasuredStep, several: int) -> MeasuredStep:
    """The row of one of so many engines, over which the server spreads its requests evenly."""
    return replace(row, running=max(1.0, row.running / several), prefills_per_step=row.prefills_per_step / several)
