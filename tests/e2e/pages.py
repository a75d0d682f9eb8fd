"""What a ``/metrics`` page promises whoever asks Prometheus: names, types, labels, buckets; not the values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

NAMED_BY_THE_USER = ("model_name",)
"""Labels whose values are no part of what is promised."""


@dataclass(frozen=True)
class Series:
    """All series of one name."""

    kind: str
    """The type of the family that it belongs to."""
    labels: frozenset[str]
    values: Mapping[str, frozenset[str]]
    """The values of each label; ``le`` as numbers in text."""

    @property
    def edges(self) -> tuple[float, ...]:
        return tuple(sorted(float(v) for v in self.values.get("le", frozenset())))


def series(text: str, prefix: str = "vllm:") -> dict[str, Series]:
    """Every name on a page that starts so, without the times of creation, which an exporter may leave out."""
    found: dict[str, tuple[str, frozenset[str], dict[str, set[str]]]] = {}
    for kind, sample in _samples(text, prefix):
        labels = frozenset(sample.labels)
        known = found.setdefault(sample.name, (kind, labels, {label: set() for label in labels}))
        assert known[1] == labels, (
            f"{sample.name} has series with different labels: {sorted(known[1])}, {sorted(labels)}"
        )
        for label, value in sample.labels.items():
            if label not in NAMED_BY_THE_USER:
                known[2][label].add(str(float(value)) if label == "le" else value)
    return {
        name: Series(kind, labels, {label: frozenset(v) for label, v in values.items()})
        for name, (kind, labels, values) in found.items()
    }


def value(text: str, name: str, **labels: str) -> float | None:
    """The sum of the series with these labels; None if there is none."""
    values = [
        s.value
        for _, s in _samples(text, name)
        if s.name == name and all(s.labels.get(label) == v for label, v in labels.items())
    ]
    return sum(values) if values else None


def _samples(text: str, prefix: str) -> Iterator[tuple[str, Sample]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(prefix) and not sample.name.endswith("_created"):
                yield family.type, sample
