"""What becomes of the operator's requests: most go well, some are refused, some are done and their answers lost, some arrive late."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from dev.virtual.cluster import Passage
from rljob_operator.cluster import ClusterError

_READS = ("get", "list")


@dataclass
class Weather:
    """Draws the passage of each request."""

    rng: random.Random
    rate: float = 0.0
    """Share of requests that go wrong."""
    slow: float = 0.02
    """Share of requests that take seconds rather than milliseconds."""
    hangs_until_s: float = 0.0
    """Until when the API server's store hangs: writes are done some time, and nobody is told."""
    now_s: Callable[[], float] = lambda: 0.0
    deadly_in: int | None = None
    """Requests until the operator is killed, None for never."""
    kill: Callable[[], None] = lambda: None

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.rate, self.slow, self.hangs_until_s, self.deadly_in = 0.0, 0.0, 0.0, None

    def __call__(self, verb: str, plural: str, name: str) -> Passage:
        """The passage of one request."""
        del plural, name
        rng = self.rng
        before_s, after_s = rng.uniform(0.0005, 0.02), rng.uniform(0.0005, 0.02)
        if rng.random() < self.slow:
            before_s += rng.uniform(0.0, 3.0)
            after_s += rng.uniform(0.0, 3.0)
        if self.deadly_in is not None:
            self.deadly_in -= 1
            if self.deadly_in <= 0:
                self.deadly_in = None
                self.kill()
        if self.now_s() < self.hangs_until_s and (verb not in _READS or rng.random() < 0.3):
            return Passage(
                rng.uniform(0.2, 5.0), error=_unreachable(), late_s=rng.uniform(0.0, 40.0), done=rng.random() < 0.8
            )
        survives = rng.random() < 0.7
        if rng.random() >= self.rate:
            late_s = rng.uniform(0.0, 20.0) if rng.random() < 0.1 else None
            # Without an error the delay counts only for a request whose client dies.
            return Passage(before_s, after_s, late_s=late_s, survives=survives)
        kind = rng.randrange(9 if verb not in _READS else 3)
        if kind == 0:
            return Passage(before_s, error=ClusterError(429, "TooManyRequests", "too many requests"), done=False)
        if kind == 1:
            return Passage(before_s, error=ClusterError(500, "InternalError", "etcdserver: leader changed"), done=False)
        if kind == 2:
            return Passage(rng.uniform(1.0, 30.0), error=_unreachable(), done=False)
        if kind == 3:
            conflict = ClusterError(409, "Conflict", "the object has been modified")
            return Passage(before_s, error=conflict, done=False)
        if kind in (4, 5):
            return Passage(before_s, after_s, error=ClusterError(500, "InternalError", "etcdserver: request timed out"))
        if kind == 6:
            return Passage(before_s, rng.uniform(1.0, 30.0), error=_unreachable())
        return Passage(rng.uniform(0.1, 30.0), error=_unreachable(), late_s=rng.uniform(0.0, 30.0))


def _unreachable() -> ClusterError:
    return ClusterError(0, "Unreachable", "the API server did not answer")
