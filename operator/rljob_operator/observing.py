"""Reads a running job's metrics when they are due, and says in the status and the conditions what they show.

Metrics are read at the pace of decisions, and faster while a move or a drain waits for them; pod events in between cost no query.
"""

from __future__ import annotations

from rljob_operator import gate, status
from rljob_operator.config import Config
from rljob_operator.course import lengths_so_far
from rljob_operator.edges import Edges, Question
from rljob_operator.engines import ENGINES
from rljob_operator.passes import Pass
from rljob_operator.readings import Telemetry
from rljob_operator.rebalance import epoch_s, timestamp
from rljob_operator.situation import staleness_check
from rljob_operator.status import Verdict, rounded
from rljob_operator.telemetry import MIN_SCRAPES, wished_window_s
from rljob_planner.api.status import ConditionType, MovePhase, ObservedStatus

LONGEST_WINDOW_S = 6 * 3600.0
"""Longest window in which steps are looked for where shorter ones held none: a question over a day costs Prometheus too much."""


class Observer:
    """What a process remembers of a job's metrics between passes: the last ones, and when it read them."""

    def __init__(self, edges: Edges, config: Config) -> None:
        self._edges = edges
        self._config = config
        self._read_s: float | None = None
        self.latest: Telemetry | None = None
        """The metrics read last; None before the first look, and after the layout that they describe has ended."""
        self._stepped_since_s: float | None = None
        """Since when the layout is in force of which a window held two steps."""

    @property
    def age_s(self) -> float:
        """Seconds since the metrics were read last, 0 if they never were."""
        return 0.0 if self._read_s is None else self._edges.monotonic_s() - self._read_s

    def since_s(self, this: Pass) -> float | None:
        """Since when the present layout is in force; None while pods are still coming."""
        if not this.all_ready:
            return None
        times = [
            c.last_transition_time
            for c in this.before.conditions
            if c.type is ConditionType.READY and c.status == "True"
        ]
        if not times:
            return None
        if this.before.moves.last_ended_at is not None:
            times.append(this.before.moves.last_ended_at)
        return max(epoch_s(text) for text in times)

    def _should_be_measured(self, this: Pass) -> bool:
        """Whether what is missing is missing for a reason: pods that have just come are scraped a few scrapes later."""
        move, since_s = this.before.rebalance, self.since_s(this)
        if move is not None:
            return move.phase not in (MovePhase.GROW, MovePhase.VERIFY)
        return since_s is not None and this.now_s - since_s > MIN_SCRAPES * self._config.scrape_s

    async def look(self, this: Pass, pace_s: float, *, since_s: float | None, series: str | None = None) -> bool:
        """Reads the metrics if they are due; returns whether they were. ``series``: how to find them, by the job's uid if None."""
        now = self._edges.monotonic_s()
        if self._read_s is not None and now - self._read_s < pace_s * 0.98:
            return False
        self._read_s = now
        try:
            url = self._config.prometheus_for(this.spec.metrics.prometheus)
        except ValueError as error:
            this.verdicts[ConditionType.METRICS_AVAILABLE] = Verdict(False, "PrometheusNotAllowed", str(error))
            self.latest = None
            return True
        if url is None:
            this.verdicts[ConditionType.METRICS_AVAILABLE] = Verdict(
                False,
                "NoPrometheus",
                "no Prometheus is configured: set spec.metrics.prometheus, or RLJOB_OPERATOR_PROMETHEUS_URL on the operator",
            )
            self.latest = None
            return True
        workload = this.spec.workload
        self.latest = await self._edges.observe(
            url,
            Question(
                uid=str(this.raw["metadata"]["uid"]),
                sampler_pods=this.ready_names(gate.SAMPLER),
                trainer_pods=this.ready_names(gate.TRAINER),
                since_s=since_s,
                now_s=this.now_s,
                window_s=self._window_s(this, since_s),
                scrape_s=self._config.scrape_s,
                samples_per_prompt=workload.samples_per_prompt,
                max_response_tokens=workload.response_tokens.max,
                environment_turns=None if workload.environment is None else workload.environment.turns - 1,
                series=series,
                namespace=this.key[0],
                engine=ENGINES[this.spec.sampler.engine],
            ),
        )
        if (self.latest.steps_in_window.value or 0) > 1:
            self._stepped_since_s = since_s
        return True

    def _window_s(self, this: Pass, since_s: float | None) -> float:
        """The window to ask for; twice the last one while no window of this layout has held two steps.

        A period is seen between two steps alone. Where steps take many times longer than planned, a window of planned periods would never
        hold two, and the job would settle for ever. A trainer that stops after some steps is no such case.
        """
        window_s = wished_window_s(known_period_s(this), self._config.metrics_window_s, self._config.scrape_s)
        if self.latest is None or self.latest.steps_in_window.value not in (0, 1) or self._stepped_since_s == since_s:
            return window_s
        return max(window_s, min(LONGEST_WINDOW_S, 2.0 * self.latest.window_s))

    def report(self, this: Pass, telemetry: Telemetry) -> None:
        """Puts what the metrics say into the status, the conditions and the operator's own metrics."""
        started = self._should_be_measured(this)
        if telemetry.missing and not started:
            verdict = Verdict(
                None, "Starting", f"pods are starting and are not all scraped yet: {telemetry.missing[0]}"
            )
        elif telemetry.missing:
            verdict = Verdict(
                False, "MetricsMissing", "; ".join(telemetry.missing[:3]) + "; until then nothing is resized"
            )
        else:
            verdict = Verdict(
                True, "MetricsFound", "; ".join(("all metrics of the job are there", *telemetry.stand_ins))
            )
        this.verdicts[ConditionType.METRICS_AVAILABLE] = verdict
        in_move = this.before.rebalance is not None
        old = this.before.observed
        mean, largest = telemetry.staleness_mean.value, telemetry.staleness_max.value
        if not in_move:
            planned = None if this.before.plan is None else this.before.plan.staleness
            this.verdicts[ConditionType.WITHIN_STALENESS] = status.within_staleness(
                staleness_check(this.spec, telemetry), this.spec.staleness.bound, planned
            )
        period_s = telemetry.period_s.value
        if in_move and old is not None:
            # Windows do not span a move, so these are unknown during one; what held before it is kept in sight.
            period_s, mean = old.period_seconds, old.staleness_mean
        this.update(
            lengths=lengths_so_far(this.before.lengths, this.spec.workload.steps, telemetry),
            observed=ObservedStatus(
                at=timestamp(this.now_s),
                policy_version=telemetry.policy_version.value,
                period_seconds=rounded(period_s, 3),
                staleness_mean=rounded(mean, 3),
                staleness_max=rounded(largest, 3),
                queue_groups=rounded(telemetry.queue_groups.value, 3),
                in_flight_samples=rounded(telemetry.in_flight.value, 3),
                response_tokens_mean=rounded(telemetry.response_tokens_mean.value, 3),
                kv_usage=rounded(telemetry.kv_usage.value, 2),
                gpus_held=this.held_gpus,
                layout_generation=telemetry.layout_generation.value,
                stand_ins=telemetry.stand_ins or None,
            ),
        )


def known_period_s(this: Pass) -> float | None:
    """The period in seconds as observed last, else as planned; None if there is neither."""
    observed, planned = this.before.observed, this.before.plan
    if observed is not None and observed.period_seconds is not None:
        return observed.period_seconds
    return None if planned is None else planned.period.mean
