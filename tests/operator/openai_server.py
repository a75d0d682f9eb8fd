"""A small server with an OpenAI API and vLLM's metrics, over real HTTP, whose speed follows a formula of its own.

All running requests gain a token each step. A step begins when the last one should have ended, not when the event loop came round to
it, so that the mean is the formula's on a busy machine too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Truth:
    """Seconds of a step: what calibration has to find."""

    step_s: float = 9.5e-3
    sample_s: float = 0.12e-3
    token_s: float = 2.0e-8
    prompt_token_s: float = 1.5e-5

    def step(self, running: float, resident: float, prefilled: float = 0.0) -> float:
        return self.step_s + self.sample_s * running + self.token_s * resident + self.prompt_token_s * prefilled


@dataclass
class _Request:
    prompt: int
    limit: int
    queue: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)
    done: int = 0
    prefill_s: float = 0.0


@dataclass
class Server:
    truth: Truth = field(default_factory=Truth)
    strict: bool = False
    """Whether unknown parameters are refused."""
    old_names: bool = False
    metrics: bool = True
    strangers_per_token: int = 0
    """Tokens of others for each of ours, in the metrics."""
    finish: str = "length"
    status: int = 200
    chunk: int = 1
    """Tokens of a chunk of the stream."""
    engines: int = 1
    """Engines that the metrics tell of."""
    mute: bool = False
    """Whether chunks have no text, as those of a server without a tokenizer."""
    counters: bool = False
    """Whether the metrics tell of iterations and prefills, too, as those of vLLM do."""
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    _running: list[_Request] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _latency_s: float = 0.0
    _gaps: int = 0
    _tokens: int = 0
    _iterations: int = 0
    _prompted: int = 0
    _prefill_s: float = 0.0
    _prefills: int = 0

    async def engine(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self._running:
                self._arrived.clear()
                await self._arrived.wait()
                due = loop.time()
            batch = list(self._running)
            resident = sum(r.prompt + r.done for r in batch)
            step = self.truth.step(len(batch), resident, sum(r.prompt for r in batch if not r.done))
            due += step
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._iterations += 1
            for request in batch:
                if not request.done:
                    self._prompted += request.prompt
                    request.prefill_s = step
                if request.done:
                    self._latency_s, self._gaps = self._latency_s + step, self._gaps + 1
                request.done += 1
                self._tokens += 1 + self.strangers_per_token
                request.queue.put_nowait(request.done)
                if request.done >= request.limit:
                    request.queue.put_nowait(None)
                    self._running.remove(request)
                    self._prefill_s, self._prefills = self._prefill_s + request.prefill_s, self._prefills + 1

    async def complete(self, asked: web.Request) -> web.StreamResponse:
        body = await asked.json()
        self.asked.append(body)
        if self.status != 200:
            return web.json_response({"error": "no"}, status=self.status)
        if self.strict and "ignore_eos" in body:
            return web.json_response({"error": "unknown parameter"}, status=400)
        request = _Request(len(body["prompt"]), body["max_tokens"])
        self._running.append(request)
        self._arrived.set()
        if not body.get("stream"):
            while await request.queue.get() is not None:
                pass
            usage = {"prompt_tokens": request.prompt, "completion_tokens": request.done}
            return web.json_response({"choices": [{"text": "", "finish_reason": self.finish}], "usage": usage})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(asked)

        async def send(event: dict[str, Any]) -> None:
            await answer.write(f"data: {json.dumps(event)}\n\n".encode())

        text = ""
        while (number := await request.queue.get()) is not None:
            text += "x"
            if len(text) == self.chunk or number == request.limit or number == 1:
                reason = self.finish if number == request.limit else None
                await send({"choices": [{"text": "" if self.mute else text, "finish_reason": reason}]})
                text = ""
        await send({"choices": [], "usage": {"prompt_tokens": request.prompt, "completion_tokens": request.done}})
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "served", "root": "Qwen/Qwen3-8B", "max_model_len": 2048}]})

    async def show(self, _: web.Request) -> web.Response:
        if not self.metrics:
            return web.Response(status=404)
        latency = "time_per_output_token_seconds" if self.old_names else "inter_token_latency_seconds"
        cache = 'num_gpu_blocks="1000",block_size="16"'
        if not self.old_names:
            cache += ',kv_cache_size_tokens="123456"'
        return web.Response(
            text=f"# TYPE vllm:{latency} histogram\n"
            f'vllm:{latency}_sum{{engine="0"}} {self._latency_s}\n'
            f'vllm:{latency}_count{{engine="0"}} {self._gaps}\n'
            "# TYPE vllm:generation_tokens_total counter\n"
            f'vllm:generation_tokens_total{{engine="0"}} {self._tokens}\n'
            "# TYPE vllm:num_preemptions_total counter\n"
            'vllm:num_preemptions_total{engine="0"} 0\n'
            "# TYPE vllm:cache_config_info gauge\n"
            + "".join(f'vllm:cache_config_info{{engine="{i}",{cache}}} 1\n' for i in range(self.engines))
            + (self._told() if self.counters else "")
        )

    def _told(self) -> str:
        return (
            "# TYPE vllm:iteration_tokens_total histogram\n"
            f'vllm:iteration_tokens_total_count{{engine="0"}} {self._iterations * self.engines}\n'
            "# TYPE vllm:prompt_tokens counter\n"
            f'vllm:prompt_tokens_total{{engine="0"}} {self._prompted}\n'
            "# TYPE vllm:request_prefill_time_seconds histogram\n"
            f'vllm:request_prefill_time_seconds_sum{{engine="0"}} {self._prefill_s}\n'
            f'vllm:request_prefill_time_seconds_count{{engine="0"}} {self._prefills}\n'
        )


@contextlib.asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Server]:
    """The server at ``server.url`` while the block runs."""
    app = web.Application()
    app.router.add_post("/v1/completions", server.complete)
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/metrics", server.show)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    engine = asyncio.create_task(server.engine())
    try:
        yield server
    finally:
        engine.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await engine
        await runner.cleanup()
