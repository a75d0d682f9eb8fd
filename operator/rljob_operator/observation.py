"""What the API server and the metrics show of a move under way: the values that the transaction looks at. Pure.

None is unknown throughout, and never zero: a sampler whose running samples can't be read is as busy as any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass(frozen=True)
class PodView:
    """What a move needs to know of one pod."""

    name: str
    role: str
    """``sampler`` or ``trainer``."""
    ready: bool
    terminating: bool = False
    created_s: float = 0.0
    """Creation time in epoch seconds."""
    ordinal: int | None = None
    """The ordinal of a StatefulSet's pod, None for a Deployment's."""
    node: str | None = None
    """The node that it is bound to."""
    pool: str | None = None
    """The pool that it was sent to, of a job whose samplers span pools."""
    waits_at: str | None = None
    """The scheduling gate of somebody else at which it waits, such as Kueue's."""


@dataclass(frozen=True)
class Observation:
    """What the API server and the metrics show of a move under way. None is unknown."""

    now_s: float
    pods: tuple[PodView, ...]
    published_generation: int
    """Generation of the layout that the API server holds."""
    acknowledged_generation: int | None
    """Smallest generation that the trainer pods acknowledged."""
    running_by_pod: Mapping[str, float | None] = field(default_factory=dict)
    """Running samples of each sampler pod."""
    metrics_flow: bool = False
    """Whether every sampler and trainer pod's metrics are there."""
    measurable: bool = True
    """Whether there is a Prometheus to ask at all; without one, waiting for the job's word is waiting for nothing."""
    free: Callable[[str], Mapping[str, int]] | None = None
    """GPUs that are free on each node that a role may use, besides those of the job's own pods; None: unknown."""

    def of(self, role: str) -> tuple[PodView, ...]:
        """The pods of a role, terminating ones included."""
        return tuple(pod for pod in self.pods if pod.role == role)

    def staying(self, role: str) -> tuple[PodView, ...]:
        """The pods of a role that nobody is deleting."""
        return tuple(pod for pod in self.pods if pod.role == role and not pod.terminating)

    @property
    def only_queued(self) -> bool:
        """Whether pods are not ready, and all of them because somebody else's gate holds them back."""
        unready = [pod for role in ("sampler", "trainer") for pod in self.staying(role) if not pod.ready]
        return bool(unready) and all(pod.waits_at is not None for pod in unready)

    @property
    def hears_nobody(self) -> bool:
        """Whether no trainer pod is ready, so that none can acknowledge anything."""
        return not any(pod.ready for pod in self.staying("trainer"))


def timestamp(now_s: float) -> str:
    """Epoch seconds as RFC 3339 in UTC with microseconds."""
    return datetime.fromtimestamp(now_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def epoch_s(text: str) -> float:
    """RFC 3339 as epoch seconds."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def some(names: list[str] | tuple[str, ...], most: int = 4) -> str:
    """The first few of many names, for a sentence."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
