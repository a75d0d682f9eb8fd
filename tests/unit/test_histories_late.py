"""Requests that arrive late, told step by step: what random histories meet once in thousands.

Each story is one in which an operator without some part of the protocol exceeds the budget; that it does is asserted as well, so that
the story is known to be the right one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dev.bench.histories.decisions import instead_of_deciding
from dev.bench.histories.mutants import MUTANTS
from dev.bench.histories.rest import unrest
from dev.bench.histories.shape import Shape
from dev.bench.histories.world import World
from dev.virtual import jobs
from dev.virtual.cluster import NAMESPACE, Passage
from rljob_operator.cluster import ClusterError

Json = dict[str, Any]

SEED_OF_TWO_AND_TWO = 1
"""Of a world in which chance first chooses two samplers and two trainers."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("rljob_operator")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


class Story:
    """A job of two samplers and two trainers of one GPU each, on a budget of four, that runs."""

    def __init__(self, stack: ExitStack, mutant: str | None, *, least: int = 2, seed: int = 1) -> None:
        if mutant is not None:
            stack.enter_context(MUTANTS[mutant]())
        side = {"gpusPerReplica": 1, "minReplicas": least, "maxReplicas": 2}
        manifest = jobs.job("job", gpus=4, sampler=side, trainer={**side, "kind": "Deployment"})
        self.world = World(Shape(2, 4, (manifest,), seed=seed))
        self.world.chance.restless = False
        stack.enter_context(instead_of_deciding(self.world.chance))
        stack.callback(self.world.end)
        self.clock = self.world.clock
        self.late: Callable[[str, str], bool] = lambda verb, name: False
        self.late_s: float | None = 20.0
        """When what is late arrives, None for never."""
        self.world.kill_operators()
        self.world.weather = self.passage  # type: ignore[assignment]
        self.world.start_operator()
        self.until(lambda: unrest(self.world.cluster) is None)

    def passage(self, verb: str, plural: str, name: str) -> Passage:
        if plural == "pods" and self.late(verb, name):
            lost = ClusterError(0, "Unreachable", "no answer")
            return Passage(error=lost, done=self.late_s is not None, late_s=self.late_s)
        return Passage()

    def until(self, condition: Callable[[], bool]) -> None:
        assert self.clock.run_while(lambda: not condition(), until_s=self.clock.now_s + 600.0)

    def pods(self, role: str, *, gated: bool) -> list[str]:
        uid = next(iter(self.world.jobs()))["metadata"]["uid"]
        found = self.world.cluster.pods(uid, role)
        return [p["metadata"]["name"] for p in found if bool(p["spec"].get("schedulingGates")) == gated]

    def delete_stuck(self, name: str) -> None:
        store = self.world.cluster.store
        pod = store.get("pods", NAMESPACE, name)
        assert pod is not None
        self.world.cluster.machines.stick(pod["metadata"]["uid"])
        store.delete("pods", NAMESPACE, name)

    def rules(self) -> list[str]:
        return [violation.rule for violation in self.world.violations]


@pytest.mark.parametrize("mutant", [None, "lift-without-grant"])
def test_a_lift_that_arrives_late_finds_its_room_kept(mutant: str | None) -> None:
    with ExitStack() as stack:
        story = Story(stack, mutant)
        one, other = story.pods("sampler", gated=False)
        # A sampler sticks, so that its replacement waits; a second one vanishes, so that there is room for one of the two.
        story.delete_stuck(one)
        story.until(lambda: len(story.pods("sampler", gated=True)) == 1)
        waiting = story.pods("sampler", gated=True)
        story.late = lambda verb, name: verb == "merge" and name in waiting
        story.world.cluster.store.remove("pods", NAMESPACE, other)
        story.clock.run_for(3.0)
        # The lift is on its way. Now a trainer is to be replaced, and trainers go first.
        story.delete_stuck(story.pods("trainer", gated=False)[0])
        story.clock.run_for(60.0)
        assert story.rules() == ([] if mutant is None else ["budget"])


@pytest.mark.parametrize("mutant", [None, "gate-counts-only-bound"])
def test_a_pod_that_is_not_bound_yet_holds_its_gpus(mutant: str | None) -> None:
    with ExitStack() as stack:
        story = Story(stack, mutant)
        for node in ("node-0", "node-1"):
            story.world.cluster.machines.cordon(node)
        # Its replacement is lifted and has no node; the next one's place is the first one's.
        story.world.cluster.store.remove("pods", NAMESPACE, story.pods("sampler", gated=False)[0])
        story.clock.run_for(20.0)
        assert len(story.pods("sampler", gated=False)) == 2
        story.delete_stuck(story.pods("trainer", gated=False)[0])
        story.clock.run_for(20.0)
        assert story.rules() == ([] if mutant is None else ["budget"])


@pytest.mark.parametrize("mutant", [None, "grow-before-gone"])
def test_a_pod_that_stays_terminating_holds_its_gpus(mutant: str | None) -> None:
    with ExitStack() as stack:
        story = Story(stack, mutant)
        story.delete_stuck(story.pods("trainer", gated=False)[0])
        story.clock.run_for(30.0)
        assert story.rules() == ([] if mutant is None else ["budget"])
        if mutant is None:
            assert len(story.pods("trainer", gated=True)) == 1
            story.world.cluster.machines.unstick()
            story.until(lambda: unrest(story.world.cluster) is None)


@pytest.mark.parametrize("mutant", [None, "grants-ignored"])
def test_a_lift_that_was_granted_waits_once_the_budget_is_lowered(mutant: str | None) -> None:
    with ExitStack() as stack:
        story = Story(stack, mutant, least=1, seed=SEED_OF_TWO_AND_TWO)
        assert len(story.pods("sampler", gated=False)) == len(story.pods("trainer", gated=False)) == 2
        store = story.world.cluster.store
        store.remove("pods", NAMESPACE, story.pods("sampler", gated=False)[0])
        story.until(lambda: len(story.pods("sampler", gated=True)) == 1)
        waiting = story.pods("sampler", gated=True)
        # Its lift is granted and refused again and again.
        story.late_s, story.late = None, lambda verb, name: verb == "merge" and name in waiting
        story.until(lambda: bool(story.world.jobs()[0]["status"].get("grants")))
        story.world.cluster.edit_job("job", {"gpus": 3})
        story.clock.run_for(2.0)
        story.late = lambda verb, name: False
        story.clock.run_for(5.0)
        assert story.rules() == ([] if mutant is None else ["budget"])
        if mutant is None:
            story.until(lambda: unrest(story.world.cluster) is None)
            assert not story.rules()
