"""Reads what an exporter shows at ``/metrics``: Prometheus exposition text as flat samples.

``prometheus_client`` has the parser; here it only loses the grouping into families, which differs between exporters (a histogram
whose ``TYPE`` line is missing is three families), while a sample's name is always the one that PromQL knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


class ExpositionError(ValueError):
    """A text that no exporter writes; the message says which."""


@dataclass(frozen=True)
class Sample:
    """One line of an exposition."""

    name: str
    labels: Mapping[str, str]
    value: float
    time_s: float | None = None
    """Seconds since the epoch, where the exporter gives its own."""


def parse_exposition(text: str, source: str) -> list[Sample]:
    """The samples of a text, NaN left out; raises ExpositionError that names ``source`` if it is no exposition."""
    samples = []
    try:
        for family in text_string_to_metric_families(text):
            for s in family.samples:
                if math.isnan(s.value):
                    continue
                time = None if s.timestamp is None else float(s.timestamp)
                samples.append(Sample(s.name, dict(s.labels), float(s.value), time))
    except (ValueError, KeyError, IndexError) as error:
        raise ExpositionError(
            f"{source}: this is no Prometheus exposition text ({error}): give what an exporter shows at /metrics"
        ) from error
    if not samples and text.strip():
        raise ExpositionError(f"{source}: there are no samples in it: give what an exporter shows at /metrics")
    return samples


def total(samples: list[Sample], *names: str) -> float | None:
    """The sum over all series under the first of these names that is there, None if none is: names change between versions."""
    for name in names:
        values = [s.value for s in samples if s.name == name]
        if values:
            return math.fsum(values)
    return None


def engines(samples: list[Sample]) -> int:
    """Engines behind one vLLM server, at least 1: data parallelism runs several, each with a batch and a KV cache of its own."""
    return len({s.labels["engine"] for s in samples if s.name.startswith("vllm:") and "engine" in s.labels}) or 1


def cache_tokens(samples: list[Sample]) -> int | None:
    """The KV room in tokens that a vLLM server tells, summed over its engines; None if it does not."""
    rooms: dict[str, float] = {}
    for s in samples:
        if s.name != "vllm:cache_config_info":
            continue
        size, blocks, block = (s.labels.get(k, "") for k in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size"))
        try:
            rooms[s.labels.get("engine", "")] = (
                float(size) if size not in ("", "None") else float(blocks) * float(block)
            )
        except ValueError:
            return None
    return round(math.fsum(rooms.values())) if rooms else None
