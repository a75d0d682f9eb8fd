"""The operator is killed at request after request of a move, and started again: the move ends as if nothing had happened.

Random histories kill at random; here every phase of the move is met. What was on its way when the process died arrives, or does not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pytest

from dev.bench.histories.framework import Framework
from dev.bench.histories.rest import unrest
from dev.virtual.cluster import Passage, VirtualCluster
from dev.virtual.jobs import job
from dev.virtual.ledger import Ledger
from dev.virtual.machines import Pace
from dev.virtual.operator import VirtualOperator
from rljob_operator import deciding
from rljob_operator.rebalance import with_replicas
from rljob_operator.situation import Decision, Planner, Situation
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import DecisionCode
from rljob_planner.outcome import Plan
from rljob_planner.placement import Room
from rljob_planner.search import plan
from rljob_planner.split import Split

TARGET = (6, 1)
"""Samplers and trainers that the move leads to, from 4 and 2 with the same 8 GPUs."""


def first_plan(*args: object, **options: object) -> Plan:
    found = plan(*args, **options)  # type: ignore[arg-type]
    return replace(found, split=with_replicas(found.split, 4, 2))


def decide(situation: Situation, _planner: Planner) -> Decision:
    split: Split = situation.split
    if (split.samplers.replicas, split.trainers.replicas) == TARGET or not situation.pods_ready:
        return Decision(DecisionCode.AT_OPTIMUM, "all is well")
    return Decision(DecisionCode.MOVE, "told to", split=with_replicas(split, *TARGET), predicted_gain=0.1)


class Story:
    """A job that starts and moves once, while its operator is killed at one request."""

    def __init__(self, planned: Plan, kill_at: int | None, *, arrives: bool = True) -> None:
        rng = random.Random(1)
        pace = Pace(start_s=lambda _pod: 2.0, stop_s=lambda _pod: 4.0)
        self.cluster = VirtualCluster(pace=pace)
        self.cluster.add_nodes(2, 4)
        self.ledger = Ledger(self.cluster)
        self.framework = Framework(self.cluster, rng)
        self.framework.noise = 0.0
        self.planned = planned
        self.requests = 0
        self.kill_at = kill_at
        self.arrives = arrives
        manifest = job(gpus=8, trainer={"gpusPerReplica": 2}, accelerator="H100-SXM", rebalance={"interval": "5s"})
        self.uid = self.cluster.create_job(manifest)
        self.start()

    def start(self) -> None:
        planner = Planner(plan=lambda *_args, **_options: self.planned)
        self.operator = VirtualOperator(
            self.cluster, observe=self.framework.observe, planner=planner, passages=self.passage
        ).start()
        self.ledger.audit(self.operator.connection)

    def passage(self, verb: str, plural: str, name: str) -> Passage:
        del verb, plural, name
        self.requests += 1
        if self.requests == self.kill_at:
            self.cluster.clock.after(0.0005, self.kill)
        return Passage(survives=self.arrives)

    def kill(self) -> None:
        self.operator.kill()
        self.cluster.clock.after(3.0, self.start)

    @property
    def split(self) -> tuple[int, int] | None:
        found = (self.cluster.job("run") or {}).get("status", {}).get("split")
        return None if found is None else (found["samplers"]["replicas"], found["trainers"]["replicas"])

    def tell(self) -> None:
        """Lets the story happen: until the move has been made and all is at rest."""
        clock = self.cluster.clock
        until_s = clock.now_s + 1500.0
        while clock.now_s < until_s and (self.split != TARGET or unrest(self.cluster) is not None):
            clock.run_for(5.0)
        self.operator.kill()


@pytest.fixture(scope="module")
def planned() -> Plan:
    spec = RLJobSpec.model_validate(job(gpus=8, trainer={"gpusPerReplica": 2}, accelerator="H100-SXM")["spec"])
    return first_plan(spec, [Room("node-0", 4), Room("node-1", 4)], detail=False)


@pytest.fixture(autouse=True)
def told_to_move() -> Iterator[None]:
    with (
        mock.patch.object(deciding, "decide", decide),
        mock.patch.object(deciding, "calibrated", lambda previous, *_args, **_kwargs: previous),
    ):
        yield


@pytest.mark.parametrize("arrives", [True, False], ids=["what-was-sent-arrives", "what-was-sent-is-lost"])
def test_a_move_survives_a_kill_at_request_after_request(planned: Plan, arrives: bool) -> None:
    whole = Story(planned, None)
    whole.tell()
    assert whole.split == TARGET
    assert whole.ledger.most_held[whole.uid] == 8
    wrong = {}
    for kill_at in range(1 if arrives else 2, whole.requests, 3):
        story = Story(planned, kill_at, arrives=arrives)
        story.tell()
        if story.split != TARGET or story.ledger.violations or unrest(story.cluster) or story.operator.failures:
            wrong[kill_at] = (story.split, story.ledger.violations, unrest(story.cluster), story.operator.failures[:1])
    assert not wrong
