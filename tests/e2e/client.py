"""A client of a vLLM server that tells how each answer ended: the whole of it, cut, refused."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.e2e.pages import value

PATIENCE_S = 60.0
"""How long what has to happen may take on a busy machine, seconds. A bound for tests that fail, and nothing that is asserted."""

ANSWER_S = 120.0


@dataclass
class Answer:
    """How a streamed completion ended."""

    status: int | None = None
    """The HTTP status; None if there was no answer at all."""
    finish: str | None = None
    """The last ``finish_reason``."""
    text: str = ""
    tokens: int | None = None
    """Completion tokens by the server's own count, which comes with the last part of a stream."""
    done: bool = False
    """Whether the stream said that it was over."""
    broken: bool = False
    """Whether the connection ended before that."""
    error: int | None = None
    """The code of an error that was told within the stream."""
    body: str = ""
    """What was said in place of a stream."""

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.finish == "length"


@dataclass
class Stream:
    """A completion under way."""

    answer: Answer
    task: asyncio.Task[Answer]
    first: asyncio.Event
    """Set once the first token has come."""


class Client:
    """One session with one server."""

    def __init__(self, url: str, session: aiohttp.ClientSession, model: str = "tiny") -> None:
        self.url = url
        self._session = session
        self._model = model

    async def get(self, path: str) -> Any:
        async with self._session.get(f"{self.url}{path}") as answer:
            assert answer.status == 200, f"{path}: {answer.status} {await answer.text()}"
            return await answer.json()

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        async with self._session.post(f"{self.url}{path}", json=body) as answer:
            assert answer.status == 200, f"{path}: {answer.status} {await answer.text()}"
            return await answer.json()

    async def status(self, path: str) -> int | None:
        """The status code of a GET; None if nobody answers."""
        try:
            async with self._session.get(f"{self.url}{path}") as answer:
                return answer.status
        except aiohttp.ClientError:
            return None

    async def metrics(self) -> str:
        async with self._session.get(f"{self.url}/metrics") as answer:
            assert answer.status == 200
            return await answer.text()

    async def metric(self, name: str, **labels: str) -> float:
        found = value(await self.metrics(), name, **labels)
        assert found is not None, f"there is no {name} with {labels}"
        return found

    async def load(self) -> int:
        return int((await self.get("/load"))["server_load"])

    def ask(self, tokens: int, prompt: int = 8, **parameters: Any) -> Stream:
        """Ask for that many tokens, streamed, in a task of its own."""
        answer, first = Answer(), asyncio.Event()
        body = {
            "model": self._model,
            "prompt": [1 + i % 250 for i in range(prompt)],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **parameters,
        }
        return Stream(answer, asyncio.create_task(self._stream(body, answer, first)), first)

    async def ask_at_once(self, tokens: int, prompt: str | list[int] = "1 2 3") -> Answer:
        """Ask for that many tokens, to come as one answer; a prompt is text or token ids."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        async with self._session.post(f"{self.url}/v1/completions", json=body) as response:
            answer = Answer(response.status)
            if response.status != 200:
                answer.body = await response.text()
                return answer
            found = await response.json()
            answer.finish, answer.tokens = found["choices"][0]["finish_reason"], found["usage"]["completion_tokens"]
            return answer

    async def _stream(self, body: Mapping[str, Any], answer: Answer, first: asyncio.Event) -> Answer:
        try:
            async with self._session.post(f"{self.url}/v1/completions", json=body) as response:
                answer.status = response.status
                if response.status != 200:
                    answer.body = await response.text()
                    return answer
                async for line in response.content:
                    self._take(line.decode().strip(), answer, first)
                answer.broken = not answer.done
        except (aiohttp.ClientError, ConnectionError):
            answer.broken = answer.status is not None
        return answer

    @staticmethod
    def _take(line: str, answer: Answer, first: asyncio.Event) -> None:
        if not line.startswith("data: "):
            return
        if line == "data: [DONE]":
            answer.done = True
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            answer.error = event["error"]["code"]
        for choice in event.get("choices", []):
            answer.text += choice["text"]
            answer.finish = choice["finish_reason"] or answer.finish
            first.set()
        if usage := event.get("usage"):
            answer.tokens = usage["completion_tokens"]


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Client]:
    # As many connections as requests: a limit of the client's would look like a queue of the server's.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session:
        yield Client(url, session)


async def until(holds: Callable[[], Awaitable[object]], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; AssertionError saying ``what`` never came. A string says why it does not hold."""
    end = time.monotonic() + patience_s
    while (found := await holds()) is not True:
        assert time.monotonic() < end, f"not within {patience_s:.0f} s: {what}; {found}"
        await asyncio.sleep(0.02)
