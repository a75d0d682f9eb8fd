"""The operator's own configuration, read once from the environment.

Everything has a default that suits a cluster; the deadlines of a move are here and not in the RLJob, because they describe the
cluster (how fast it schedules, how long it loads weights) and not the job.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rljob_operator.rebalance import Deadlines
from rljob_planner.api.base import duration_s

PREFIX = "RLJOB_OPERATOR_"

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class LeaseConfig:
    """The Lease and its times. Raises ValueError for times under which two could lead."""

    namespace: str = "rljob-system"
    """Namespace of the Lease."""
    name: str = "rljob-operator"
    """Name of the Lease: one an installation."""
    identity: str = "rljob-operator"
    """What the Lease shows as its holder, usually the pod's name; a word that is new with every process is added."""
    duration_s: float = 15.0
    """How long the Lease stands without a renewal before a candidate takes it: what a crash of the leader costs."""
    renew_deadline_s: float = 10.0
    """How long the leader goes on without a renewal that succeeded."""
    period_s: float = 2.0
    """Time between two renewals."""
    poll_s: float = 1.0
    """Time between two looks of a candidate: what a handover costs."""

    def __post_init__(self) -> None:
        if not 0 < self.period_s < self.renew_deadline_s < self.duration_s:
            raise ValueError(
                f"lease times must grow: renew period {self.period_s:g} s < renew deadline {self.renew_deadline_s:g} s < "
                f"lease duration {self.duration_s:g} s; otherwise two replicas could lead at once"
            )
        if self.duration_s != int(self.duration_s):
            raise ValueError(f"the lease duration {self.duration_s:g} s must be in whole seconds, as a Lease keeps it")


def own_namespace(default: str = LeaseConfig.namespace) -> str:
    """The namespace that this process runs in by its service account; ``default`` outside of a pod."""
    try:
        return _NAMESPACE_FILE.read_text().strip() or default
    except OSError:
        return default


@dataclass(frozen=True)
class Config:
    """What a platform engineer sets on the operator."""

    prometheus_url: str | None = None
    """Prometheus for jobs that name none."""
    allowed_prometheus_urls: tuple[str, ...] = ()
    """Further Prometheus URLs that a job may name: the operator must not be led to call anything."""
    namespaces: tuple[str, ...] = ()
    """Namespaces to watch; empty watches all."""
    metrics_port: int | None = None
    """Port of the operator's own metrics, None serves none."""
    liveness_endpoint: str | None = None
    """URL on which kopf answers liveness probes, such as http://0.0.0.0:8080/healthz."""
    move_tick_s: float = 5.0
    """Time between two looks at a move under way."""
    idle_tick_s: float = 30.0
    """Longest time between two passes over a job, whatever happens."""
    metrics_window_s: float = 120.0
    """Window over which rates are measured."""
    scrape_s: float = 15.0
    """How often Prometheus scrapes the jobs' pods; a metric that is three scrapes old is stale."""
    settle_steps: int = 3
    """Steps after a start or a move before a decision rests on what is measured."""
    pool_lost_s: float = 60.0
    """How long no node of a sampler pool may be ready before its samplers are given up."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    lease: LeaseConfig | None = None
    """The Lease by which one of several replicas leads; None: this is the only one."""

    def prometheus_for(self, wished: str | None) -> str | None:
        """The Prometheus that a job may use: the one it names if allowed, else the default; raises ValueError if it is not allowed."""
        if wished is None or wished == self.prometheus_url:
            return self.prometheus_url
        if wished.rstrip("/") in {url.rstrip("/") for url in self.allowed_prometheus_urls}:
            return wished
        raise ValueError(
            f"spec.metrics.prometheus {wished} is not one that the operator may call: leave it out, or add it to "
            f"{PREFIX}ALLOWED_PROMETHEUS_URLS"
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Config:
        """Reads ``RLJOB_OPERATOR_*``; raises ValueError that names the variable if one can't be understood."""

        def text(name: str) -> str | None:
            return env.get(PREFIX + name) or None

        def words(name: str) -> tuple[str, ...]:
            return tuple(word.strip() for word in (text(name) or "").split(",") if word.strip())

        def seconds(name: str, default: float) -> float:
            value = text(name)
            try:
                return default if value is None else duration_s(value)
            except ValueError as error:
                raise ValueError(f"{PREFIX}{name}: {error}") from error

        def whole(name: str, default: int | None) -> int | None:
            value = text(name)
            if value is None:
                return default
            if not value.isdigit():
                raise ValueError(f"{PREFIX}{name}: {value!r} is not a whole number")
            return int(value)

        def yes(name: str) -> bool:
            value = (text(name) or "false").lower()
            if value not in ("true", "false"):
                raise ValueError(f"{PREFIX}{name}: {value!r} is neither true nor false")
            return value == "true"

        def lease() -> LeaseConfig | None:
            if not yes("LEADER_ELECTION"):
                return None
            usual = LeaseConfig()
            try:
                return LeaseConfig(
                    namespace=text("LEASE_NAMESPACE") or own_namespace(),
                    name=text("LEASE_NAME") or usual.name,
                    identity=text("IDENTITY") or socket.gethostname(),
                    duration_s=seconds("LEASE_DURATION", usual.duration_s),
                    renew_deadline_s=seconds("RENEW_DEADLINE", usual.renew_deadline_s),
                    period_s=seconds("RENEW_PERIOD", usual.period_s),
                )
            except ValueError as error:
                raise ValueError(f"{PREFIX}LEASE_DURATION, _RENEW_DEADLINE, _RENEW_PERIOD: {error}") from error

        standard = Deadlines()
        return cls(
            prometheus_url=text("PROMETHEUS_URL"),
            allowed_prometheus_urls=words("ALLOWED_PROMETHEUS_URLS"),
            namespaces=words("NAMESPACES"),
            metrics_port=whole("METRICS_PORT", None),
            liveness_endpoint=text("LIVENESS_ENDPOINT"),
            move_tick_s=seconds("MOVE_TICK", 5.0),
            idle_tick_s=seconds("IDLE_TICK", 30.0),
            metrics_window_s=seconds("METRICS_WINDOW", 120.0),
            scrape_s=seconds("SCRAPE_INTERVAL", 15.0),
            settle_steps=whole("SETTLE_STEPS", 3) or 3,
            pool_lost_s=seconds("POOL_LOST_AFTER", 60.0),
            deadlines=Deadlines(
                acknowledge_s=seconds("ACKNOWLEDGE_DEADLINE", standard.acknowledge_s),
                gone_s=seconds("GONE_DEADLINE", standard.gone_s),
                ready_s=seconds("READY_DEADLINE", standard.ready_s),
            ),
            lease=lease(),
        )
