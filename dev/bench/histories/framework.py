"""The jobs' own side: acknowledges layouts at a step boundary, drains samplers, reports metrics; or doesn't."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

from dev.virtual.cluster import VirtualCluster
from dev.virtual.store import Json
from rljob_operator.edges import Question
from rljob_operator.readings import LengthHistogram, Reading, SamplerTelemetry, Telemetry, Trend

PERIOD_S = 10.0
"""Seconds between two published versions of every job."""


@dataclass
class _Run:
    acknowledged: int | None = None
    published: int = 0
    draining: frozenset[str] = frozenset()
    drained: set[str] = field(default_factory=set)
    since_s: float = 0.0
    complete: bool = False


class Framework:
    """All jobs of a cluster, as Prometheus shows them."""

    def __init__(self, cluster: VirtualCluster, rng: random.Random) -> None:
        self.deaf = False
        """Whether trainers no longer acknowledge layouts."""
        self.silent = False
        """Whether no metric is to be had."""
        self.patchy = 0.0
        """Share of pods whose metrics are missing at a look."""
        self.busy = False
        """Whether samplers that are to be drained go on running."""
        self.noise = 1.0
        """How much readings scatter from look to look: 1 is several times what a real job shows."""
        self._cluster = cluster
        self._rng = rng
        self._runs: dict[str, _Run] = {}
        cluster.store.watch(self._seen)

    def finish(self, uid: str) -> None:
        """The job has published its last version."""
        self._run(uid).complete = True

    def calm(self) -> None:
        """All that was held back comes in."""
        self.deaf = self.silent = self.busy = False
        self.patchy = self.noise = 0.0
        for run in self._runs.values():
            run.acknowledged = run.published
            run.drained |= run.draining

    def _run(self, uid: str) -> _Run:
        return self._runs.setdefault(uid, _Run(since_s=self._cluster.clock.now_s))

    def _seen(self, event: str, plural: str, obj: Json) -> None:
        if plural != "configmaps" or event == "DELETED" or "layout.json" not in (obj.get("data") or {}):
            return
        try:
            layout = json.loads(obj["data"]["layout.json"])
            generation, draining = int(layout["generation"]), frozenset(layout["draining"])
        except (ValueError, KeyError, TypeError):
            return
        run = self._run(obj["metadata"]["labels"]["rljob.dev/uid"])
        run.published, run.draining = generation, draining
        delay_s = self._rng.choice((0.5, 1.0, 3.0, 8.0, 45.0)) * self._rng.uniform(0.5, 1.5)
        self._cluster.clock.after(delay_s, self._acknowledge, run, generation)
        for pod in draining:
            self._cluster.clock.after(delay_s + self._rng.choice((0.0, 2.0, 5.0, 40.0)), self._drain, run, pod)

    def _acknowledge(self, run: _Run, generation: int) -> None:
        if not self.deaf:
            run.acknowledged = max(generation, run.acknowledged or 0)

    def _drain(self, run: _Run, pod: str) -> None:
        if not self.busy and pod in run.draining:
            run.drained.add(pod)

    async def observe(self, url: str, question: Question) -> Telemetry:  # noqa: ARG002
        """What Prometheus answers."""
        rng, run = self._rng, self._run(question.uid)
        await self._cluster.clock.pause(rng.uniform(0.001, 0.3))
        lost = self.silent or rng.random() < self.patchy / 4
        samplers = {
            pod: SamplerTelemetry.unknown() if lost or rng.random() < self.patchy else self._sampler(run, pod)
            for pod in question.sampler_pods
        }
        if lost:
            return Telemetry(
                question.now_s,
                0.0,
                samplers=samplers,
                ready_samplers=frozenset(question.sampler_pods),
                missing=("nothing",),
            )
        version = int((question.now_s - run.since_s) / PERIOD_S)
        heard = question.trainer_pods and run.acknowledged is not None and rng.random() >= self.patchy
        return Telemetry(
            at=question.now_s,
            window_s=120.0,
            since_s=None if question.since_s is None else question.now_s - question.since_s,
            policy_version=Reading.of(10**9 if run.complete else version),
            steps_in_window=Reading.of(12),
            queue_groups=Reading.of(rng.uniform(0.0, 8.0)),
            in_flight_samples=Reading.of(rng.uniform(0.0, 500.0)),
            layout_generation=Reading.of(run.acknowledged) if heard and run.acknowledged else Reading.missing(),
            staleness_mean=Reading.of(2.0 + self.noise * rng.uniform(-2.0, 4.0)),
            staleness_p95=Reading.of(3.0),
            staleness_max=Reading.of(5.0),
            period_s=Reading.of(PERIOD_S * (1.0 + self.noise * rng.uniform(-0.5, 1.0))),
            train_step_s=Reading.of(8.0),
            trainer_wait_share=Reading.of(rng.random()),
            weight_sync_s=Reading.of(0.5),
            trained_samples_per_step=Reading.of(128.0),
            trained_tokens_per_sample=Reading.of(1000.0),
            response_lengths=Reading.of(LengthHistogram(((500.0, 30.0), (1000.0, 40.0), (2000.0, 30.0)), 1000.0)),
            response_trend=Reading.of(Trend(0.0, 1e-4)),
            samplers=samplers,
            ready_samplers=frozenset(question.sampler_pods),
            environment_turn_s=Reading.of(rng.uniform(1.0, 20.0)),
            environment_turns_per_s=Reading.of(self.noise * rng.uniform(0.0, 1.0)),
        )

    def _sampler(self, run: _Run, pod: str) -> SamplerTelemetry:
        idle = pod in run.drained and pod in run.draining
        return SamplerTelemetry(
            running=Reading.of(0.0 if idle else self._rng.uniform(1.0, 40.0)),
            waiting=Reading.of(0.0),
            kv_usage=Reading.of(0.4),
            kv_tokens=Reading.of(100_000.0),
            running_mean=Reading.of(30.0),
            kv_usage_mean=Reading.of(0.5),
            iteration_s=Reading.of(0.02),
            generation_tokens_per_s=Reading.of(1500.0),
        )
