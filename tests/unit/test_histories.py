"""The budget holds at every instant of random histories, and all comes to rest; operators that are broken on purpose are caught."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from typer.testing import CliRunner

from dev.bench.histories.__main__ import main
from dev.bench.histories.decisions import instead_of_deciding
from dev.bench.histories.history import Step, drawn, run, settle, shortened
from dev.bench.histories.many import _one, seed_of
from dev.bench.histories.mutants import MUTANTS
from dev.bench.histories.rest import unrest
from dev.bench.histories.shape import Shape
from dev.bench.histories.world import ACTS, World

HISTORIES = 300
SHORT = 10
"""Steps of a history in this suite, about; the command line draws longer ones."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the operator logs of histories is of no use here."""
    logger = logging.getLogger("rljob_operator")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def test_some_hundreds_of_histories_keep_every_budget_and_come_to_rest() -> None:
    wrong = {}
    for seed in range(HISTORIES):
        verdict = run(Shape.drawn(seed), drawn(seed, SHORT))
        if verdict.kind is not None:
            wrong[seed] = verdict.violations or verdict.unrest
    assert not wrong


UNIT = st.integers(0, 999).map(lambda thousandths: thousandths / 1000)


class Histories(RuleBasedStateMachine):
    """The same acts in an order that hypothesis chooses, and shortens where one goes wrong."""

    world: World

    @initialize(seed=st.integers(0, 10_000))
    def begin(self, seed: int) -> None:
        self.stack = ExitStack()
        self.world = World(Shape.drawn(seed))
        self.stack.enter_context(instead_of_deciding(self.world.chance))
        self.world.clock.run_for(20.0)

    @rule(act=st.sampled_from(sorted(ACTS)), a=UNIT, b=UNIT, delay_s=st.sampled_from((0.0, 0.1, 2.0, 15.0)))
    def something_happens(self, act: str, a: float, b: float, delay_s: float) -> None:
        self.world.act(act, a, b)
        self.world.clock.run_for(delay_s)

    @invariant()
    def nothing_is_violated(self) -> None:
        assert not self.world.violations

    def teardown(self) -> None:
        try:
            if not self.world.violations:
                self.world.calm()
                assert settle(self.world) is None
                assert not self.world.violations
        finally:
            self.world.end()
            self.stack.close()


def test_no_order_of_acts_that_hypothesis_finds_breaks_a_budget_or_the_peace() -> None:
    checks = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=15,
            stateful_step_count=8,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=checks,
        ),
    )


@pytest.mark.parametrize("mutant", ["grow-before-gone", "shrink-to-nothing"])
def test_a_broken_operator_is_caught(mutant: str) -> None:
    rule_of = {"shrink-to-nothing": "minimum"}.get(mutant, "budget")
    for seed in range(40):
        verdict = run(Shape.drawn(seed), drawn(seed, SHORT), mutant)
        if verdict.kind == rule_of:
            return
    pytest.fail(f"the mutant {mutant} got through 40 histories")


def test_mutants_are_patched_in_for_their_history_alone() -> None:
    steps = drawn(0, SHORT)
    before = run(Shape.drawn(0), steps)
    for mutant in MUTANTS:
        run(Shape.drawn(0), steps, mutant)
    assert run(Shape.drawn(0), steps) == before


def test_a_history_is_the_same_every_time() -> None:
    assert drawn(7) == drawn(7)
    assert run(Shape.drawn(7), drawn(7, SHORT)) == run(Shape.drawn(7), drawn(7, SHORT))
    assert not {seed_of(1, i) for i in range(10)} & {seed_of(2, i) for i in range(10)}


def test_a_history_that_went_wrong_is_shortened_to_what_it_needs() -> None:
    seed = next(s for s in range(50) if run(Shape.drawn(s), drawn(s, SHORT), "grow-before-gone").kind == "budget")
    steps = (Step(3.0, "wait", 0.0, 0.0), *drawn(seed, SHORT))
    short = shortened(Shape.drawn(seed), steps, "budget", "grow-before-gone", tries=40)
    assert len(short) < len(steps)
    assert run(Shape.drawn(seed), short, "grow-before-gone").kind == "budget"


def test_unrest_says_what_is_missing() -> None:
    shape = Shape.drawn(3)
    world = World(shape)
    assert unrest(world.cluster) == "job-0: the spec is not observed"
    world.end()


def test_the_command_line_counts_and_fails_on_what_it_finds() -> None:
    import typer

    app = typer.Typer()
    app.command()(main)
    runner = CliRunner()
    fine = runner.invoke(app, ["--n", "3", "--processes", "1", "-o", "json"])
    report = json.loads(fine.stdout)
    assert (report["histories"], report["violations"], report["unconverged"]) == (3, 0, 0)
    assert fine.exit_code == 0
    caught = runner.invoke(app, ["--n", "6", "--processes", "1", "--mutant", "grow-before-gone", "-o", "json"])
    report = json.loads(caught.stdout)
    assert report["violations"] >= 1
    assert report["examples"][0]["replay"].endswith("--mutant grow-before-gone")
    assert caught.exit_code == 1
    assert runner.invoke(app, ["--mutant", "none"]).exit_code == 2


def test_what_runs_a_history_can_be_sent_to_a_fresh_process() -> None:
    # A function of a package's __main__ can't: spawned processes don't import that.
    assert _one.__module__ == "dev.bench.histories.many"
    assert pickle.loads(pickle.dumps(_one)) is _one
