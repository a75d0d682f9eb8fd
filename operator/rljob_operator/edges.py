"""What a pass needs of the world besides the API server: clocks, metrics, the planner, and a thread for what takes long.

They are handed to a pass as values, so that the same pass runs against a cluster in memory in virtual time: what decides a
job's fate is tried there in thousands of histories, and it is this code, not a copy of it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from rljob_operator import telemetry
from rljob_operator.credentials import Credentials
from rljob_operator.engines import VLLM, Engine
from rljob_operator.prometheus import Prometheus
from rljob_operator.readings import Telemetry
from rljob_operator.situation import Planner
from rljob_planner import search
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.placement import rooms_of


@dataclass(frozen=True)
class Question:
    """What is asked of the metrics of one job at one instant."""

    uid: str
    """The job's uid, which every query filters on."""
    sampler_pods: Collection[str]
    """Names of the sampler pods that the API server shows as ready."""
    trainer_pods: Collection[str]
    """Names of the trainer pods that the API server shows as ready."""
    since_s: float | None
    """When the layout in force was acknowledged, in epoch seconds; None: not yet."""
    now_s: float
    """The instant in epoch seconds."""
    window_s: float
    """Wished window of means, rates and histograms in seconds."""
    scrape_s: float
    """The scrape interval in seconds."""
    samples_per_prompt: int
    max_response_tokens: int | None
    """Where responses are cut off, in tokens."""
    environment_turns: int | None = None
    """Turns of a sample that end in its environment; None for a job without one."""
    series: str | None = None
    """Label matchers by which the job's series are found where its pods carry no uid; by their uid if None."""
    namespace: str | None = None
    """The job's namespace: series that say they are of another one are none of the job's. None believes all."""
    engine: Engine = VLLM
    """The samplers' engine."""


class Observe(Protocol):
    """Reads the metrics of a job; never raises for a source that is unreachable or broken."""

    async def __call__(self, url: str, question: Question) -> Telemetry:
        """The answer of the Prometheus at ``url``."""


class InThread(Protocol):
    """Runs a function that takes long without holding up the other jobs."""

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """The function's result."""


@dataclass(frozen=True)
class Edges:
    """The world around a pass."""

    observe: Observe
    wall_s: Callable[[], float] = time.time
    """Epoch seconds: what is written into the status."""
    monotonic_s: Callable[[], float] = time.monotonic
    """Seconds of a clock that never jumps: what paces are kept by."""
    planner: Planner = field(default_factory=Planner)
    in_thread: InThread = asyncio.to_thread

    @classmethod
    def real(
        cls,
        session: aiohttp.ClientSession,
        planned: Callable[[float], None] = lambda _: None,
        credentials: Credentials | None = None,
        asking: Callable[[bool], None] = lambda _: None,
    ) -> Edges:
        """The machine's clocks, Prometheus over HTTP, and the planner itself.

        ``planned`` is told the seconds of each question, ``asking`` when one begins to wait for its turn and when it is answered;
        ``credentials`` are the operator's for Prometheus, None for none.
        """

        async def observe(url: str, question: Question) -> Telemetry:
            return await telemetry.observe(
                Prometheus(session, url, credentials=credentials),
                question.uid,
                sampler_pods=question.sampler_pods,
                trainer_pods=question.trainer_pods,
                since=question.since_s,
                now=question.now_s,
                window_s=question.window_s,
                scrape_s=question.scrape_s,
                samples_per_prompt=question.samples_per_prompt,
                max_response_tokens=question.max_response_tokens,
                environment_turns=question.environment_turns,
                series=question.series,
                namespace=question.namespace,
                engine=question.engine,
            )

        async def in_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            asking(True)
            try:
                return await _on_planner_thread(planned, functools.partial(function, *args, **kwargs))
            finally:
                asking(False)

        return cls(observe, in_thread=in_thread)


_planner_thread = ThreadPoolExecutor(1, thread_name_prefix="planner")


def warm_up() -> None:
    """Lets the planner thread load the simulator, which takes a second where its machine code is cached and many where it is not."""
    _planner_thread.submit(search.plan, RLJobSpec.model_validate(_SMALL), rooms_of("1x8"), detail=False)


_SMALL: dict[str, Any] = {
    "gpus": 8,
    "accelerator": "H100-SXM",
    "model": {"name": "Qwen/Qwen3-8B"},
    "workload": {
        "promptsPerStep": 8,
        "samplesPerPrompt": 4,
        "steps": 10,
        "promptTokens": {"mean": 100},
        "responseTokens": {"mean": 100, "max": 1000},
    },
    "staleness": {"max": 2},
    "sampler": {"gpusPerReplica": 1, "template": {"spec": {"containers": [{"name": "a"}]}}},
    "trainer": {"gpusPerReplica": 4, "template": {"spec": {"containers": [{"name": "a"}]}}},
}
"""A question to the planner that is answered soon."""


async def _on_planner_thread(planned: Callable[[float], None], function: Callable[[], Any]) -> Any:
    """Runs a function on the one thread that plans, and tells how long it took.

    Several would be no faster, since most of a plan holds the interpreter lock, and each of them keeps memory of its own for what the
    simulator allocates: six threads take twice the memory of one.
    """

    def timed() -> Any:
        began = time.monotonic()
        try:
            return function()
        finally:
            planned(time.monotonic() - began)

    return await asyncio.get_running_loop().run_in_executor(_planner_thread, timed)
