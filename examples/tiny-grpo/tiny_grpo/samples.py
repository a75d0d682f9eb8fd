"""What samplers give back and the trainer takes in: samples with the policy versions that wrote them.

A policy is updated while its samples are being written, so a sample may be the work of several versions. vLLM says which version wrote
which tokens (``weight_versions``), so nothing has to be guessed from the time at which a sample came back. How stale a sample is goes by
the version of its *first* token: queueing and generating both count.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiny_grpo.task import Problem


@dataclass(frozen=True)
class Span:
    """Neighbouring tokens of an answer that one policy version wrote."""

    version: int
    """The policy version."""
    tokens: int
    """How many tokens."""


@dataclass(frozen=True)
class Sample:
    """One answer to one prompt."""

    tokens: tuple[int, ...]
    """Token ids of the answer, the end token included if it came."""
    logprobs: tuple[float, ...]
    """Log probability of each token under the policy that wrote it: what the importance ratio is measured against."""
    spans: tuple[Span, ...]
    """Who wrote them, in order."""
    reward: float
    """From 0 to 1."""

    def staleness(self, version: int) -> int:
        """Policy versions between the first token and the step that starts from ``version``."""
        return version - self.spans[0].version

    def token_staleness(self, version: int) -> float:
        """The same, as a mean over the tokens: less where newer versions wrote the later ones."""
        return sum(span.tokens * (version - span.version) for span in self.spans) / len(self.tokens)


@dataclass(frozen=True)
class Group:
    """All samples of one prompt: complete, or it would not be here."""

    problem: Problem
    samples: tuple[Sample, ...]


def advantages(rewards: list[float]) -> list[float]:
    """How much better than its group each sample is, in standard deviations: GRPO's stand-in for a value function.

    All 0 where all samples fared alike: such a group teaches nothing.
    """
    mean = sum(rewards) / len(rewards)
    deviation = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5
    return [(r - mean) / (deviation + 1e-4) for r in rewards]
