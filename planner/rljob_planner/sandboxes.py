"""Environments of an agentic job: how many sandboxes its rollout keeps busy, and whether too few of them gate it.

A sample is in its environment between two of its turns. By Little's law the sandboxes in use are the samples that finish in a second,
times the seconds that each of them spends there. Where a limit is below what the rollout would use, samples wait for a sandbox
while their decode slots are empty, and neither faster samplers nor more of them help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rljob_planner.job import Job
    from rljob_planner.outcome import Evaluation


@dataclass(frozen=True)
class Sandboxes:
    """What the environments of a job need."""

    needed: float
    """Sandboxes in use at the mean with the best split."""
    unlimited: float | None
    """Sandboxes that the same replicas would use without a limit; None unless too few of them gate the rollout."""
    limit: int | None
    """Sandboxes that may run at once; None: no limit."""
    wait: float
    """Mean seconds that a sample waits for one, each time that it needs one."""


def sandboxes(job: Job, best: Evaluation, unlimited: Evaluation | None) -> Sandboxes | None:
    """What a split needs; ``unlimited`` is the same split without a limit of sandboxes."""
    if job.spec.workload.environment is None:
        return None
    return Sandboxes(
        needed=best.environment_samples,
        unlimited=None if unlimited is None else unlimited.environment_samples,
        limit=job.sandbox_limit,
        wait=best.sandbox_wait_s,
    )


def sandbox_note(best: Evaluation, found: Sandboxes | None) -> str:
    """What to say of the sandboxes; empty where there is nothing to say."""
    if found is None or found.limit is None or best.bottleneck != "sandboxes":
        return ""
    wanted = (
        ""
        if found.unlimited is None
        else f"; without a limit these replicas would keep about {found.unlimited:,.0f} of them busy"
    )
    return (
        f"sandboxes gate the rollout: all {found.limit} are in use and a sample waits {found.wait:.3g} s for one each turn{wanted}: "
        "raise sandbox.maxReplicas, or shorten what the environment does"
    )
