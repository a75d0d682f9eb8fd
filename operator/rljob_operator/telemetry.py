"""Reads what Prometheus knows of one job and says of every quantity whether it is a value, missing, or stale.

Two kinds of queries (``questions``), all sent at once and all for the same instant:

- *What is now*: one range selector over all names, ``{__name__=~"…", rljob_dev_uid="…"}[horizon]``. It returns raw samples with
  their own times, so that the age of each is known. An instant selector cannot tell: it looks five minutes back without saying so,
  and drops a series at once when its target vanishes. A sample older than three
  scrape intervals is stale.
- *What was over a window*: increases, rates and means, never over more than the time since the present layout was acknowledged,
  since a mean over two layouts describes neither. Their freshness is that of the counter beneath, from the first query: the
  increase over ten minutes of a counter that stopped five minutes ago is a number, but no reading.

A pod that two scrape configurations reach counts once: samples are first reduced to the largest of a pod (and engine).
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Collection
from dataclasses import replace

from rljob_operator import promql
from rljob_operator.answers import Answers, over, quantile, steps_and_period
from rljob_operator.engines import VLLM, Engine
from rljob_operator.length_source import lengths_of
from rljob_operator.prometheus import Prometheus as Prometheus
from rljob_operator.prometheus import PrometheusError as PrometheusError
from rljob_operator.prometheus import Series
from rljob_operator.questions import ENVIRONMENT, questions
from rljob_operator.readings import LengthHistogram as LengthHistogram
from rljob_operator.readings import Reading as Reading
from rljob_operator.readings import ReadingState as ReadingState
from rljob_operator.readings import SamplerTelemetry as SamplerTelemetry
from rljob_operator.readings import Telemetry as Telemetry
from rljob_operator.readings import Trend as Trend
from rljob_operator.readings import combined
from rljob_operator.readings import corrected_lengths as corrected_lengths
from rljob_operator.readings import finished_age_s as finished_age_s
from rljob_operator.remedies import remedies

MIN_SCRAPES = 4
"""Scrapes that a window must span before a rate over it means anything."""

STALE_SCRAPES = 3.0
"""Age from which a sample is stale, in scrape intervals: one missed scrape is a hiccup, three are none."""

IN_FLIGHT = "rljob_inflight_samples"

WINDOW_PERIODS = 8.0
"""Periods that a window should span, so that a mean over it rests on more than one or two steps."""


def wished_window_s(period_s: float | None, least_s: float, scrape_s: float) -> float:
    """The window to ask for, in seconds: eight periods (observed, else planned; None if neither is known), at least ``least_s``.

    Never shorter than the scrapes that a rate needs: a job that is scraped each minute would else be measured in no window at all.
    """
    return max(least_s, MIN_SCRAPES * scrape_s, WINDOW_PERIODS * (period_s or 0.0))


async def observe(
    prometheus: Prometheus,
    uid: str,
    *,
    sampler_pods: Collection[str],
    trainer_pods: Collection[str],
    since: float | None,
    now: float,
    window_s: float,
    scrape_s: float = 15.0,
    samples_per_prompt: int = 1,
    max_response_tokens: int | None = None,
    environment_turns: int | None = None,
    series: str | None = None,
    namespace: str | None = None,
    engine: Engine = VLLM,
) -> Telemetry:
    """Read all that Prometheus says about a job, at ``now`` (seconds since the epoch).

    ``sampler_pods``/``trainer_pods``: names of the pods that the API server shows as Ready; one without metrics makes fleet
    quantities / the layout generation unknown. ``since``: when the layout in force was acknowledged (None: not yet, then
    windowed readings are missing). ``window_s``: wished window of means, rates and histograms. ``scrape_s``: the scrape
    interval; a sample older than three of them is stale. ``max_response_tokens``: where
    responses are cut off, the upper edge of the last bin. ``environment_turns``: turns of a sample that end in its environment, None for
    a job without one, which is then not asked about. ``series``: label matchers by which the job's series are found where its pods
    carry no uid; by their uid if None, and then ``namespace`` leaves out the series of pods that carry the uid in another namespace (a series
    without that label is believed). ``engine``: the samplers', whose metrics are asked for. Never raises for an unreachable or broken Prometheus: all readings
    are missing then, and ``Telemetry.missing`` says what to do.
    """
    if not re.fullmatch(r"[A-Za-z0-9-]+", uid):
        raise ValueError(f"{uid!r} is not the uid of a Kubernetes object")
    window = 0.0 if since is None else min(window_s, now - since)
    if window < MIN_SCRAPES * scrape_s:
        window = 0.0
    horizon_s = max(4.0 * STALE_SCRAPES * scrape_s, 60.0)
    series = series or _series_of(uid, namespace)
    asked = questions(series, horizon_s, window, environment=bool(environment_turns), engine=engine.metrics)
    answers = await asyncio.gather(*(prometheus.query(text, at=now) for text in asked.texts), return_exceptions=True)
    since_s = None if since is None else now - since
    nothing = Telemetry(
        now,
        window,
        since_s,
        samplers={pod: SamplerTelemetry.unknown() for pod in sampler_pods},
        ready_samplers=frozenset(sampler_pods),
    )
    found: list[list[Series]] = []
    for answer in answers:
        if isinstance(answer, PrometheusError):
            # Some answers without the others are half a picture, and half a picture is worse than none.
            return replace(nothing, missing=(str(answer),))
        if isinstance(answer, BaseException):
            raise answer
        found.append(answer)
    view = Answers(asked.sorted_out(found), now, STALE_SCRAPES * scrape_s, engine.metrics)
    try:
        telemetry = _read(
            view, nothing, series, trainer_pods, samples_per_prompt, max_response_tokens, engine, environment_turns
        )
        return (
            _with_environment(telemetry, view, environment_turns) if "environment_sum" in asked.computed else telemetry
        )
    except (ArithmeticError, ValueError) as error:
        return replace(
            nothing,
            missing=(
                f"the job's metrics hold numbers that can't be ({error}): look at them in {prometheus.url}, and at what exports them",
            ),
        )


def _series_of(uid: str, namespace: str | None) -> str:
    """Matchers for the series of a job's pods; not every scrape keeps their namespace."""
    by_uid = promql.matches("rljob_dev_uid", uid)
    if namespace is None:
        return by_uid
    return f"{by_uid},{promql.matches_any('namespace', (promql.literal(namespace), ''))}"


