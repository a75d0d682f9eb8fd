"""One OpenAI server over HTTP, as a measurement needs it: timed completions, its models, and its metrics.

Prompts are random token ids, so that no prefix cache has seen them. Responses go on to their limit (``ignore_eos``), so that the load stays what
it is said to be; a server that does not take that is asked without.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from rljob_operator.exposition import ExpositionError, Sample, parse_exposition
from rljob_planner.bench_files import RequestTiming

CONNECT_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 60.0
"""Seconds without a byte after which a stream is dead: a busy engine has been seen to stall for several."""
CUT_SHORT = "the server cut a response short: it is draining, paused, or out of room"

_CUT = ("abort", "error")
_LOWEST_TOKEN, _HIGHEST_TOKEN = 10, 100
"""Token ids that every vocabulary has."""


class ProfileError(Exception):
    """A server that could not be measured; the message says what to check."""


def session(api_key: str | None) -> aiohttp.ClientSession:
    """A session for as many requests at once as a load has; ``api_key`` is sent as a bearer token."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=STALL_TIMEOUT_S),
        connector=aiohttp.TCPConnector(limit=0),
        headers=None if api_key is None else {"Authorization": f"Bearer {api_key}"},
    )


@dataclass
class Completions:
    """A server at ``base``, without ``/v1``."""

    session: aiohttp.ClientSession
    base: str
    notes: list[str] = field(default_factory=list)
    """What to know of the server, a sentence each."""
    _random: random.Random = field(default_factory=lambda: random.Random(0))
    _exact: bool = True
    """Whether the server takes vLLM's extra parameters."""

    async def streamed(self, served: str, prompt: int, response: int, until: float) -> RequestTiming | None:
        """One streamed completion; None if time ran out before it ended."""
        beside = {"stream": True, "stream_options": {"include_usage": True}}
        timing = await self._request(served, prompt, response, until, beside)
        return timing if isinstance(timing, RequestTiming) else None

    async def whole(self, served: str, prompt: int, response: int, until: float) -> RequestTiming | None:
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
            "prompt": [self._random.randint(_LOWEST_TOKEN, _HIGHEST_TOKEN) for _ in range(prompt)],
            "max_tokens": response,
            "temperature": 1.0,
            **beside,
        }
        if self._exact:
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
                    if answer.status == 400 and self._exact:
                        self._exact = False
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

    async def model(self, wished: str | None) -> tuple[str, str, int | None]:
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
        root = str(models[served].get("root") or served)
        if wished is not None and wished not in models and wished != root:
            self.notes.append(f"the server has no model {wished}: measured is {served}, of {', '.join(models)}")
        longest = models[served].get("max_model_len")
        return served, root, longest if isinstance(longest, int) else None

    async def metrics(self) -> list[Sample] | None:
        """What ``/metrics`` shows, None if there is nothing to read."""
        try:
            async with self.session.get(f"{self.base}/metrics", allow_redirects=False) as answer:
                if answer.status != 200:
                    return None
                return parse_exposition(await answer.text(), f"{self.base}/metrics")
        except (aiohttp.ClientError, OSError, TimeoutError, ExpositionError):
            return None


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
