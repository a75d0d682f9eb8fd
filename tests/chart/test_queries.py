"""Every query that the chart brings, against a live Prometheus: those of dashboards, of recording rules and of alerts.

A dashboard rots silently: a metric that is renamed leaves an empty panel that looks like a quiet one. So one job runs and moves on the
control plane, Prometheus scrapes what it and the operator export, and then every query has to find something. Alerts are quiet in a healthy
job, so of each it is what they select that has to be there.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from dev.controlplane import ControlPlane, NodeSpec, Prometheus, ensure_built, operator_scrape_config
from dev.controlplane.ports import free_ports
from dev.dashboards.__main__ import BOARDS
from dev.dashboards.queries import Filling, asked, variables
from dev.dashboards.record import load
from dev.installed import SYSTEM
from dev.rules import rule_groups, write_rules
from tests.cluster.conftest import TEST_LABEL
from tests.cluster.jobs import drifting_job, emulation
from tests.cluster.rig import Rig, eventually, install

pytestmark = pytest.mark.cluster

NAMESPACE, JOB = "team", "job"

SETTLES = "it is known once the new split has settled"
QUIET = {"Phases of a move A": "no move is under way before the move, nor after it"}
"""Queries that are rightly empty at both moments, though not between them, with the reason."""

LATER = {
    "Measured gain A": SETTLES,
    "Gain of the last move B": SETTLES,
}
"""Queries that find something later than the test has time for, with the reason; the answers of the recorded run have them."""

ABSENT = {
    'code=~"0|429|5.."': "the API server refuses nothing here",
    'reason="Adopted"': "the job is none that adopts workloads",
    'phase=~"Suspended|Complete"': "the job runs",
}
"""Parts of selectors in alerts that select nothing here, with the reason."""

UNRECORDED = {"rljob_operator:api_errors:ratio5m": "the API server refuses nothing here"}
"""Recording rules that record nothing here, with the reason."""

Json = dict[str, Any]


@dataclass(frozen=True)
class World:
    """What was started, with one job that has moved."""

    prometheus: Prometheus
    since_s: float
    """When the job began to run, in seconds since the epoch."""
    moments_s: tuple[float, ...]
    """When everything of the job was measured, when another split was better, and when the move to it had ended."""

    def ask(self, path: str, **parameters: Any) -> Any:
        url = f"{self.prometheus.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)["data"]

    def ever(self, expr: str) -> list[Json]:
        """What a query has answered since the job began to run, a point every second."""
        found: list[Json] = self.ask("query_range", query=expr, start=self.since_s, end=time.time(), step=1)["result"]
        return found

    def then(self, expr: str) -> list[Json]:
        """What a query answers of those moments: no one has all, since in a move and for a while after it readings are unknown."""
        return [series for at_s in self.moments_s for series in self.ask("query", query=expr, time=at_s)["result"]]

    def selectors(self, expr: str) -> Iterator[str]:
        """What a query selects, as Prometheus itself reads it."""
        yield from _selectors(self.ask("parse_query", query=expr))


def _selectors(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for each in node:
            yield from _selectors(each)
    elif isinstance(node, dict):
        if node.get("type") in ("vectorSelector", "matrixSelector"):
            matchers = ",".join(f"{m['name']}{m['type']}{json.dumps(m['value'])}" for m in node["matchers"])
            yield f"{{{matchers}}}"
        else:
            for each in node.values():
                yield from _selectors(each)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A job that has moved once."""
    ensure_built()
    folder = tmp_path_factory.mktemp("queries")
    nodes = NodeSpec(count=2, gpus_per_node=8, product="NVIDIA-H100-80GB-HBM3", labels={TEST_LABEL: NAMESPACE})
    with ControlPlane.start(nodes=nodes) as plane:
        plane.create_namespace(NAMESPACE)
        rig = Rig(plane, NAMESPACE, install(plane), folder)
        try:
            port = free_ports(1)[0]
            rules = write_rules(folder / "rules.yaml", namespace=SYSTEM)
            scrapes = operator_scrape_config(f"127.0.0.1:{port}", SYSTEM)
            prometheus = rig.start_prometheus(scrapes=scrapes, rule_files=[rules])
            rig.start_operator(RLJOB_OPERATOR_METRICS_PORT=str(port))
            rig.apply(drifting_job(NAMESPACE))
            # Responses are from the start as long as those of the drifting job become: the first split is soon seen to be wrong.
            truth = emulation()
            truth["lengths"]["trace"] = [[0, truth["lengths"]["trace"][-1][1]]]
            rig.start_emulator(JOB, truth)
            rig.wait_phase(JOB, "Running")
            since_s = time.time()

            kinds = ("observed_period_seconds", "observed_response_tokens", 'observed_staleness_versions{stat="max"}')
            measured = " and on () ".join(f"rljob_operator_{kind}" for kind in kinds)
            # Long enough ago to be seen by a query with a point every second.
            moved = 'count_over_time(rljob_operator_last_move_info{outcome="Committed"}[10s]) >= 3'
            moments = []
            wished = "rljob_operator_predicted_gain_ratio"
            for what, query in (("everything is measured", measured), ("a better split", wished), ("a move", moved)):
                found = eventually(partial(prometheus.query, query), what, timeout_s=240, every_s=0.5)
                moments.append(float(found[0]["value"][0]))
            yield World(prometheus, since_s, tuple(moments))
        finally:
            rig.close()


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_every_query_of_a_dashboard_finds_something(world: World, name: str) -> None:
    values = {"namespace": NAMESPACE, "job": JOB, "window": "20s"}
    filling = Filling(values, rate_s=10.0, range_s=time.time() - world.since_s)
    now, ever = [], []
    for one in asked(BOARDS[name].json()):
        expr = filling.fill(one.expr)
        answers = world.ever(expr)
        if one.where in LATER:
            continue
        if not any(value != "NaN" for series in answers for _, value in series["values"]):
            ever.append((one.where, expr))
        elif one.where not in QUIET and not world.then(expr):
            now.append((one.where, expr))
    assert ever == [], "empty all the time"
    assert now == [], "empty now"


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_every_variable_offers_the_job(world: World, name: str) -> None:
    filling = Filling({"namespace": NAMESPACE, "job": JOB, "window": "20s"}, rate_s=10.0, range_s=60.0)
    offered = {
        variable: world.ask(f"label/{label}/values", **{"match[]": filling.fill(selector)})
        for variable, selector, label in variables(BOARDS[name].json())
    }
    assert offered == {variable: {"namespace": [NAMESPACE], "job": [JOB]}[variable] for variable in offered}
    assert "namespace" in offered


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_dashboards_select_only_what_there_is(world: World, name: str) -> None:
    filling = Filling({"namespace": NAMESPACE, "job": JOB, "window": "20s"}, rate_s=10.0, range_s=60.0)
    missing = set()
    for one in asked(BOARDS[name].json()):
        for selector in world.selectors(filling.fill(one.expr)):
            if one.where not in LATER and not world.ever(selector):
                missing.add((one.where, selector))
    assert missing == set()


