"""Prometheus → typed samples (signatures; bodies follow)."""

from __future__ import annotations

import aiohttp

from rljob_operator.readings import (
    LengthHistogram as LengthHistogram,
    Reading as Reading,
    ReadingState as ReadingState,
    SamplerTelemetry as SamplerTelemetry,
    Telemetry as Telemetry,
    Trend as Trend,
    corrected_lengths as corrected_lengths,
)


class PrometheusError(Exception):
    """Prometheus did not answer as it should; the message says what to check."""


class Prometheus:
    """An asynchronous client of one Prometheus server, for instant queries."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, timeout_s: float = 10.0) -> None: ...


async def observe(
    prometheus: Prometheus,
    uid: str,
    *,
    sampler_pods: frozenset[str],
    trainer_pods: frozenset[str],
    since: float | None,
    now: float,
    window_s: float,
    scrape_s: float = 15.0,
    samples_per_prompt: int = 1,
    max_response_tokens: int | None = None,
) -> Telemetry:
    """Read all that Prometheus says about a job, at ``now`` (seconds since the epoch).

    ``sampler_pods``/``trainer_pods``: names of the pods that the API server shows as Ready; one without metrics makes fleet
    quantities / the layout generation unknown. ``since``: when the layout in force was acknowledged (None: not yet, then
    windowed readings are missing). ``window_s``: wished window of means, rates and histograms. Never raises for an
    unreachable or broken Prometheus: all readings are missing then, and ``Telemetry.missing`` says what to do.
    """
    raise NotImplementedError
