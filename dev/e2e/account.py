"""Where every sample went, told twice: by the trainer that asked for it, and by the servers' own logs.

The trainer counts what it submitted, got, was refused, and lost in the middle. That nobody else can check, so the servers' logs are read as
well: vLLM notes each request that it takes, and each answer that it has given. A sample that a server took and never answered was
cut, whoever says what. That shows kills; an answer that the server itself broke off (``finish_reason: abort``) is one by its log, and only the
trainer's account tells it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

_TAKEN = re.compile(r"Received request")
_CUT = re.compile(r"WARNING tiny_grpo\.rollout: (tiny-samplers-[a-z0-9-]+)(?![a-z0-9-]|: the update to version)")
_ANSWERED = re.compile(r'"POST /inference/v1/generate HTTP/1\.1" (\d+)')


@dataclass(frozen=True)
class Account:
    """The trainer's counters."""

    submitted: int = 0
    finished: int = 0
    cut: int = 0
    """Begun by a server and not finished; each was asked for again."""
    refused: int = 0
    """Not taken by a server; each was asked for again."""
    retried: int = 0
    lost: int = 0
    """Given up without an answer."""
    in_flight: int = 0
    version: int = 0
    """Policy version."""

    @classmethod
    def read(cls, path: Path) -> Account:
        """The account that the trainer wrote last; all zero before there is one."""
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return cls()
        return cls(**{field.name: int(told.get(field.name, 0)) for field in fields(cls)})

    @property
    def unaccounted(self) -> int:
        """Samples that are neither answered, nor lost, nor waited for: 0 in an account that is right."""
        return self.submitted - self.finished - self.lost - self.in_flight


@dataclass(frozen=True)
class ServerLog:
    """What a server noted of its requests."""

    taken: int
    answered: int
    """Whatever the answer: one that says that the server ends was never begun."""

    @classmethod
    def of(cls, text: str) -> ServerLog:
        """Count in the log of a server, over all starts of its container."""
        return cls(len(_TAKEN.findall(text)), len(_ANSWERED.findall(text)))

    @property
    def unanswered(self) -> int:
        """Requests that it took and has not answered."""
        # It answers some without taking them, those that it refuses at the door.
        return max(0, self.taken - self.answered)


def cut_by_sampler(text: str) -> Counter[str]:
    """Samples that the trainer counted as cut, by the pod that cut them, from the trainer's log: it warns of each."""
    return Counter(_CUT.findall(text))


@dataclass(frozen=True)
class Compared:
    """The two tellings side by side, over the servers that were taken away."""

    uncounted: int
    """Taken and never answered, and not counted as cut by the trainer: 0 in an account that is right."""
    noted_by_none: int
    """Counted as cut though no server's log lacks an answer to them: sent to one that was killed before it noted them, or broken off by it."""

    @classmethod
    def of(cls, counted: Mapping[str, int], logs: Mapping[str, ServerLog]) -> Compared:
        """Pod by pod, so that what is counted too much of one hides nothing of another."""
        over = [counted.get(pod, 0) - log.unanswered for pod, log in logs.items()]
        return cls(sum(max(0, -n) for n in over), sum(max(0, n) for n in over))
