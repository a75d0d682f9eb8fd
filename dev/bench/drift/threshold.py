"""A queue-depth autoscaler, as a person would build one from KEDA or a HorizontalPodAutoscaler: the policy to beat.

Every half minute it reads the queue of complete groups and keeps the mean of five minutes (the default stabilisation window of
a HorizontalPodAutoscaler). More than one and a half batches waiting mean that trainers are short: one trainer replica's worth of
GPUs goes from samplers to trainers. Less than a quarter of a batch means that samplers are short, and it goes the other way. After
a move it rests for five minutes (KEDA's default cooldown). It starts with the planner's split of step 0, which is more than such autoscalers get.
"""

from __future__ import annotations

import math
from collections import deque

from dev.bench.drift.site import Counts, Site
from dev.bench.drift.stage import Outcome, Stage

POLL_S = 30.0
WINDOW_S = 300.0
COOLDOWN_S = 300.0
FULL_BATCHES = 1.5
"""Mean queue in batches above which trainers are short."""
FULL_SHARE = 0.8
"""Share of a queue's capacity above which it counts as full as well."""
EMPTY_BATCHES = 0.25
"""Mean queue in batches below which samplers are short."""


class Threshold:
    """The autoscaler of one site."""

    def __init__(self, stage: Stage, site: Site) -> None:
        """Begin with an empty memory."""
        self._stage, self._site = stage, site
        self._seen: deque[float] = deque(maxlen=max(1, round(WINDOW_S / POLL_S)))
        self._rests_until_s = 0.0

    def look(self) -> float:
        """Look once, move if the queue says so, and say until when to let the job run."""
        site, spec = self._site, self._stage.run.spec
        self._seen.append(site.plant.queued)
        if len(self._seen) == self._seen.maxlen and site.plant.now_s >= self._rests_until_s:
            batch, depth = spec.workload.prompts_per_step, sum(self._seen) / len(self._seen)
            full = FULL_BATCHES * batch
            if spec.queue is not None:
                full = min(full, FULL_SHARE * spec.queue.capacity)
            if depth > full:
                self._shift(+1)
            elif depth < EMPTY_BATCHES * batch:
                self._shift(-1)
        return site.plant.now_s + POLL_S

    def _shift(self, trainers: int) -> None:
        """One trainer replica more or fewer, and as many samplers as the budget then holds."""
        after = shifted(self._stage, self._site.counts, trainers)
        if after is not None:
            self._site.move(after)
            self._seen.clear()
            self._rests_until_s = self._site.plant.now_s + COOLDOWN_S


def shifted(stage: Stage, counts: Counts, trainers: int) -> Counts | None:
    """The counts with so many trainers more, None where a side would fall below its minimum or rise above its maximum."""
    spec, shape = stage.run.spec, stage.start
    wide, wide_trainer = shape.samplers.gpus_per_replica, shape.trainers.gpus_per_replica
    after = counts.trainers + trainers
    samplers = counts.samplers - math.ceil(trainers * wide_trainer / wide)
    samplers = min(samplers, (spec.gpus - after * wide_trainer) // wide, spec.sampler.max_replicas or samplers)
    if after < spec.trainer.min_replicas or samplers < spec.sampler.min_replicas:
        return None
    if spec.trainer.max_replicas is not None and after > spec.trainer.max_replicas:
        return None
    return Counts(samplers, after, counts.in_flight)


def run_threshold(stage: Stage) -> Outcome:
    """The trace under the autoscaler."""
    site = Site(stage.run, stage.plant(), stage.start, Counts.of(stage.start))
    policy = Threshold(stage, site)
    return stage.finish(site, policy.look)
