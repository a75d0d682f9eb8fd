"""The layout: what the operator tells a job about its own shape.

It arrives as the file ``layout.json`` of a ConfigMap mounted as a directory. The file is read by code that may be older
or newer than the operator that wrote it. So a key that is not known is passed over, and a key that is missing or of the
wrong kind is an error that names it: following half a layout would be worse than keeping the last whole one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

DEFAULT_DIRECTORY = "/etc/rljob"
"""Where the operator mounts the layout's ConfigMap."""

FILE_NAME = "layout.json"
"""The layout's file in that directory."""


class LayoutError(ValueError):
    """A layout that cannot be followed; the message says which key is wrong and how."""


class LayoutPhase(StrEnum):
    """What the operator is doing while this layout holds."""

    STEADY = "steady"
    """Nothing: this is the split in force."""
    DRAINING = "draining"
    """The pods in ``draining`` get no new samples and will be removed once they are empty."""
    RESIZING = "resizing"
    """Pods come or go."""


@dataclass(frozen=True)
class Endpoint:
    """A sampler that may be given samples."""

    pod: str
    """The pod's name."""
    url: str
    """Base URL of its HTTP server."""


@dataclass(frozen=True)
class SamplerLayout:
    """The sampler side."""

    replicas: int
    """Sampler pods."""
    gpus_per_replica: int
    """GPUs of one sampler pod."""
    tensor_parallel: int
    """Tensor-parallel width of the engine in a pod."""
    max_running: int
    """Most running samples of one replica."""
    endpoints: tuple[Endpoint, ...]
    """The samplers to use; those in ``Layout.draining`` are to get nothing new."""


@dataclass(frozen=True)
class TrainerLayout:
    """The trainer side."""

    replicas: int
    """Trainer pods that take part from the next step boundary on."""
    gpus_per_replica: int
    """GPUs of one trainer pod."""
    dp: int
    """Data-parallel width."""
    tp: int
    """Tensor-parallel width."""
    pp: int
    """Pipeline-parallel depth."""
    ep: int
    """Expert-parallel width."""
    rendezvous: str
    """``host:port`` where the trainer's processes meet; empty if the framework has its own way."""


@dataclass(frozen=True)
class Layout:
    """One generation of a job's layout."""

    generation: int
    """Counts up by one with every change; acknowledged at the next step boundary by ``Reporter.acknowledged``."""
    phase: LayoutPhase
    samplers: SamplerLayout
    trainers: TrainerLayout
    in_flight_cap: int
    """Most samples submitted and not finished; a group is admitted only when all of its samples fit."""
    max_staleness: int
    """Largest tolerated staleness in policy versions."""
    draining: tuple[str, ...]
    """Pods that finish what they have, get nothing new, and then go."""
    checkpoint: bool
    """Whether to write a checkpoint before acknowledging this generation."""

    @classmethod
    def parse(cls, text: str | bytes) -> Layout:
        """Read a layout from the JSON that the operator wrote; LayoutError if it is not a whole one."""
        try:
            document = json.loads(text)
        except (ValueError, UnicodeDecodeError) as error:
            raise LayoutError(f"the layout is not JSON: {error}") from error
        root = _Node(document, "")
        samplers, trainers = root.child("samplers"), root.child("trainers")
        phase = root.text("phase")
        try:
            known_phase = LayoutPhase(phase)
        except ValueError as error:
            known = ", ".join(p.value for p in LayoutPhase)
            raise LayoutError(f"layout phase {phase!r} is not known here; known are {known}") from error
        return cls(
            generation=root.number("generation"),
            phase=known_phase,
            samplers=SamplerLayout(
                replicas=samplers.number("replicas"),
                gpus_per_replica=samplers.number("gpusPerReplica"),
                tensor_parallel=samplers.number("tensorParallel"),
                max_running=samplers.number("maxRunning"),
                endpoints=tuple(Endpoint(e.text("pod"), e.text("url")) for e in samplers.children("endpoints")),
            ),
            trainers=TrainerLayout(
                replicas=trainers.number("replicas"),
                gpus_per_replica=trainers.number("gpusPerReplica"),
                dp=trainers.number("dp"),
                tp=trainers.number("tp"),
                pp=trainers.number("pp"),
                ep=trainers.number("ep"),
                rendezvous=trainers.text("rendezvous", default=""),
            ),
            in_flight_cap=root.number("inFlightCap"),
            max_staleness=root.number("maxStaleness"),
            draining=root.texts("draining"),
            checkpoint=root.flag("checkpoint", default=False),
        )

    @classmethod
    def load(cls, directory: str | Path = DEFAULT_DIRECTORY) -> Layout:
        """Read the layout from its mounted directory.

        Raises LayoutError also when the file is not there, since a volume may appear after the container has started.
        """
        path = Path(directory) / FILE_NAME
        try:
            # One open: a volume's update swaps a symbolic link, so what is open stays whole.
            text = path.read_bytes()
        except OSError as error:
            raise LayoutError(
                f"cannot read {path}: {error.strerror}; mount the job's layout ConfigMap there as a directory, not by subPath"
            ) from error
        return cls.parse(text)


class _Node:
    """A JSON object with its place in the document, so that every complaint can name it."""

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, Mapping):
            raise LayoutError(f"layout{' key ' + place if place else ''} must be an object, not {_kind(value)}")
        self._value: Mapping[str, Any] = value
        self._place = place

    def _at(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key

    def _get(self, key: str) -> Any:
        if key not in self._value:
            raise LayoutError(f"layout key {self._at(key)} is missing")
        return self._value[key]

    def _wrong(self, key: str, wanted: str, value: object) -> LayoutError:
        return LayoutError(f"layout key {self._at(key)} must be {wanted}, not {_kind(value)}")

    def child(self, key: str) -> _Node:
        return _Node(self._get(key), self._at(key))

    def children(self, key: str) -> list[_Node]:
        return [_Node(item, f"{self._at(key)}[{i}]") for i, item in enumerate(self._list(key))]

    def _list(self, key: str) -> list[Any]:
        value = self._value.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        items = self._list(key)
        for item in items:
            if not isinstance(item, str):
                raise self._wrong(key, "a list of strings", item)
        return tuple(items)

    def number(self, key: str) -> int:
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "a whole number of at least 0", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key) if default is None else self._value.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._value.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value


def _kind(value: object) -> str:
    return f"{json.dumps(value)[:40]} ({type(value).__name__})"
