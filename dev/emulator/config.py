"""What an emulation is made of, as YAML: the hidden truth, the drift, the faults.

Keys are the fields of the dataclasses; one that is not known is an error, since a misspelt constant would silently be another
truth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dev.emulator.lengths import Lengths, trace_of
from dev.emulator.truth import DecodeTruth, TrainTruth, Truth

T = TypeVar("T")


@dataclass(frozen=True)
class Faults:
    """What goes wrong on request."""

    silent_roles: tuple[str, ...] = ()
    """Roles (``sampler``, ``trainer``) whose metrics are not answered."""
    acknowledge_after_s: float | None = 0.0
    """How long the trainer ignores a layout that it has seen, in seconds; None: it never acknowledges."""
    layout_lag_s: float | None = None
    """Lag of the layout volume in seconds, instead of the configured one; a touched pod annotation does not shorten it."""
    environment_s: float | None = None
    """Seconds that each sample says it spent in its environment; None: it says nothing. It slows nothing down here."""
    slow_samplers: Mapping[str, float] = field(default_factory=dict)
    """Sampler pods that take longer for every token, by name: so many times as long as they would."""


@dataclass(frozen=True)
class EmulatorConfig:
    """One emulation."""

    truth: Truth
    lengths: Lengths
    seed: int = 0
    layout_lag_s: float = 2.0
    """Lag of the layout volume after a pod annotation was touched, in seconds."""
    untouched_lag_s: float = 60.0
    """Lag of the layout volume as long as no pod annotation was touched, in seconds."""
    start_timeout_s: float = 120.0
    """How long the job waits for the last of its pods before it starts with those that are ready, in seconds."""
    faults: Faults = Faults()


def parse(text: str) -> EmulatorConfig:
    """Read a configuration; ValueError names the key that is wrong."""
    document = yaml.safe_load(text)
    if not isinstance(document, dict):
        raise ValueError("the emulator's configuration must be a mapping with the keys truth and lengths")
    seed = int(document.get("seed", 0))
    truth = dict(_mapping(document, "truth"))
    truth["decode"] = _build(DecodeTruth, _mapping(truth, "decode"), "truth.decode")
    truth["train"] = _build(TrainTruth, _mapping(truth, "train"), "truth.train")
    lengths = {**_mapping(document, "lengths"), "seed": seed}
    lengths["trace"] = trace_of(lengths.get("trace", ()))
    rest = {key: value for key, value in document.items() if key not in ("truth", "lengths", "faults", "seed")}
    return _build(
        EmulatorConfig,
        {
            **rest,
            "seed": seed,
            "truth": _build(Truth, truth, "truth"),
            "lengths": _build(Lengths, lengths, "lengths"),
            "faults": faults_of(document.get("faults") or {}),
        },
        "",
    )


def load(path: Path) -> EmulatorConfig:
    """Read a configuration file."""
    return parse(path.read_text())


def faults_of(document: Mapping[str, Any], base: Faults = Faults()) -> Faults:
    """Faults from a mapping of their fields; what is not named stays as in ``base``."""
    changes = dict(document)
    if "silent_roles" in changes:
        changes["silent_roles"] = tuple(changes["silent_roles"])
    return _build(Faults, {**dataclasses.asdict(base), **changes}, "faults")


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is missing or not a mapping")
    return value


def _build(kind: type[T], values: Mapping[str, Any], place: str) -> T:
    assert dataclasses.is_dataclass(kind)
    fields = dataclasses.fields(kind)
    unknown = set(values) - {f.name for f in fields}
    if unknown:
        known = ", ".join(f.name for f in fields)
        raise ValueError(f"{place or 'configuration'}: unknown key {sorted(unknown)[0]!r}; known are {known}")
    missing = [
        f.name
        for f in fields
        if f.name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{place or 'configuration'}: {missing[0]} is missing")
    return kind(**values)
