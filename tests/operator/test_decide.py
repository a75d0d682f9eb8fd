"""Decisions on made-up situations: every code, the order of the checks, and calm."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_operator.decide import (
    agreement,
    decide,
    direction,
    recorded,
    staleness_check,
)
from rljob_operator.move_cost import taken_gpus
from rljob_operator.outlook import LOOK_STEPS, SUPPOSED_STEPS
from rljob_operator.readings import Reading, Trend
from rljob_operator.rebalance import timestamp, with_replicas
from rljob_operator.remembered import Remembered
from rljob_operator.situation import faults_in
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import DecisionCode, DecisionStatus, MoveHistory
from rljob_planner.calibrate import Calibration
from rljob_planner.evidence import Evidence
from rljob_planner.split import SamplerSplit, Split
from tests.operator.situations import (
    NOW_S,
    PERIOD_S,
    FakePlanner,
    by_trainers,
    cap_planner,
    gaining,
    noted,
    run,
    sampler,
    situation,
    spec,
    split,
    telemetry,
)


def test_a_split_that_gains_is_moved_to() -> None:
    decision = run()
    assert decision.code is DecisionCode.MOVE
    assert decision.split == split(40, 3)
    assert decision.predicted_gain == pytest.approx(0.2)
    assert decision.saving_s == pytest.approx(0.2 * PERIOD_S * 900)
    assert decision.cost_s == 60.0
    assert "saves 20.0% ± 0.4% of the period" in decision.message


def test_all_comparisons_share_lengths_seed_and_calibration() -> None:
    fake, calibration = gaining(), Calibration(sampler_factor=0.8)
    run(fake, calibration=calibration, seed=5)
    supposed = [each for each in fake.evaluations if each["steps"] == SUPPOSED_STEPS]
    asked = [*fake.plans, *(each for each in fake.evaluations if each["steps"] != SUPPOSED_STEPS)]
    assert len(asked) >= 3
    assert {each["seed"] for each in [*fake.plans, *supposed]} == {5}
    compared = [each["seed"] for each in fake.evaluations if each not in supposed]
    assert {seed: compared.count(seed) for seed in (6, 7, 8)} == {6: 2, 7: 2, 8: 2}
    assert all(each["calibration"] is calibration for each in asked)
    assert len({id(each["lengths"]) for each in asked}) == 1
    assert all(each["keep"] == split() and each["steps"] == 900 for each in fake.plans)


def test_lengths_are_planned_as_they_will_be_in_the_steps_after_the_move() -> None:
    fake = gaining()
    decision = run(fake, telemetry=telemetry(response_trend=Reading.of(Trend(0.0005, 0.0))))
    finished = telemetry().response_lengths.value
    assert finished is not None
    age_s = 0.02 * finished.second_moment / 1000.0 + 60.0
    move_s = 5.0 + finished.quantile(0.99) * 0.02 + 30.0 + 180.0 + 35.0
    expected = 1000.0 * math.exp(0.0005 * (age_s + move_s + 0.5 * LOOK_STEPS * PERIOD_S))
    assert decision.response_tokens_mean == pytest.approx(expected)
    assert fake.plans[0]["lengths"].mean() == pytest.approx(decision.response_tokens_mean, rel=0.01)


def test_at_the_optimum_nothing_is_done() -> None:
    decision = run(FakePlanner())
    assert decision.code is DecisionCode.AT_OPTIMUM
    assert decision.split is None


def test_a_small_gain_is_not_worth_a_move() -> None:
    little = FakePlanner(best=split(40, 3), period=by_trainers(t2=10.0, t3=9.6))
    decision = run(little, spec=spec(rebalance__minGain="5%"))
    assert decision.code is DecisionCode.GAIN_TOO_SMALL
    assert "minGain 5%" in decision.message
    assert run(little).code is DecisionCode.MOVE
    nothing = run(FakePlanner(best=split(40, 3), period=by_trainers(t2=10.0, t3=9.96)))
    assert nothing.code is DecisionCode.GAIN_TOO_SMALL
    assert "noise of the simulations" in nothing.message


class LuckyPlanner(FakePlanner):
    """Its first simulation flatters three trainers."""

    def _evaluate(self, spec: RLJobSpec, asked_split: Split, rooms: Any, **asked: Any) -> Any:
        found = super()._evaluate(spec, asked_split, rooms, **asked)
        lucky = asked["seed"] == 0 and asked_split.trainers.replicas == 3
        return SimpleNamespace(period_s=found.period_s * (0.95 if lucky else 1.0))


def test_a_stated_least_gain_holds_for_the_gain_of_all_simulations() -> None:
    lucky = LuckyPlanner(best=split(40, 3), period=by_trainers(t2=10.0, t3=9.6))
    decision = run(lucky, spec=spec(rebalance__minGain="6%"))
    assert decision.code is DecisionCode.GAIN_TOO_SMALL
    assert decision.predicted_gain is not None
    assert 0.04 < decision.predicted_gain < 0.06
    assert "less than minGain 6%" in decision.message
    assert run(lucky, spec=spec(rebalance__minGain="5%")).code is DecisionCode.MOVE


def test_a_gain_that_the_rest_of_the_run_does_not_pay() -> None:
    late = telemetry(policy_version=Reading.of(980))
    decision = run(telemetry=late)
    assert decision.code is DecisionCode.NOT_WORTH_COST
    assert decision.saving_s == pytest.approx(0.2 * PERIOD_S * 20)
    assert "20 steps that remain" in decision.message
    assert run(remaining_steps=0).code is DecisionCode.NOT_WORTH_COST


def test_the_cost_of_a_move_is_measured_else_stated_else_estimated() -> None:
    assert run().cost_s == 60.0
    assert run(moves=MoveHistory(), move_cost_prior_s=33.0).cost_s == 33.0
    estimated = run(moves=MoveHistory()).cost_s
    assert estimated is not None
    assert 30.0 < estimated < 300.0


def test_cooldown_after_a_move() -> None:
    ended = MoveHistory(cost_seconds=60.0, last_ended_at=timestamp(NOW_S - 600.0))
    stated = spec(rebalance__cooldown="15m")
    decision = run(moves=ended, spec=stated)
    assert decision.code is DecisionCode.COOLDOWN
    assert "in 300 s" in decision.message
    later = ended.model_copy(update={"last_ended_at": timestamp(NOW_S - 901.0)})
    assert run(moves=later, spec=stated).code is DecisionCode.MOVE


def committed(before: Split, after: Split, gain: float = 0.05) -> DecisionStatus:
    return noted(DecisionCode.MOVE_COMMITTED, after, before=before).model_copy(update={"predicted_gain": gain})


def test_a_move_in_the_same_direction_follows_as_soon_as_the_layout_is_measured() -> None:
    ended = MoveHistory(cost_seconds=60.0, last_ended_at=timestamp(NOW_S - 100.0))
    assert run(moves=ended, decisions=(committed(split(56, 1), split()),)).code is DecisionCode.MOVE


def test_the_way_back_waits_until_the_last_move_could_pay_for_itself() -> None:
    ended = MoveHistory(cost_seconds=60.0, last_ended_at=timestamp(NOW_S - 100.0))
    back = (committed(split(40, 3), split()),)
    decision = run(moves=ended, decisions=back)
    assert decision.code is DecisionCode.COOLDOWN
    assert "in 1100 s" in decision.message
    paid = ended.model_copy(update={"last_ended_at": timestamp(NOW_S - 1201.0)})
    assert run(moves=paid, decisions=back).code is DecisionCode.MOVE


def known_to(error: float, readings: float = 4.0) -> Calibration:
    """Factors with this standard error."""
    evidence = Evidence(readings, error * math.sqrt(readings), 0.0, 0.0, 0.0, NOW_S, NOW_S)
    return Calibration(observations=4, sampler_evidence=evidence, trainer_evidence=evidence)


def sensitive(best: float) -> FakePlanner:
    """A planner whose larger trainer side would gain, all of it hanging on how fast samplers are."""
    return FakePlanner(
        best=split(40, 3),
        period=by_trainers(t2=10.0, t3=best),
        slope=lambda s, calibration: calibration.supposed_samplers ** (-1.0 if s.trainers.replicas == 3 else 0.0),
    )


def test_a_gain_must_be_more_certain_than_uncertain() -> None:
    free = spec(rebalance__persistence=None)
    sure = run(sensitive(9.5), spec=free, calibration=known_to(0.01))
    assert sure.code is DecisionCode.MOVE
    unsure = run(sensitive(9.5), spec=free, calibration=known_to(0.05))
    assert unsure.code is DecisionCode.UNCERTAIN
    assert unsure.gain_error == pytest.approx(0.95 * 0.05, rel=0.3)
    assert "the chance that it loses time is" in unsure.message
    assert run(sensitive(7.0), spec=free, calibration=known_to(0.05)).code is DecisionCode.MOVE


def test_a_stated_gain_is_obeyed_whatever_its_uncertainty() -> None:
    stated = spec(rebalance__minGain="3%")
    assert run(sensitive(9.5), spec=stated, calibration=known_to(0.05)).code is DecisionCode.MOVE


def test_what_rests_on_little_waits_for_another_reading_where_that_is_worth_more_than_it_costs() -> None:
    free, long = spec(rebalance__persistence=None), telemetry(policy_version=Reading.of(0))
    many = {"spec": free, "telemetry": long, "remaining_steps": 20_000, "calibration": known_to(0.03, 1.0)}
    early = run(sensitive(9.5), **many)
    assert early.code is DecisionCode.UNCERTAIN
    assert "rests on little yet" in early.message
    assert run(sensitive(8.0), **many).code is DecisionCode.MOVE


def test_a_side_that_is_broken_is_named_and_nothing_moves() -> None:
    fake = gaining()
    decision = run(fake, faults=("sampler pod s-1 crashes: see its logs",), pods_ready=False)
    assert decision.code is DecisionCode.SIDE_BROKEN
    assert "s-1" in decision.message
    assert fake.plans == []


def test_a_broken_side_may_get_a_lower_cap_but_no_move() -> None:
    slow = ("sampler pod s-1 takes 50 ms a token",)
    assert run(faults=slow).code is DecisionCode.SIDE_BROKEN
    stale = telemetry(staleness_mean=Reading.of(5.0))
    assert run(faults=slow, telemetry=stale).code is DecisionCode.LOWER_CAP
    stalled = telemetry(steps_in_window=Reading.of(0), period_s=Reading.missing())
    assert run(faults=slow, telemetry=stalled).code is DecisionCode.SIDE_BROKEN


def test_a_sampler_far_slower_than_its_siblings_is_broken() -> None:
    pods = {f"s-{i}": sampler(iteration_s=Reading.of(0.02 if i else 0.05)) for i in range(4)}
    (words,) = faults_in(telemetry(samplers=pods, ready_samplers=frozenset(pods)), spec())
    assert "s-0 takes 50 ms a token, its siblings 20 ms" in words
    busy = pods | {"s-0": sampler(iteration_s=Reading.of(0.05), running_mean=Reading.of(90.0))}
    assert faults_in(telemetry(samplers=busy, ready_samplers=frozenset(pods)), spec()) == ()
    noisy = {f"s-{i}": sampler(iteration_s=Reading.of(0.02 * 1.15 ** (i - 4))) for i in range(8)} | {"s-8": pods["s-0"]}
    assert faults_in(telemetry(samplers=noisy, ready_samplers=frozenset(noisy)), spec()) == ()
    two = {pod: pods[pod] for pod in ("s-0", "s-1")}
    assert faults_in(telemetry(samplers=two, ready_samplers=frozenset(two)), spec()) == ()
    unknown = pods | {"s-0": sampler(iteration_s=Reading.missing())}
    assert faults_in(telemetry(samplers=unknown, ready_samplers=frozenset(pods)), spec()) == ()
    young = telemetry(samplers=pods, ready_samplers=frozenset(pods), since_s=200.0)
    assert faults_in(young, spec()) == (), "a window that holds the start says who started when"


def test_a_sampler_is_compared_with_those_on_the_same_gpus() -> None:
    pods = {f"s-{i}": sampler(iteration_s=Reading.of(0.05 if i > 3 else 0.02)) for i in range(5)}
    seen = telemetry(samplers=pods, ready_samplers=frozenset(pods))
    assert len(faults_in(seen, spec())) == 1
    fast = dict.fromkeys(("s-0", "s-1", "s-2", "s-3"), "H100")
    assert faults_in(seen, spec(), fast | {"s-4": "L40S"}) == ()
    assert len(faults_in(seen, spec(), fast | {"s-4": "H100"})) == 1


def test_a_trainer_that_stalls_before_a_full_queue_is_broken() -> None:
    stalled = telemetry(steps_in_window=Reading.of(0), queue_groups=Reading.of(40.0))
    (words,) = faults_in(stalled, spec())
    assert "40 groups wait for the trainer" in words
    assert faults_in(telemetry(steps_in_window=Reading.of(0), queue_groups=Reading.of(2.0)), spec()) == ()
    assert faults_in(telemetry(queue_groups=Reading.of(40.0)), spec()) == ()


def test_environments_are_planned_with_as_they_are_measured() -> None:
    agentic = spec(workload__environment={"secondsPerTurn": 10.0, "turns": 4})
    seen = telemetry(environment_turn_s=Reading.of(25.0))
    decision = run(spec=agentic, telemetry=seen)
    assert decision.inputs is not None
    assert decision.inputs.environment_seconds_per_turn == 25.0
    unknown = run(spec=agentic)
    assert unknown.inputs is not None
    assert unknown.inputs.environment_seconds_per_turn == 10.0


def test_the_planner_is_not_asked_again_while_nothing_has_moved() -> None:
    fake, remembered = gaining(), Remembered()
    first = run(fake, remembered=remembered, calibration=known_to(0.02))
    asked = len(fake.plans) + len(fake.evaluations)
    again = run(
        fake, remembered=remembered, calibration=replace(known_to(0.02), sampler_factor=1.005), now_s=NOW_S + 60.0
    )
    assert len(fake.plans) + len(fake.evaluations) == asked
    assert (first.code, again.code) == (DecisionCode.MOVE, DecisionCode.MOVE)
    run(fake, remembered=remembered, calibration=replace(known_to(0.02), sampler_factor=1.05))
    assert len(fake.plans) + len(fake.evaluations) > asked


def test_uncertainty_is_never_remembered() -> None:
    remembered, free = Remembered(), spec(rebalance__persistence=None)
    fake = sensitive(9.5)
    assert run(fake, spec=free, calibration=known_to(0.05), remembered=remembered).code is DecisionCode.UNCERTAIN
    asked = len(fake.evaluations)
    assert run(fake, spec=free, calibration=known_to(0.01), remembered=remembered).code is DecisionCode.MOVE
    assert len(fake.evaluations) == asked


def test_back_off_after_a_roll_back() -> None:
    decision = run(moves=MoveHistory(cost_seconds=60.0, failures=1, not_before=timestamp(NOW_S + 30.0)))
    assert decision.code is DecisionCode.BACK_OFF
    assert "in 30 s" in decision.message
    assert run(moves=MoveHistory(cost_seconds=60.0, not_before=timestamp(NOW_S - 1.0))).code is DecisionCode.MOVE


def test_a_wish_must_persist() -> None:
    calm = spec(rebalance__persistence=3)
    decisions: tuple[DecisionStatus, ...] = ()
    codes = []
    for tick in range(4):
        here = situation(spec=calm, decisions=decisions, now_s=NOW_S + 60.0 * tick)
        decision = decide(here, gaining().planner())
        decisions = recorded(decisions, decision, here, timestamp(here.now_s))
        codes.append(decision.code)
    assert codes == [
        DecisionCode.NOT_PERSISTED,
        DecisionCode.NOT_PERSISTED,
        DecisionCode.MOVE,
        DecisionCode.NOT_PERSISTED,
    ]
    assert decisions[0].count == 2
    assert len(decisions) == 3


def test_noise_that_turns_round_never_persists() -> None:
    calm = spec(rebalance__persistence=2)
    decisions: tuple[DecisionStatus, ...] = ()
    for tick in range(20):
        best = split(40, 3) if tick % 2 else split(56, 1)
        here = situation(spec=calm, decisions=decisions, now_s=NOW_S + 60.0 * tick)
        decision = decide(here, FakePlanner(best=best, period=by_trainers(t1=8.0, t2=10.0, t3=8.0)).planner())
        decisions = recorded(decisions, decision, here, timestamp(here.now_s))
        assert decision.code is DecisionCode.NOT_PERSISTED
    assert len(decisions) == 10


def test_agreement_counts_wishes_in_one_direction_from_one_split() -> None:
    up, down = split(40, 3), split(56, 1)
    wait, cool = DecisionCode.NOT_PERSISTED, DecisionCode.COOLDOWN
    assert agreement((noted(wait, up, count=2), noted(cool, split(32, 4))), split(), up) == 3
    assert agreement((noted(wait, up), noted(wait, down)), split(), up) == 0
    assert agreement((noted(wait, up), noted(DecisionCode.AT_OPTIMUM, None)), split(), up) == 0
    assert agreement((noted(wait, up, before=split(56, 1)),), split(), up) == 0
    assert agreement((), split(), up) == 0


def test_direction_is_that_of_the_trainers_or_else_of_the_samplers() -> None:
    assert direction(split(48, 2), split(40, 3)) == ("trainers", 1)
    assert direction(split(48, 2), split(56, 1)) == ("trainers", -1)
    assert direction(split(48, 2), split(47, 2)) == ("samplers", -1)


def test_a_far_optimum_is_reached_in_steps() -> None:
    fake = FakePlanner(best=split(16, 6), period=by_trainers(t2=10.0, t3=9.0, t4=8.0, t6=6.0))
    decision = run(fake)
    assert decision.code is DecisionCode.MOVE
    assert decision.split == split(40, 3)
    assert decision.predicted_gain == pytest.approx(0.1)
    wide = run(fake, spec=spec(rebalance__maxStepGPUs=16))
    assert wide.split == split(32, 4)
    assert taken_gpus(split(), split(32, 4)) == 16


def test_a_limit_below_a_replica_that_the_planner_chose_counts_as_one() -> None:
    wide = SamplerSplit(replicas=3, gpus_per_replica=16, tensor_parallel=16, max_running=64)
    before = split().model_copy(update={"samplers": wide})
    after = with_replicas(before, 2, 4)
    fake = FakePlanner(best=after, period=by_trainers(t2=10.0, t4=8.0))
    assert run(fake, split=before, spec=spec(rebalance__maxStepGPUs=8)).split == after


def test_fewer_samplers_alone_are_limited_too() -> None:
    fake = FakePlanner(best=split(20, 2), period=lambda s: 5.0 + s.samplers.replicas / 10.0)
    assert run(fake).split == split(40, 2)


def test_a_step_that_gains_nothing_by_itself_is_not_made() -> None:
    decision = run(FakePlanner(best=split(16, 6), period=by_trainers(t2=10.0, t3=11.0, t6=6.0)))
    assert decision.code is DecisionCode.GAIN_TOO_SMALL
    assert "maxStepGPUs" in decision.message


def test_what_the_cap_alone_brings_is_no_reason_to_move() -> None:
    fake = FakePlanner(
        best=split(40, 3, 1500),
        period=lambda s: 8.0 if s.in_flight > 1400 else 10.0,
        caps=lambda trainers: 1500,
    )
    decision = run(fake)
    assert decision.code is DecisionCode.RAISE_CAP
    assert decision.in_flight == 1500


def test_while_a_move_waits_the_split_in_force_gets_the_cap_that_suits_it() -> None:
    fake = FakePlanner(
        best=split(40, 3),
        period=lambda s: 8.0 if s.trainers.replicas == 3 else (9.5 if s.in_flight == 1500 else 10.0),
        caps=lambda trainers: 1500,
    )
    waiting = MoveHistory(cost_seconds=60.0, failures=1, not_before=timestamp(NOW_S + 30.0))
    decision = run(fake, moves=waiting)
    assert (decision.code, decision.in_flight) == (DecisionCode.RAISE_CAP, 1500)
    assert run(fake, moves=waiting, split=split(in_flight=1500)).code is DecisionCode.BACK_OFF
    assert run(fake).code is DecisionCode.MOVE


@pytest.mark.parametrize(("mode", "code"), [("Recommend", "RecommendOnly"), ("Initial", "InitialOnly")])
def test_modes_that_do_not_act_say_the_whole_wish(mode: str, code: str) -> None:
    fake = FakePlanner(best=split(16, 6), period=by_trainers(t2=10.0, t6=6.0))
    decision = run(fake, spec=spec(rebalance__mode=mode, rebalance__persistence=5))
    assert decision.code is DecisionCode(code)
    assert decision.split == split(16, 6)
    assert decision.predicted_gain == pytest.approx(0.4)
    assert run(FakePlanner(), spec=spec(rebalance__mode=mode)).code is DecisionCode.AT_OPTIMUM


def test_fixed_trainers_are_never_moved() -> None:
    decision = run(spec=spec(trainer__resize="fixed"))
    assert decision.code is DecisionCode.TRAINER_FIXED
    assert decision.split == split(40, 3)
    assert "elastic" in decision.message


def test_fixed_trainers_leave_the_samplers_free() -> None:
    fake = FakePlanner(best=split(48, 2), period=lambda s: 100.0 / s.samplers.replicas)
    decision = run(fake, spec=spec(trainer__resize="fixed"), split=split(40, 2))
    assert decision.code is DecisionCode.MOVE
    assert decision.split == split(48, 2)
    assert {each["trainer_replicas"] for each in fake.plans} == {2}


def test_nothing_placeable_leaves_the_split() -> None:
    decision = run(FakePlanner(error="no node has 8 free GPUs"))
    assert decision.code is DecisionCode.NOTHING_PLACEABLE
    assert "no node has 8 free GPUs" in decision.message


def test_pods_that_are_not_ready_stop_everything() -> None:
    fake = gaining()
    decision = run(
        fake, pods_ready=False, not_ready="trainer t-1 crashes", telemetry=telemetry(staleness_mean=Reading.of(9.0))
    )
    assert decision.code is DecisionCode.NOT_READY
    assert "t-1 crashes" in decision.message
    assert fake.plans == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps_in_window": Reading.of(2), "since_s": 25.0}, "3 are needed"),
        ({"steps_in_window": Reading.of(1), "since_s": 3000.0}, "see the trainer's log"),
        ({"window_s": 0.0, "since_s": 5.0, "period_s": Reading.missing()}, "too short a while"),
        ({"since_s": None, "window_s": 0.0}, "too short a while"),
        ({"since_s": 35.0}, "95 % of the responses"),
    ],
)
def test_a_young_layout_settles_first(changes: dict[str, Any], words: str) -> None:
    decision = run(telemetry=telemetry(**changes))
    assert decision.code is DecisionCode.SETTLING
    assert words in decision.message


def test_a_move_under_way_is_left_alone() -> None:
    assert run(in_move=True).code is DecisionCode.SETTLING


def test_staleness_over_its_limit_lowers_the_cap_before_anything_else() -> None:
    fake = gaining()
    decision = run(fake, telemetry=telemetry(staleness_mean=Reading.of(5.0)))
    assert decision.code is DecisionCode.LOWER_CAP
    assert decision.in_flight == 800
    assert fake.plans == []
    assert run(telemetry=telemetry(staleness_mean=Reading.of(50.0))).in_flight == 496


def test_a_mean_at_its_limit_is_within_noise() -> None:
    assert run(telemetry=telemetry(staleness_mean=Reading.of(4.05))).code is DecisionCode.MOVE
    few, many = (Reading.of(steps) for steps in (8, 200))
    assert run(telemetry=telemetry(staleness_mean=Reading.of(4.3), steps_in_window=few)).code is DecisionCode.MOVE
    over = telemetry(staleness_mean=Reading.of(4.3), steps_in_window=many)
    assert run(telemetry=over).code is DecisionCode.LOWER_CAP


def test_the_cap_is_not_lowered_again_before_it_has_shown() -> None:
    over = telemetry(staleness_mean=Reading.of(5.0))
    lately = (noted(DecisionCode.LOWER_CAP, None, ago_s=60.0),)
    assert run(telemetry=over, decisions=lately).code is DecisionCode.SETTLING
    long_ago = (noted(DecisionCode.LOWER_CAP, None, ago_s=71.0),)
    assert run(telemetry=over, decisions=long_ago).code is DecisionCode.LOWER_CAP


def test_a_cap_of_one_group_cannot_go_lower_so_the_split_is_looked_at() -> None:
    decision = run(split=split(in_flight=8), telemetry=telemetry(staleness_mean=Reading.of(5.0)))
    assert decision.code is DecisionCode.MOVE


def test_modes_that_do_not_act_leave_the_cap_to_the_user() -> None:
    over = telemetry(staleness_mean=Reading.of(5.0))
    assert run(spec=spec(rebalance__mode="Recommend"), telemetry=over).code is DecisionCode.RECOMMEND_ONLY


def test_what_a_bound_promises() -> None:
    measured = telemetry(staleness_mean=Reading.of(3.0), staleness_max=Reading.of(6.0))
    for bound in ("none", "admission", "hold"):
        check = staleness_check(spec(staleness__bound=bound), measured)
        assert (check.statistic, check.within) == ("mean", True)
    check = staleness_check(spec(staleness__bound="drop"), measured)
    assert (check.statistic, check.within, check.clearly_over) == ("max", False, True)
    unknown = staleness_check(spec(), telemetry(staleness_mean=Reading.missing()))
    assert (unknown.within, unknown.clearly_over) == (None, False)


def test_the_cap_follows_the_planner_outside_a_deadband() -> None:
    raised = run(cap_planner(1500))
    assert (raised.code, raised.in_flight) == (DecisionCode.RAISE_CAP, 1500)
    lowered = run(cap_planner(800, PERIOD_S), spec=spec(staleness__bound="none"))
    assert (lowered.code, lowered.in_flight) == (DecisionCode.LOWER_CAP, 800)
    assert run(cap_planner(800, PERIOD_S)).code is DecisionCode.AT_OPTIMUM
    assert run(cap_planner(800, 9.5)).code is DecisionCode.LOWER_CAP
    assert run(cap_planner(1090)).code is DecisionCode.AT_OPTIMUM
    assert run(cap_planner(1500, 9.95)).code is DecisionCode.AT_OPTIMUM
    assert run(cap_planner(800, 10.5)).code is DecisionCode.AT_OPTIMUM


def test_the_cap_is_raised_no_further_than_measured_staleness_allows() -> None:
    fake = FakePlanner(best=split(in_flight=3000), period=lambda s: 10_000.0 / s.in_flight)
    decision = run(fake, telemetry=telemetry(staleness_mean=Reading.of(3.0)))
    assert decision.code is DecisionCode.RAISE_CAP
    assert decision.in_flight == 1328
    full = run(fake, telemetry=telemetry(staleness_mean=Reading.of(4.0)))
    assert full.code is DecisionCode.AT_OPTIMUM


def test_a_cap_that_was_changed_lately_is_left() -> None:
    lately = (noted(DecisionCode.RAISE_CAP, None, ago_s=20.0),)
    assert run(cap_planner(1500), decisions=lately).code is DecisionCode.AT_OPTIMUM


def test_cost_counts_gpus_if_it_is_the_objective() -> None:
    fake = FakePlanner(best=split(40, 2), period=lambda s: PERIOD_S)
    decision = run(fake, spec=spec(objective="cost"))
    assert decision.code is DecisionCode.MOVE
    assert decision.predicted_gain == pytest.approx(1 - 56 / 64)


def test_the_record_says_what_it_rested_on() -> None:
    here = situation()
    decision = decide(here, gaining().planner())
    (note,) = recorded((), decision, here, timestamp(NOW_S))
    assert note.code is DecisionCode.MOVE
    assert (note.from_split, note.to_split) == (split(), split(40, 3))
    assert note.predicted_gain == pytest.approx(0.2)
    assert note.period_seconds == PERIOD_S
    assert note.response_tokens_mean == pytest.approx(1000.0)
    assert note.cost_seconds == 60.0
