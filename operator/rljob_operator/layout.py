"""The layout that a job's containers read: ``layout.json`` of the ConfigMap ``<job>-layout``.

This is the only thing that changes in a move. It can't be environment or arguments of the pods, since a change of the pod
template would roll all of them; so the operator publishes a file with a generation, and the job acknowledges it at its next
step boundary. The text is the same for the same content (sorted keys and pods): a ConfigMap that is written again without a
change would make every kubelet sync its volume for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rljob_operator.engines import VLLM, Engine
from rljob_operator.gate import Pod, is_ready, is_terminal, is_terminating, name_of, natural
from rljob_operator.server_command import serving_port
from rljob_planner.split import Split

LAYOUT_FILE = "layout.json"
"""The key of the ConfigMap, and so the name of the file in ``/etc/rljob``."""

DEFAULT_PORT = 8000
"""Port of a companion whose first container declares none."""


class LayoutPhase(StrEnum):
    """What the job should do about the layout."""

    STEADY = "steady"
    """Nothing changes: use all endpoints."""
    DRAINING = "draining"
    """Give the pods in ``draining`` nothing new; a move is coming."""
    RESIZING = "resizing"
    """Pods come or go right now."""


@dataclass(frozen=True)
class Endpoint:
    """A sampler that takes requests."""

    pod: str
    """Name of the pod."""
    url: str
    """``http://<pod IP>:<port>``, without a path."""


@dataclass(frozen=True)
class SamplerLayout:
    """The sampler side of a layout."""

    replicas: int
    """Sampler pods wished; fewer may be ready."""
    gpus_per_replica: int
    """GPUs of one sampler pod."""
    tensor_parallel: int
    """Tensor-parallel width of one engine."""
    max_running: int
    """Most running samples of one replica."""
    endpoints: tuple[Endpoint, ...]
    """Samplers that take requests now, by pod name."""


@dataclass(frozen=True)
class TrainerLayout:
    """The trainer side of a layout."""

    replicas: int
    """Trainer pods wished."""
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
    """``host:port`` at which the trainer's pods meet."""


@dataclass(frozen=True)
class Layout:
    """What the job's containers see of the split in force and of a move under way."""

    generation: int
    """Grows by one with each layout that the job must acknowledge."""
    phase: LayoutPhase
    """What the job should do about it."""
    samplers: SamplerLayout
    """The sampler side."""
    trainers: TrainerLayout
    """The trainer side."""
    in_flight_cap: int
    """Cap on samples submitted and not finished."""
    max_staleness: int
    """Largest tolerated staleness in policy versions."""
    draining: tuple[str, ...]
    """Pods that get no new samples, since they will leave, by name."""
    checkpoint: bool
    """Whether the trainer should write a checkpoint before it acknowledges."""

    def to_json(self) -> str:
        """The text of ``layout.json``: camelCase, sorted keys, the same text for the same layout."""
        return json.dumps(
            {
                "generation": self.generation,
                "phase": self.phase.value,
                "samplers": {
                    "replicas": self.samplers.replicas,
                    "gpusPerReplica": self.samplers.gpus_per_replica,
                    "tensorParallel": self.samplers.tensor_parallel,
                    "maxRunning": self.samplers.max_running,
                    "endpoints": [{"pod": e.pod, "url": e.url} for e in self.samplers.endpoints],
                },
                "trainers": {
                    "replicas": self.trainers.replicas,
                    "gpusPerReplica": self.trainers.gpus_per_replica,
                    "dp": self.trainers.dp,
                    "tp": self.trainers.tp,
                    "pp": self.trainers.pp,
                    "ep": self.trainers.ep,
                    "rendezvous": self.trainers.rendezvous,
                },
                "inFlightCap": self.in_flight_cap,
                "maxStaleness": self.max_staleness,
                "draining": list(self.draining),
                "checkpoint": self.checkpoint,
            },
            indent=2,
            sort_keys=True,
        )


def layout_of(
    *,
    generation: int,
    phase: LayoutPhase | str,
    split: Split,
    sampler_pods: Iterable[Pod],
    trainers_replicas: int,
    samplers_replicas: int,
    draining: Collection[str],
    max_staleness: int,
    in_flight_cap: int,
    rendezvous: str,
    checkpoint: bool = False,
    engine: Engine = VLLM,
) -> Layout:
    """The layout for a split at a moment, from the sampler pods that exist.

    ``trainers_replicas`` and ``samplers_replicas`` are what is wished right now: in a move they differ from the split's.
    Endpoints are the samplers that are Ready, have an IP, and are neither draining nor terminating. The data-parallel
    width follows the trainer's replicas when they differ from the split's: the replicas change, what is inside of one
    does not.
    """
    trainers = split.trainers
    dp = trainers.dp
    if trainers_replicas != trainers.replicas:
        dp = max(1, trainers_replicas * trainers.gpus_per_replica // (trainers.tp * trainers.pp))
    leaving = frozenset(draining)
    return Layout(
        generation=generation,
        phase=LayoutPhase(phase),
        samplers=SamplerLayout(
            replicas=samplers_replicas,
            gpus_per_replica=split.samplers.gpus_per_replica,
            tensor_parallel=split.samplers.tensor_parallel,
            max_running=split.samplers.max_running,
            endpoints=endpoints_of(sampler_pods, leaving, engine),
        ),
        trainers=TrainerLayout(
            replicas=trainers_replicas,
            gpus_per_replica=trainers.gpus_per_replica,
            dp=dp,
            tp=trainers.tp,
            pp=trainers.pp,
            ep=trainers.ep,
            rendezvous=rendezvous,
        ),
        in_flight_cap=in_flight_cap,
        max_staleness=max_staleness,
        draining=tuple(sorted(leaving, key=natural)),
        checkpoint=checkpoint,
    )


def endpoints_of(pods: Iterable[Pod], draining: Collection[str] = (), engine: Engine = VLLM) -> tuple[Endpoint, ...]:
    """The samplers that take requests: Ready, with an IP, not draining, not terminating; sorted by pod."""
    endpoints = [
        Endpoint(pod=name_of(pod), url=url_of(pod, engine))
        for pod in pods
        if is_ready(pod)
        and not is_terminating(pod)
        and not is_terminal(pod)
        and (pod.get("status") or {}).get("podIP")
        and name_of(pod) not in draining
    ]
    return tuple(sorted(endpoints, key=lambda e: natural(e.pod)))


def url_of(pod: Pod, engine: Engine = VLLM) -> str:
    """``http://<pod IP>:<port>``, brackets round an IPv6 address; the port is that of ``server_port``."""
    ip = str(pod["status"]["podIP"])
    return f"http://{f'[{ip}]' if ':' in ip else ip}:{server_port(pod.get('spec') or {}, engine)}"


def server_port(pod_spec: Mapping[str, Any], engine: Engine) -> int:
    """The port of a sampler's server (``serving_port`` of its first container)."""
    containers = pod_spec.get("containers") or ()
    return serving_port(containers[0], engine) if containers else engine.port


def first_port(pod_spec: Mapping[str, Any], default: int) -> int:
    """The first containerPort of the first container of a pod spec, ``default`` if it declares none."""
    containers = pod_spec.get("containers") or ()
    ports = (containers[0].get("ports") or ()) if containers else ()
    return int(ports[0]["containerPort"]) if ports else default
