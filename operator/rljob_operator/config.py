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
from urllib.parse import urlsplit

from rljob_operator.rebalance import Deadlines
from rljob_planner.api.base import duration_s

PREFIX = "RLJOB_OPERATOR_"

LONGEST_IDLE_TICK_S = 120.0
"""A quiet job must have a pass well within the silence of 300 s after which the liveness probe ends the process (240 s: an alert)."""

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
    prometheus_ca_file: Path | None = None
    """PEM file of the authorities whose Prometheus servers are trusted, in place of the system's; None trusts the system's."""
    prometheus_token_file: Path | None = None
    """File with the bearer token for Prometheus; None sends none."""
    prometheus_token_urls: tuple[str, ...] = ()
    """Which of the allowed URLs get the token; the operator's own one always does."""
    namespaces: tuple[str, ...] = ()
    """Namespaces to watch; empty watches all."""
    metrics_port: int | None = None
    """Port of the operator's own metrics, None serves none."""
    status_page: bool = False
    """Whether the metrics port shows the status page, too."""
    liveness_endpoint: str | None = None
    """URL on which kopf answers liveness probes, such as http://0.0.0.0:8080/healthz."""
    move_tick_s: float = 5.0
    """Time between two looks at a move under way."""
    idle_tick_s: float = 30.0
    """Longest time between two passes over a job, whatever happens; at most ``LONGEST_IDLE_TICK_S``."""
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

    def __post_init__(self) -> None:
        for name, value_s, usual in (
            ("MOVE_TICK", self.move_tick_s, "5s"),
            ("METRICS_WINDOW", self.metrics_window_s, "120s"),
            ("SCRAPE_INTERVAL", self.scrape_s, "15s"),
        ):
            if not value_s > 0.0:
                raise ValueError(
                    f"{PREFIX}{name}: {value_s:g} s is no time: write a duration above 0, such as {usual} (the default)"
                )
        if not 0.0 < self.idle_tick_s <= LONGEST_IDLE_TICK_S:
            raise ValueError(
                f"{PREFIX}IDLE_TICK: {self.idle_tick_s:g} s is not above 0 s and at most {LONGEST_IDLE_TICK_S:g} s, and an operator that looks at "
                "its jobs more seldom is taken for dead by its liveness probe: write a duration such as 30s (the default)"
            )
        known = {_plain(url) for url in self.allowed_prometheus_urls}
        for url in self.prometheus_token_urls:
            if _plain(url) not in known:
                raise ValueError(
                    f"{PREFIX}PROMETHEUS_BEARER_TOKEN_URLS: {url} is not one of {PREFIX}ALLOWED_PROMETHEUS_URLS: add it there, or leave it out"
                )
        if self.prometheus_token_file is not None:
            for url in self.token_urls:
                _check_secrecy(url)
        if self.status_page and self.metrics_port is None:
            raise ValueError(
                f"{PREFIX}STATUS_PAGE is true, but the page is served on the metrics port: set {PREFIX}METRICS_PORT, too"
            )

    @property
    def token_urls(self) -> tuple[str, ...]:
        """The servers that the bearer token is shown to."""
        return tuple(url for url in (self.prometheus_url, *self.prometheus_token_urls) if url is not None)

    def prometheus_for(self, wished: str | None) -> str | None:
        """The Prometheus that a job may use: the one it names if allowed, else the default; raises ValueError if it is not allowed.

        Allowed is what the configuration spells in the same way, but for slashes at the end: two spellings of one server (case, port, a
        dot at the end) are as good as two servers here, so that nothing hangs on who reads a URL how. What is returned is the
        configuration's spelling.
        """
        if wished is None:
            return self.prometheus_url
        for url in (self.prometheus_url, *self.allowed_prometheus_urls):
            if url is not None and _plain(url) == _plain(wished):
                return url
        raise ValueError(
            f"spec.metrics.prometheus {wished} is not one that the operator may call: leave it out, write it exactly as the operator's "
            f"configuration does, or have it added to {PREFIX}ALLOWED_PROMETHEUS_URLS"
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Config:
        """Reads ``RLJOB_OPERATOR_*``; raises ValueError that names the variable if one can't be understood."""

        def text(name: str) -> str | None:
            return env.get(PREFIX + name) or None

        def words(name: str) -> tuple[str, ...]:
            return tuple(word.strip() for word in (text(name) or "").split(",") if word.strip())

        def servers(name: str) -> tuple[str, ...]:
            return tuple(_server(PREFIX + name, word) for word in words(name))

        def path(name: str) -> Path | None:
            found = text(name)
            return None if found is None else Path(found)

        def own_server() -> str | None:
            found = text("PROMETHEUS_URL")
            return None if found is None else _server(f"{PREFIX}PROMETHEUS_URL", found)

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
            prometheus_url=own_server(),
            allowed_prometheus_urls=servers("ALLOWED_PROMETHEUS_URLS"),
            prometheus_ca_file=path("PROMETHEUS_CA_FILE"),
            prometheus_token_file=path("PROMETHEUS_BEARER_TOKEN_FILE"),
            prometheus_token_urls=servers("PROMETHEUS_BEARER_TOKEN_URLS"),
            namespaces=words("NAMESPACES"),
            metrics_port=whole("METRICS_PORT", None),
            status_page=yes("STATUS_PAGE"),
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


_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _plain(url: str) -> str:
    return url.rstrip("/")


def _server(variable: str, url: str) -> str:
    """The URL of a server as it is configured; raises ValueError for one that would show more, or lead elsewhere, than it seems."""
    try:
        parts = urlsplit(url)
        fine = url.isascii() and url.isprintable() and parts.scheme in ("http", "https") and bool(parts.hostname)
        parts.port  # noqa: B018 - reading it is the check
    except ValueError:
        fine = False
    if not fine:
        raise ValueError(
            f"{variable}: {url!r} is not the URL of a server: write it like http://prometheus.monitoring:9090"
        )
    if "@" in parts.netloc:
        # Without the URL: what stands in it would be in the log.
        raise ValueError(
            f"{variable} holds a user or a password, which would show in the status of jobs: take it out, and use "
            f"{PREFIX}PROMETHEUS_BEARER_TOKEN_FILE"
        )
    if parts.query or parts.fragment:
        raise ValueError(f"{variable}: {url!r} has a query or a fragment: write only what stands before /api/v1")
    return url


def _check_secrecy(url: str) -> None:
    """Raises ValueError for a server on the way to which others could read the token."""
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise ValueError(
            f"{PREFIX}PROMETHEUS_BEARER_TOKEN_FILE is set, but {url} has no TLS, so that others could read the token on its way: "
            f"use https:// (and {PREFIX}PROMETHEUS_CA_FILE), or leave the token out"
        )
