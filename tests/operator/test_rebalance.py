"""The transaction as a state machine: phases in order, deadlines, the way back, and a budget that no history breaks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator import rebalance
from rljob_operator.rebalance import Deadlines, Observation, PodView, Targets
from rljob_planner.api.status import MovePhase, MoveStatus
from rljob_planner.split import SamplerSplit, Split, TrainerSplit

DEADLINES = Deadlines(acknowledge_s=60, drain_s=60, gone_s=60, ready_s=60)


def split(samplers: int, trainers: int, in_flight: int = 64) -> Split:
    return Split(
        mode="async",
        samplers=SamplerSplit(replicas=samplers, gpus_per_replica=1, tensor_parallel=1, max_running=32),
        trainers=TrainerSplit(replicas=trainers, gpus_per_replica=8, dp=trainers * 8, tp=1, pp=1, ep=1),
        in_flight=in_flight,
    )


def pods(samplers: int, trainers: int, **changes: bool) -> tuple[PodView, ...]:
    return tuple(
        PodView(name=f"{role[0]}{i}", role=role, ready=True, created_s=float(i))
        for role, count in (("sampler", samplers), ("trainer", trainers))
        for i in range(count)
    )


def seen(now_s: float = 0.0, samplers: int = 8, trainers: int = 2, **changes: Any) -> Observation:
    base = Observation(
        now_s=now_s,
        pods=pods(samplers, trainers),
        published_generation=1,
        acknowledged_generation=1,
        running_by_pod={f"s{i}": 0.0 for i in range(samplers)},
        metrics_flow=True,
    )
    return replace(base, **changes)


def begin(before: Split, after: Split, observation: Observation | None = None) -> MoveStatus:
    return rebalance.start(
        before=before,
        after=after,
        reason="test",
        predicted_gain=0.1,
        observation=observation or seen(),
        deadlines=DEADLINES,
    )


def test_a_move_to_more_samplers_walks_through_all_phases() -> None:
    before, after = split(8, 2), split(16, 1)
    move = begin(before, after)
    assert move.phase is MovePhase.ANNOUNCE
    assert move.victims == ("t1",)
    assert rebalance.targets(before, move) == Targets(8, 2)
    assert rebalance.announced(before, move) == Targets(8, 1)

    step = rebalance.advance(move, seen(published_generation=2, acknowledged_generation=1), DEADLINES)
    assert step.move is not None
    assert step.move.phase is MovePhase.ANNOUNCE
    assert "acknowledge" in step.move.waiting_for
    acknowledged = seen(published_generation=2, acknowledged_generation=2)
    step = rebalance.advance(step.move, acknowledged, DEADLINES)
    assert step.move is not None
    assert step.move.phase is MovePhase.DRAIN
    step = rebalance.advance(step.move, acknowledged, DEADLINES)
    assert step.move is not None
    assert step.move.phase is MovePhase.SHRINK
    assert rebalance.targets(before, step.move) == Targets(8, 1)

    step = rebalance.advance(step.move, acknowledged, DEADLINES)
    assert step.move is not None
    assert step.move.phase is MovePhase.SHRINK, "the trainer is not gone yet"
    assert "t1" in step.move.waiting_for
    step = rebalance.advance(step.move, replace(acknowledged, pods=pods(8, 1)), DEADLINES)
    assert step.move is not None
    assert step.move.phase is MovePhase.GROW
    assert rebalance.targets(before, step.move) == Targets(16, 1)
    assert rebalance.announced(before, step.move) == Targets(8, 1)

    grown = replace(acknowledged, pods=pods(16, 1))
    step = rebalance.advance(step.move, grown, DEADLINES)
    assert step.move is not None
    assert step.move.phase is MovePhase.VERIFY
    assert step.move.generation == 3
    assert rebalance.announced(before, step.move) == Targets(16, 1)
    step = rebalance.advance(step.move, replace(grown, published_generation=3), DEADLINES)
    assert step.move is not None, "generation 3 is not acknowledged yet"
    step = rebalance.advance(step.move, replace(grown, published_generation=3, acknowledged_generation=3), DEADLINES)
    assert (step.move, step.outcome, step.split) == (None, "Committed", after)


def test_a_drain_waits_for_running_samples_and_never_reads_unknown_as_zero() -> None:
    before, after = split(16, 1), split(8, 2)
    move = begin(before, after, seen(samplers=16, trainers=1, running_by_pod={f"s{i}": float(i) for i in range(16)}))
    assert move.victims == tuple(sorted(f"s{i}" for i in range(8))), "those that run the least drain the soonest"
    move = move.model_copy(update={"phase": MovePhase.DRAIN})
    for running in ({}, {"s0": None}, {f"s{i}": 1.0 for i in range(8)}):
        step = rebalance.advance(move, seen(samplers=16, trainers=1, running_by_pod=running), DEADLINES)
        assert step.move is not None
        assert step.move.phase is MovePhase.DRAIN
        assert "samplers to finish" in step.move.waiting_for
    step = rebalance.advance(move, seen(now_s=61.0, samplers=16, trainers=1, running_by_pod={}), DEADLINES)
    assert step.move is not None
    assert step.move.phase is MovePhase.SHRINK
    assert step.drain_timed_out


def test_not_ready_pods_are_the_first_victims_and_a_stateful_set_loses_its_highest_ordinals() -> None:
    observation = seen(samplers=4, trainers=0)
    sick = replace(observation, pods=tuple(replace(p, ready=p.name != "s3") for p in observation.pods))
    assert rebalance.victims(split(4, 1), split(3, 1), sick) == ("s3",)
    ordinals = replace(observation, pods=tuple(PodView(f"t{i}", "trainer", ready=i != 0, ordinal=i) for i in range(3)))
    assert rebalance.victims(split(4, 3), split(4, 2), ordinals) == ("t2",)


@pytest.mark.parametrize("phase", [MovePhase.ANNOUNCE, MovePhase.SHRINK, MovePhase.GROW, MovePhase.VERIFY])
def test_a_missed_deadline_turns_the_move_round(phase: MovePhase) -> None:
    before, after = split(8, 2), split(16, 1)
    move = begin(before, after).model_copy(update={"phase": phase})
    stuck = {
        MovePhase.ANNOUNCE: seen(published_generation=2),
        MovePhase.SHRINK: seen(),
        MovePhase.GROW: seen(samplers=12, trainers=1),
        MovePhase.VERIFY: seen(samplers=16, trainers=1, acknowledged_generation=None),
    }[phase]
    step = rebalance.advance(move, replace(stuck, now_s=61.0), DEADLINES)
    back = step.move
    assert back is not None
    assert back.rolling_back
    assert back.to_split == before
    assert phase.value in back.reason
    held = rebalance.targets(back.from_split, back)
    assert held.samplers * 1 + held.trainers * 8 <= 24
    if phase in (MovePhase.GROW, MovePhase.VERIFY):
        assert back.phase is MovePhase.ANNOUNCE, "new samplers may run samples: they are drained like any others"
        assert len(back.victims) == len(stuck.of("sampler")) - 8


def test_a_move_back_waits_for_ever_rather_than_breaking_the_budget() -> None:
    before, after = split(8, 2), split(16, 1)
    move = begin(before, after).model_copy(update={"phase": MovePhase.SHRINK})
    back = rebalance.advance(move, seen(now_s=61.0), DEADLINES).move
    assert back is not None
    late = rebalance.advance(back, seen(now_s=9999.0), DEADLINES).move
    assert late is not None
    assert late.phase is MovePhase.SHRINK
    assert "overdue" in late.waiting_for
    assert rebalance.targets(before, late) == Targets(8, 1)


def test_a_move_out_of_a_split_that_breaks_the_spec_goes_on_without_an_acknowledgement() -> None:
    before, after = split(8, 2), split(4, 1)
    silent = seen(acknowledged_generation=None, running_by_pod={}, metrics_flow=False)
    move = begin(before, after, silent)
    for phase, samplers, trainers in (
        (MovePhase.DRAIN, 8, 2),
        (MovePhase.SHRINK, 8, 2),
        (MovePhase.GROW, 4, 1),
        (MovePhase.VERIFY, 4, 1),
    ):
        late = replace(silent, now_s=rebalance.epoch_s(move.deadline) + 1.0, pods=pods(samplers, trainers))
        found = rebalance.advance(move, late, DEADLINES, may_roll_back=False).move
        assert found is not None
        assert (found.phase, found.rolling_back) == (phase, False)
        move = found
    late = replace(silent, now_s=rebalance.epoch_s(move.deadline) + 1.0, pods=pods(4, 1), published_generation=9)
    assert rebalance.advance(move, late, DEADLINES, may_roll_back=False).outcome == "Committed"


def test_over_budget_samplers_drain_without_the_trainers_word_and_trainers_have_two_periods() -> None:
    quiet = seen(published_generation=2)
    cut = begin(split(8, 2), split(4, 2)).model_copy(update={"period_at_start": 10.0})
    assert rebalance.advance(cut, quiet, DEADLINES).move == cut.model_copy(
        update={"waiting_for": rebalance.advance(cut, quiet, DEADLINES).move.waiting_for}  # type: ignore[union-attr]
    )
    urgent = rebalance.advance(cut, quiet, DEADLINES, over_budget=True).move
    assert urgent is not None
    assert urgent.phase is MovePhase.DRAIN
    long = Deadlines(acknowledge_s=9999.0)
    fewer = begin(split(8, 2), split(8, 1)).model_copy(
        update={"period_at_start": 10.0, "deadline": rebalance.timestamp(9999.0)}
    )
    for now_s, phase in ((105.0, MovePhase.ANNOUNCE), (111.0, MovePhase.DRAIN)):
        found = rebalance.advance(fewer, replace(quiet, now_s=now_s), long, over_budget=True).move
        assert found is not None
        assert found.phase is phase
    assert rebalance.advance(fewer, replace(quiet, now_s=111.0), long).move.phase is MovePhase.ANNOUNCE  # type: ignore[union-attr]


def test_a_move_that_only_adds_has_nothing_to_announce_and_one_that_restarts_has() -> None:
    assert begin(split(4, 1), split(8, 2)).phase is MovePhase.SHRINK
    restart = rebalance.start(
        before=split(4, 1),
        after=split(8, 2),
        reason="test",
        predicted_gain=0.1,
        observation=seen(samplers=4, trainers=1),
        deadlines=DEADLINES,
        restart=True,
    )
    assert (restart.phase, restart.victims) == (MovePhase.ANNOUNCE, ("t0",))
    assert rebalance.wants_checkpoint(restart)
    samplers = rebalance.start(
        before=split(4, 1),
        after=split(8, 1),
        reason="test",
        predicted_gain=0.1,
        observation=seen(samplers=4, trainers=1),
        deadlines=DEADLINES,
        restart=True,
    )
    assert (samplers.restart, samplers.phase) == (False, MovePhase.SHRINK), "trainers that stay as many do not restart"


def test_a_move_that_is_held_stands_still_with_its_deadline() -> None:
    move = begin(split(8, 2), split(16, 1))
    held = rebalance.hold(rebalance.hold(move, 10.0, "x to go"), 20.0, "x to go")
    assert held.held_since == rebalance.timestamp(10.0)
    released = rebalance.release(held, 110.0)
    assert released.held_since is None
    assert rebalance.epoch_s(released.deadline) == rebalance.epoch_s(move.deadline) + 100.0
    assert rebalance.release(move, 110.0) == move


def test_the_others_have_to_be_ready_before_a_shrink_since_a_scale_down_takes_the_unready_first() -> None:
    move = begin(split(8, 2), split(4, 3)).model_copy(update={"phase": MovePhase.DRAIN})
    stays = next(name for name in (f"s{i}" for i in range(8)) if name not in move.victims)
    sick = replace(seen(), pods=tuple(replace(p, ready=p.name != stays) for p in seen().pods))
    found = rebalance.advance(move, sick, DEADLINES).move
    assert found is not None
    assert found.phase is MovePhase.DRAIN
    assert stays in found.waiting_for
    step = rebalance.advance(move, replace(sick, now_s=61.0), DEADLINES)
    assert step.move is not None
    assert step.move.phase is MovePhase.SHRINK
    assert not step.drain_timed_out, "nothing ran on those that go"


def test_a_move_without_a_way_back_settles_for_the_pods_that_found_a_place() -> None:
    move = begin(split(8, 2), split(16, 1)).model_copy(update={"phase": MovePhase.GROW})
    late = seen(now_s=61.0, samplers=13, trainers=1)
    assert rebalance.advance(move, late, DEADLINES, keeps=lambda _: True).move.rolling_back  # type: ignore[union-attr]
    step = rebalance.advance(move, late, DEADLINES, may_roll_back=False, keeps=lambda _: True)
    assert step.move is not None
    assert step.move.to_split == split(13, 1)
    assert "Settled for" in step.note
    assert rebalance.epoch_s(step.move.deadline) > late.now_s, "nothing is overdue that ends"
    assert rebalance.advance(step.move, late, DEADLINES, may_roll_back=False).move.phase is MovePhase.VERIFY  # type: ignore[union-attr]
    stuck = rebalance.advance(move, late, DEADLINES, may_roll_back=False).move
    assert stuck is not None
    assert "overdue" in stuck.waiting_for, "what is there breaks the spec"
    restart = move.model_copy(update={"restart": True, "to_split": split(8, 2)})
    half = rebalance.advance(
        restart, seen(now_s=61.0, samplers=8, trainers=1), DEADLINES, may_roll_back=False, keeps=lambda _: True
    ).move
    assert half is not None
    assert half.to_split == split(8, 2)


def test_a_shrink_waits_for_no_pods_that_a_minimum_holds() -> None:
    move = begin(split(8, 2), split(4, 3)).model_copy(update={"phase": MovePhase.SHRINK})
    held = seen(samplers=5, trainers=2)
    for goal, phase in ((None, MovePhase.SHRINK), (Targets(5, 2), MovePhase.GROW)):
        step = rebalance.advance(move, held, DEADLINES, goal=goal)
        assert step.move is not None
        assert step.move.phase is phase


def test_who_went_is_compared_with_who_should_have() -> None:
    move = begin(split(8, 2), split(6, 3), seen(running_by_pod={f"s{i}": float(i) for i in range(8)}))
    assert move.victims == ("s0", "s1")
    busy = seen(running_by_pod={f"s{i}": 0.0 if i < 2 else float(i) for i in range(8)}, published_generation=2)
    shrink = rebalance.advance(move.model_copy(update={"phase": MovePhase.DRAIN}), busy, DEADLINES).move
    assert shrink is not None
    assert {k.pod: k.running for k in shrink.kept}["s5"] == 5
    named = replace(busy, pods=tuple(p for p in busy.pods if p.name not in ("s0", "s1")))
    assert rebalance.advance(shrink, named, DEADLINES).aftermath is None
    wrong = replace(busy, pods=tuple(replace(p, created_s=-5.0) for p in busy.pods if p.name not in ("s0", "s5")))
    found = rebalance.advance(shrink, wrong, DEADLINES).aftermath
    assert found is not None
    assert (found.lost_samples, found.stayed) == (5, ("s1",))
    assert "s5 went although not named" in found.words()
    assert "s1 had been drained and stayed" in found.words()


@dataclass
class World:
    """A cluster in miniature: workloads with pods that gate, start, drain and end in their own time."""

    rng: random.Random
    budget: int
    pods: dict[str, PodView] = field(default_factory=dict)
    held: dict[str, bool] = field(default_factory=dict)
    names: int = 0

    def gpus(self) -> int:
        return sum((1 if self.pods[name].role == "sampler" else 8) for name, held in self.held.items() if held)

    def scale(self, wanted: Targets, victims: tuple[str, ...]) -> None:
        for role, replicas in (("sampler", wanted.samplers), ("trainer", wanted.trainers)):
            mine = [p for p in self.pods.values() if p.role == role and not p.terminating]
            for pod in sorted(mine, key=lambda p: (p.name not in victims, p.ready))[: max(0, len(mine) - replicas)]:
                self.pods[pod.name] = replace(pod, terminating=True)
            for _ in range(replicas - len(mine)):
                self.names += 1
                name = f"{role[0]}{self.names:04d}"
                self.pods[name] = PodView(name, role, ready=False, created_s=float(self.names))
                self.held[name] = False

    def lift(self, wanted: Targets) -> None:
        for name, held in self.held.items():
            width = 1 if self.pods[name].role == "sampler" else 8
            if not held and not self.pods[name].terminating and self.gpus() + width <= self.budget:
                self.held[name] = True

    def live(self, stuck: bool) -> None:
        for name, pod in list(self.pods.items()):
            if pod.terminating and (not self.held[name] or (not stuck and self.rng.random() < 0.4)):
                del self.pods[name], self.held[name]
            elif self.held.get(name) and not pod.ready and self.rng.random() < 0.4:
                self.pods[name] = replace(pod, ready=True)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    after=st.tuples(st.integers(1, 24), st.integers(1, 3)).filter(lambda s: s[0] + 8 * s[1] <= 24),
    faults=st.sets(st.sampled_from(["acknowledgement", "metrics", "stuck", "deleted"])),
)
def test_no_history_breaks_the_budget_and_every_move_ends_once_faults_do(
    seed: int, after: tuple[int, int], faults: set[str]
) -> None:
    rng = random.Random(seed)
    world = World(rng, budget=24)
    before = split(8, 2)
    world.scale(Targets(8, 2), ())
    for _ in range(50):
        world.lift(Targets(8, 2))
        world.live(stuck=False)
    published = acknowledged = 1
    move: MoveStatus | None = None
    in_force = before
    for tick in range(600):
        faulty = tick < 200
        now_s = float(tick)
        view = Observation(
            now_s=now_s,
            pods=tuple(world.pods.values()),
            published_generation=published,
            acknowledged_generation=None if faulty and "acknowledgement" in faults else acknowledged,
            running_by_pod={
                name: None if faulty and "metrics" in faults else float(rng.random() < 0.5) for name in world.pods
            },
            metrics_flow=not (faulty and "metrics" in faults),
        )
        if move is None and tick == 0:
            move = begin(in_force, split(*after), view)
        elif move is not None:
            if published < move.generation:
                published = move.generation
            elif rng.random() < 0.5:
                acknowledged = published
            step = rebalance.advance(move, view, DEADLINES)
            move = step.move
            in_force = step.split or in_force
        wanted = rebalance.targets(in_force, move)
        world.scale(wanted, () if move is None else move.victims)
        world.lift(wanted)
        assert world.gpus() <= 24
        world.live(stuck=faulty and "stuck" in faults)
        if faulty and "deleted" in faults and world.pods and rng.random() < 0.05:
            name = rng.choice(sorted(world.pods))
            world.pods[name] = replace(world.pods[name], terminating=True)
        assert world.gpus() <= 24
    assert move is None
    counts = Targets(
        sum(p.role == "sampler" for p in world.pods.values()), sum(p.role == "trainer" for p in world.pods.values())
    )
    assert counts == rebalance.targets(in_force, None)