def test_what_is_said_to_be_empty_is_asked_for_at_all() -> None:
    places = {one.where for board in BOARDS.values() for one in asked(board.json())}
    assert (QUIET | LATER).keys() <= places
    answers = load()["answers"]
    later = {one.expr for board in BOARDS.values() for one in asked(board.json()) if one.where in LATER}
    assert [expr for expr in later if not answers[expr]["instant"]] == []


def test_every_recording_rule_records(world: World) -> None:
    rules = [r for g in rule_groups(namespace=SYSTEM, alerts=False) for r in g["rules"]]
    assert rules
    names = {rule["record"] for rule in rules} - UNRECORDED.keys()

    def missing() -> set[str]:
        return {name for name in names if not world.ever(name)}

    with contextlib.suppress(AssertionError):
        eventually(lambda: not missing(), "every rule has recorded", timeout_s=15, every_s=1.0)
    assert missing() == set()


def test_every_alert_looks_at_something_and_none_fires_for_long(world: World) -> None:
    rules = [r for g in rule_groups(namespace=SYSTEM, recording=False) for r in g["rules"]]
    assert rules
    missing = {
        (rule["alert"], selector)
        for rule in rules
        for selector in world.selectors(rule["expr"])
        if not any(part in selector for part in ABSENT) and not world.ever(selector)
    }
    assert missing == set()


def test_prometheus_evaluates_every_rule_without_an_error(world: World) -> None:
    found = [rule for group in world.ask("rules")["groups"] for rule in group["rules"]]
    assert len(found) == sum(len(group["rules"]) for group in rule_groups(namespace=SYSTEM))

    def ill() -> list[tuple[str, str]]:
        rules = (rule for group in world.ask("rules")["groups"] for rule in group["rules"])
        return [(rule["name"], rule.get("lastError", "")) for rule in rules if rule["health"] != "ok"]

    eventually(lambda: not ill(), "every rule is evaluated", timeout_s=20, every_s=1.0)
    firing = [a["labels"]["alertname"] for a in world.ask("alerts")["alerts"] if a["state"] == "firing"]
    assert firing == []
