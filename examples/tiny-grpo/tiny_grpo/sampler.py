"""One vLLM server: asking it for samples, and giving it new weights.

The account of a sample hangs on telling three endings apart: an answer; a refusal (the server took nothing, so nothing is lost by asking
another one); and a cut (it had begun, and its work is gone).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from tiny_grpo.samples import Sample, Span
from tiny_grpo.task import EOS, Problem, reward

UPDATE_TIMEOUT_S = 30.0
"""How long one call of an update may take: a server under load answers within seconds."""

SAMPLE_TIMEOUT_S = 900.0
"""How long an answer may take; beyond it the server is taken for dead."""

FAILED = (aiohttp.ClientError, TimeoutError, OSError)
"""How a call can fail."""

SHUTTING_DOWN = "cannot schedule new futures after shutdown"
"""What vLLM answers (500) to a new request of text while it finishes its last ones; one of tokens is aborted before its first."""


class RefusedError(Exception):
    """The server did not take the sample."""


class BusyError(RefusedError):
    """The server did not take the sample, since its queue is full; nothing is wrong with it."""


class CutError(Exception):
    """The server took the sample and did not finish it."""


class Sampler:
    """A vLLM server with what is known about its weights."""

    def __init__(self, pod: str, url: str, session: aiohttp.ClientSession) -> None:
        """Nothing is known of its weights at first."""
        self.pod, self.url, self._session = pod, url, session
        self.version: int | None = None
        """The policy version it has; None: it must be updated before it gets a sample."""
        self.listed = True
        """Whether the layout names it as one to use."""
        self.joining = False
        """Whether somebody sees to it that it gets the current weights."""
        self.open: set[asyncio.Task[Any]] = set()
        """Samples that wait for its answer."""
        self.updating = asyncio.Lock()
        """Held while its weights change."""

    async def generate(self, problem: Problem) -> Sample:
        """One answer to ``problem``; raises RefusedError or CutError."""
        request = {
            "token_ids": problem.prompt,
            "sampling_params": {
                "temperature": 1.0,  # anything else, and the log probabilities were not those of what is trained
                "max_tokens": problem.max_tokens,
                "stop_token_ids": [EOS],
                "logprobs": 0,
                "detokenize": False,
            },
        }
        try:
            async with self._session.post(
                f"{self.url}/inference/v1/generate",
                json=request,
                timeout=aiohttp.ClientTimeout(total=SAMPLE_TIMEOUT_S, sock_connect=5),
            ) as response:
                if response.status != 200:
                    text = (await response.text())[:300]
                    raise ending(response.status, text)(f"{self.pod}: HTTP {response.status}: {text}")
                answer = await response.json()
            return read_choice(self.pod, problem, answer["choices"][0])
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise RefusedError(f"{self.pod}: {error}") from error
        except FAILED as error:
            raise CutError(f"{self.pod}: {type(error).__name__}: {error}") from error
        except (LookupError, TypeError, ValueError) as error:
            raise CutError(f"{self.pod}: an answer that cannot be read: {type(error).__name__}: {error}") from error

    async def update(self, version: int, weights: Path) -> float:
        """Give it the weights of ``version`` without losing what it is writing; returns the seconds that it paused.

        Running samples go on with the new weights from their next token on. Raises RefusedError if it could not be paused: nothing has
        changed then. Raises CutError if the update broke off: what it was writing is worthless, and it must be updated before it is used.
        In no case is it left paused by us, unless it cannot be reached any more; the trainer's next process resumes what a killed one left.
        """
        if not (weights / "config.json").exists():
            # vLLM's engine does not survive being sent to weights that are not there.
            raise RefusedError(f"{self.pod} can't be given {weights}, which is not there any more")
        clock = asyncio.get_running_loop().time
        paused_at: float | None = None
        try:
            await self._call("/pause?mode=keep")
            paused_at = clock()
            reload = {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}}
            await self._call("/collective_rpc", reload)
            await self._call("/update_weight_version", {"new_version": str(version)})
            await self._call("/resume")
        except BaseException as error:
            # Also if this task is ended, and if it is only the answer to the pause that was lost.
            resumed = await asyncio.shield(self._resume_whatever_happened())
            if not isinstance(error, FAILED):
                raise
            said = f"{self.pod}: the update to version {version} broke off: {type(error).__name__}: {error}"
            never_paused = isinstance(error, (aiohttp.ClientResponseError, aiohttp.ClientConnectorError))
            if paused_at is None and (resumed or never_paused):
                raise RefusedError(said) from error
            raise CutError(said) from error
        return clock() - paused_at

    async def is_gone(self) -> bool:
        """Whether nobody is there. A server that takes a connection and is slow to answer is there: a busy one may take seconds."""
        timeout = aiohttp.ClientTimeout(total=10, sock_connect=5)
        try:
            async with self._session.get(f"{self.url}/health", timeout=timeout) as response:
                return response.status != 200  # vLLM says 503 when its engine is dead
        except aiohttp.ConnectionTimeoutError:
            return True
        except TimeoutError:
            return False
        except FAILED:
            return True

    async def _call(self, path: str, body: dict[str, Any] | None = None) -> None:
        timeout = aiohttp.ClientTimeout(total=UPDATE_TIMEOUT_S, sock_connect=5)
        async with self._session.post(self.url + path, json=body, timeout=timeout) as response:
            response.raise_for_status()

    async def _resume_whatever_happened(self) -> bool:
        """A server that stays paused hangs its requests for ever, those of others too; returns whether it took the call."""
        for pause_s in (0.5, 2.0, 0.0):
            try:
                await self._call("/resume")
            except aiohttp.ClientConnectorError:
                return False  # nobody is there
            except FAILED:
                await asyncio.sleep(pause_s)
            else:
                return True
        return False


def ending(status: int, text: str) -> type[RefusedError] | type[CutError]:
    """What an HTTP status other than 200 says of a sample."""
    if status in (429, 503):
        return BusyError
    # Any other 500 comes from an engine that died, perhaps with the sample in it.
    return RefusedError if status < 500 or SHUTTING_DOWN in text else CutError


def read_choice(pod: str, problem: Problem, choice: dict[str, Any]) -> Sample:
    """The sample that a choice of vLLM's answer holds.

    Raises CutError for an answer that was broken off (vLLM calls that ``abort``, with HTTP 200). Raises RefusedError for one that was never begun
    (the same without a token: what a server that finishes its last samples says to a new one), and for one by weights that were never
    published: those that a server starts with.
    """
    if choice["finish_reason"] not in ("stop", "length"):
        if not choice["token_ids"]:
            raise RefusedError(f"{pod} takes no more: finish_reason {choice['finish_reason']} without a token")
        raise CutError(f"{pod} broke off: finish_reason {choice['finish_reason']}")
    try:
        spans = tuple(Span(int(s["version"]), s["end"] - s["start"]) for s in choice["weight_versions"])
    except ValueError as error:
        raise RefusedError(f"{pod} answered with the weights it was started with") from error
    tokens = tuple(choice["token_ids"])
    return Sample(
        tokens=tokens,
        logprobs=tuple(content["logprob"] for content in choice["logprobs"]["content"]),
        spans=spans,
        reward=reward(problem.target, tokens),
    )