def _read(
    view: Answers,
    nothing: Telemetry,
    series: str,
    trainer_pods: Collection[str],
    samples_per_prompt: int,
    max_response_tokens: int | None,
    engine: Engine,
    environment_turns: int | None,
) -> Telemetry:
    """The telemetry behind the answers; ``nothing`` is the same with all of it unknown. ArithmeticError or ValueError on nonsense."""
    telemetry = replace(
        nothing,
        policy_version=view.newest("rljob_policy_version").map(round),
        queue_groups=view.newest("rljob_queue_depth_groups"),
        in_flight_samples=view.newest(IN_FLIGHT),
        layout_generation=view.smallest("rljob_layout_generation", trainer_pods).map(round),
        samplers=view.samplers(nothing.ready_samplers),
    )
    if not environment_turns and IN_FLIGHT not in view.anything and telemetry.policy_version.known:
        telemetry = _with_in_flight(telemetry)
    doubt = None
    if telemetry.window_s > 0:
        telemetry = _windowed(telemetry, view, telemetry.window_s)
        lengths = lengths_of(
            view,
            window_s=telemetry.window_s,
            period=telemetry.period_s,
            samplers=telemetry.ready_samplers,
            engine=engine,
            samples_per_prompt=samples_per_prompt,
            max_response_tokens=max_response_tokens,
            environment_turns=environment_turns,
        )
        doubt, words = lengths.doubt, () if lengths.from_samplers is None else (lengths.from_samplers,)
        telemetry = replace(
            telemetry,
            response_lengths=lengths.histogram,
            response_trend=lengths.trend,
            stand_ins=(*telemetry.stand_ins, *words),
        )
    missing = remedies(telemetry, series, trainer_pods=trainer_pods, anything=view.anything, engine=engine, doubt=doubt)
    return replace(telemetry, missing=missing)


def _with_in_flight(telemetry: Telemetry) -> Telemetry:
    """The telemetry of a job that does not say what is in flight, with what its samplers have: a request is a sample there.

    What waits in front of the samplers is not seen. No decision takes the number itself, but one of a job of which nobody
    knows whether anything is under way is none.
    """
    seen = combined([telemetry.running, telemetry.waiting], math.fsum)
    if not seen.known:
        return telemetry
    words = f"samples in flight are those that run or wait at the samplers, since the job exports no {IN_FLIGHT}"
    return replace(telemetry, in_flight_at_samplers=seen, stand_ins=(words,))


def _with_environment(telemetry: Telemetry, view: Answers, turns: int | None) -> Telemetry:
    """The telemetry with what samples did in their environments; a sample reports once, all of its ``turns`` together."""
    seen, samples = view.newest(f"{ENVIRONMENT}_count"), view.number("environment_count")
    per_sample_s = view.ratio("environment_sum", "environment_count")
    if not turns:
        return telemetry
    return replace(
        telemetry,
        environment_turn_s=over(seen, per_sample_s).map(lambda seconds: seconds / turns),
        environment_turns_per_s=over(seen, samples).map(lambda count: count * turns / telemetry.window_s),
    )


def _windowed(telemetry: Telemetry, view: Answers, window_s: float) -> Telemetry:
    """The telemetry with everything that covers the window but lengths."""
    steps, period = steps_and_period(view.rows["versions"])
    version = view.newest("rljob_policy_version")
    staleness = view.newest("rljob_sample_staleness_versions_count")
    trained = view.newest("rljob_trained_samples_total")
    samples, tokens = view.number("samples"), view.number("tokens")
    return replace(
        telemetry,
        steps_in_window=over(version, steps),
        period_s=over(version, period),
        staleness_mean=over(staleness, view.ratio("staleness_sum", "staleness_count")),
        staleness_p95=over(staleness, quantile(view.rows["staleness_bucket"], 0.95)),
        staleness_max=over(view.newest("rljob_sample_staleness_max_versions"), view.number("staleness_max")),
        train_step_s=over(
            view.newest("rljob_train_step_seconds_count"), view.ratio("train_step_sum", "train_step_count")
        ),
        weight_sync_s=over(
            view.newest("rljob_weight_sync_seconds_count"), view.ratio("weight_sync_sum", "weight_sync_count")
        ),
        trainer_wait_share=over(view.newest("rljob_trainer_wait_seconds_total"), view.number("wait")).map(
            lambda waited: min(1.0, waited / window_s)
        ),
        # Steps counted by a counter: extrapolated like the samples, so the extrapolation cancels.
        trained_samples_per_step=over(trained, view.ratio("samples", "train_step_count")),
        trained_tokens_per_sample=over(trained, tokens / samples if samples and tokens else None),
    )
