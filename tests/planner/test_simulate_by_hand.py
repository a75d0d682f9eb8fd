"""Scenarios small enough to work out on paper; the comments tell the story in seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rljob_planner.lengths import LengthDistribution
from rljob_planner.scenario import Scenario
from rljob_planner.simulate import (
    DecodeCost,
    SimulationInput,
    SimulationResult,
    TrainCost,
    simulate,
    simulate_scenario,
)


def run(**sections: Any) -> SimulationResult:
    """Simulate: by default one slot, a token a second, groups of one sample, batches of one group."""
    samplers = {"replicas": 1, "maxRunning": 1, "kvTokens": 1000, "decode": {"perStep": 1.0}}
    samplers.update(sections.pop("samplers", {}))
    workload = {"promptsPerStep": 1, "samplesPerPrompt": 1, "responseTokens": {"values": [1]}}
    workload.update(sections.pop("workload", {}))
    document = {"samplers": samplers, "workload": workload, "trainer": {"perStep": 1.0}, "warmup": 0, **sections}
    return simulate_scenario(Scenario.model_validate(document))


def test_sync_is_sampling_training_and_weight_sync() -> None:
    # 4 samples of 3 tokens at once: 3 s; training 2 s; weights 0.5 s.
    result = run(
        mode="sync",
        samplers={"maxRunning": 4},
        workload={"promptsPerStep": 2, "samplesPerPrompt": 2, "responseTokens": {"values": [3]}},
        trainer={"perStep": 2.0},
        weightSync=0.5,
        steps=5,
    )
    assert result.periods_s.tolist() == [5.5] * 5
    assert result.staleness.histogram == (20,)
    assert result.rho == pytest.approx(2 / 3)
    assert result.sampler_utilization == pytest.approx(3 / 5.5)
    assert result.trainer_utilization == pytest.approx(2 / 5.5)
    assert result.mean_running == pytest.approx(4 * 3 / 5.5)
    assert result.mean_in_flight == pytest.approx(4 * 3 / 5.5)
    assert result.queue_groups.max == 0  # the batch is taken at the instant in which it completes
    assert result.tokens_per_second == pytest.approx(12 / 5.5)
    assert result.trained_mean_length == 3
    assert (result.dropped_groups, result.wasted_tokens) == (0, 0)


def test_an_iteration_grows_with_running_samples_and_resident_tokens() -> None:
    # 2 running: 1 + 0.1·2 + 0.01·Σ, Σ = 20, 22, 24, 26: 1.40 + 1.42 + 1.44 + 1.46 = 5.72; training 0.05·2·(10 + 4) = 1.4.
    result = run(
        mode="sync",
        samplers={"maxRunning": 2, "decode": {"perStep": 1.0, "perSample": 0.1, "perContextToken": 0.01}},
        workload={"samplesPerPrompt": 2, "promptTokens": 10, "responseTokens": {"values": [4]}},
        trainer={"perStep": 0.0, "perToken": 0.05},
        steps=3,
    )
    assert result.period.mean == pytest.approx(5.72 + 1.4)
    # Σ over the iterations, weighted by their seconds.
    resident = (20 * 1.40 + 22 * 1.42 + 24 * 1.44 + 26 * 1.46) / (5.72 + 1.4)
    assert result.kv_utilization == pytest.approx(resident / 1000, rel=2e-3)


@pytest.mark.parametrize(("training", "first", "period"), [(2.0, 6.5, 3.5), (4.0, 7.5, 4.5)])
def test_one_step_off_trains_one_batch_while_the_next_is_sampled(training: float, first: float, period: float) -> None:
    # Sampling takes 3 s, weights 0.5 s. The first step waits for its batch, which is of the version that it is trained with.
    result = run(
        mode="one-step-off",
        workload={"responseTokens": {"values": [3]}},
        trainer={"perStep": training},
        weightSync=0.5,
        steps=4,
    )
    assert result.periods_s == pytest.approx([first] + [period] * 3)
    assert result.staleness.histogram == (1, 3)
    assert result.rho == pytest.approx(training / 3)


def test_samples_go_to_the_replica_with_the_fewest_running() -> None:
    # 3 samples of 2 tokens: replica 0 gets two (2 s an iteration), replica 1 one (1 s). Training 1 s.
    result = run(
        mode="sync",
        samplers={"replicas": 2, "maxRunning": 3, "decode": {"perStep": 0.0, "perSample": 1.0}},
        workload={"samplesPerPrompt": 3, "responseTokens": {"values": [2]}},
        steps=3,
    )
    assert result.periods_s.tolist() == [5.0] * 3
    assert result.sampler_utilization == pytest.approx((4 + 2) / (2 * 5))
    assert result.mean_running == pytest.approx((2 * 4 + 1 * 2) / 5)


def test_rollout_bound() -> None:
    # A group every 2 s, batches of two: trained 4–5, 8–9, …; a batch holds one sample of the version before and one of now.
    result = run(workload={"promptsPerStep": 2, "responseTokens": {"values": [2]}}, steps=4)
    assert result.periods_s.tolist() == [5, 4, 4, 4]
    # Started at 0 and 2 (version 0) for step 0, at 4 (0) and 6 (1) for step 1, at 8 (1) and 10 (2) for step 2, …
    assert result.staleness.histogram == (2 + 3, 3)
    assert result.rho == pytest.approx(0.25)
    assert result.trainer_utilization == pytest.approx(4 / 17)
    assert result.sampler_utilization == 1


def test_a_queue_at_capacity_pushes_its_oldest_group_out() -> None:
    # A group a second, steps of 2.5 s from 1 on. Taken: the groups done at 1, 3, 5, 8; pushed out: those of 2, 4, 6, 7, 9.
    result = run(trainer={"perStep": 2.5}, queue={"capacity": 1}, steps=4)
    assert result.periods_s.tolist() == [3.5, 2.5, 2.5, 2.5]
    assert result.dropped_groups == 5
    assert result.wasted_tokens == 5
    assert result.staleness.histogram == (1, 3)
    assert result.queue_groups.max == 1


def test_a_queue_at_capacity_blocks() -> None:
    # The second group is done at 2 and fills the queue; from then on one starts when a step takes the one that waits.
    result = run(trainer={"perStep": 2.5}, queue={"capacity": 1, "overflow": "block"}, steps=4)
    assert result.periods_s.tolist() == [3.5, 2.5, 2.5, 2.5]
    assert result.dropped_groups == 0
    assert result.staleness.histogram == (1, 3)
    assert result.sampler_utilization == pytest.approx((2 + 3 * 1) / 11)


def test_drop_discards_groups_over_the_maximum_when_they_are_taken() -> None:
    # Groups start at 0, 1, 2, …; steps at 1, 3.5, 6. At 6 (version 2) those started at 2 and 3 (version 0) are too old.
    result = run(trainer={"perStep": 2.5}, staleness={"bound": "drop", "max": 1}, steps=3)
    assert result.staleness.histogram == (1, 2)
    assert result.dropped_groups == 2
    assert result.staleness.max == 1


def test_admission_lets_in_what_the_maximum_allows() -> None:
    # max 0: two groups, 2 s; trained in 3 s; only then the next two.
    kwargs: dict[str, Any] = {
        "samplers": {"maxRunning": 8},
        "workload": {"promptsPerStep": 2, "responseTokens": {"values": [2]}},
        "trainer": {"perStep": 3.0},
        "steps": 5,
    }
    none = run(**kwargs, staleness={"bound": "admission", "max": 0})
    assert none.periods_s.tolist() == [5.0] * 5
    assert none.staleness.histogram == (10,)
    # max 1: four groups at once; their second half waits for the first to be trained, and so on.
    one = run(**kwargs, staleness={"bound": "admission", "max": 1})
    assert one.periods_s.tolist() == [5, 3, 3, 3, 3]
    assert one.staleness.histogram == (2, 8)
    assert one.mean_running == pytest.approx((4 * 2 + 3 * 2 * 2 + 0) / 17, abs=0.01 + 4 / 17)


def test_hold_delays_publication_for_the_oldest_unfinished_sample() -> None:
    # Two samples of 5 s at a time, steps of 1 s, at most 1 version. The two that start at 5 (version 0) let version 1 be
    # published at 6 but keep version 2 until they are done at 10; and so on every 5 s. What waits ages by 2 and 3 versions.
    result = run(
        samplers={"maxRunning": 2},
        workload={"responseTokens": {"values": [5]}},
        staleness={"bound": "hold", "max": 1},
        steps=6,
    )
    assert result.periods_s.tolist() == [6, 4, 1, 4, 1, 4]
    assert result.staleness.histogram == (1, 1, 2, 2)
    assert result.trainer_utilization == pytest.approx(6 / 20)


def test_kv_overflow_preempts_the_newest_which_keeps_its_tokens() -> None:
    # Prompt 2, response 6, room for 10. Two start at 0 and fill the cache at 3; the newer leaves with 3 tokens, the older is
    # done at 6. It comes back with the next sample, which is preempted at 7 with 1 token; done at 9. That one comes back with
    # a fourth, preempted at 11 with 2 tokens; done at 14.
    result = run(
        samplers={"maxRunning": 2, "kvTokens": 10},
        workload={"promptTokens": 2, "responseTokens": {"values": [6]}},
        trainer={"perStep": 0.0},
        steps=3,
    )
    assert result.periods_s.tolist() == [6, 3, 5]
    assert result.preemptions == 3
    assert result.mean_running == pytest.approx((2 * 3 + 3 + 2 * 1 + 2 + 2 * 2 + 3) / 14)


def test_every_version_pauses_a_replica_at_the_end_of_its_iteration() -> None:
    # A sample of 3 s; trained 0.5 s; the version of 3.5 is loaded from 4 to 4.25, in which the trainer goes on.
    result = run(workload={"responseTokens": {"values": [3]}}, trainer={"perStep": 0.5}, weightSync=0.25, steps=4)
    assert result.periods_s.tolist() == [3.5, 3.25, 3.25, 3.25]
    assert result.sampler_utilization == 1  # it holds a sample while it pauses


def test_a_group_is_admitted_when_all_its_samples_fit_under_the_cap() -> None:
    # 4 slots and a cap of 5, groups of 2: never more than two groups.
    result = run(
        samplers={"maxRunning": 8},
        workload={"samplesPerPrompt": 2, "responseTokens": {"values": [4]}},
        trainer={"perStep": 0.0},
        inFlight=5,
        steps=10,
    )
    assert result.mean_in_flight == 4
    assert result.mean_running == 4


def test_what_waits_for_a_slot_is_in_flight_but_not_running() -> None:
    result = run(
        samplers={"maxRunning": 2},
        workload={"samplesPerPrompt": 2, "responseTokens": {"values": [4]}},
        trainer={"perStep": 0.0},
        inFlight=6,
        steps=10,
    )
    assert result.mean_in_flight == 6
    assert result.mean_running == 2


def agentic(**changes: Any) -> SimulationResult:
    """One slot, a token a second, 4 tokens in two turns, 3 s in the environment between them, a trainer that takes no time."""
    one = np.ones(2)
    job = SimulationInput(
        mode="async", replicas=1, max_running=1, kv_tokens=1000, decode=DecodeCost(one, 0 * one, 0 * one, 0.0, 0.0),
        train=TrainCost(0.0), weight_sync_s=0.0, prompts_per_step=1, samples_per_prompt=1, prompt_tokens=0,
        lengths=LengthDistribution.from_values([4]), warmup=0, turns=2, turn_s=3.0,
    )  # fmt: skip
    return simulate(replace(job, **changes))


def test_an_environment_holds_no_slot() -> None:
    # Three groups take the slot in turn, at 0, 2 and 4, and come back at 5, 7 and 9: the first waits until 6, then they end at
    # 8, 10 and 12. The next three start at 12, 14 and 16.
    result = agentic(steps=6)
    assert result.periods_s.tolist() == [8, 2, 2, 8, 2, 2]
    assert result.staleness.histogram == (2, 2, 2)
    assert result.environment_samples == pytest.approx(3 * 3 / 12)
    assert result.sandbox_wait_s == 0
    assert result.mean_running == 1
    assert result.mean_in_flight == pytest.approx((2 + 2 * 2 + 4 * 3 + 2 * 2 + 2) / 12)


def test_turns_wait_for_a_sandbox_and_no_group_comes_meanwhile() -> None:
    # The second sample (2-4) asks for the sandbox at 4 and gets it at 5, when the first one leaves it for the free slot: 5-7.
    # Then a group a cycle of 4 s: it starts as one ends (7, 11, 15), the other is in the environment meanwhile (9-12, 13-16).
    result = agentic(sandboxes=1, steps=4)
    assert result.periods_s.tolist() == [7, 4, 4, 4]
    assert result.sandbox_wait_s == pytest.approx(1 / 5)
    assert result.environment_samples == pytest.approx((4 * 3 + 2) / 19)


def test_a_context_is_computed_anew_when_the_weights_have_changed() -> None:
    # Alone: 2 s, 3 s away, 2 s; with a trainer of 4 s version 1 comes at 11. The second sample is away from 9 to 12, so its
    # 2 tokens are computed anew, in 1 s; the third runs from 15 to 22 as the first did, and version 2 comes at 19.
    result = agentic(
        in_flight_cap=1, train=TrainCost(4.0), steps=3,
        decode=DecodeCost(np.ones(2), np.zeros(2), np.zeros(2), 0.0, 0.0, recompute_s_per_token=0.5),
    )  # fmt: skip
    assert result.periods_s.tolist() == [11, 8, 8]


def test_lengths_drift_with_the_version_of_the_start() -> None:
    # 4 tokens at version 0, 6 at 1, 8 from 2 on; the sample that starts at 4, in the instant of version 1, has 6.
    values = LengthDistribution.from_values([4], max=10)
    result = agentic(turns=1, lengths=values, drift=((0, 1.0), (2, 2.0)), steps=4)
    assert result.periods_s.tolist() == [4, 6, 8, 8]


def test_lengths_that_drift_are_cut_at_the_cap() -> None:
    result = agentic(turns=1, lengths=LengthDistribution.from_values([4], max=7), drift=((0, 1.0), (2, 2.0)), steps=3)
    assert result.periods_s.tolist() == [4, 6, 7]


def test_warm_up_is_left_out_of_every_statistic() -> None:
    kwargs: dict[str, Any] = {"trainer": {"perStep": 2.5}, "queue": {"capacity": 1}, "steps": 4}
    result = run(**kwargs | {"warmup": 2})
    assert result.periods_s.tolist() == [2.5, 2.5]
    assert result.elapsed_s == 5
    assert result.staleness.histogram == (0, 2)
    assert result.dropped_groups == 3  # at 6, 7 (pushed out by the group of 8) and 9
    assert result.trainer_utilization == 1


def test_median_and_outer_percentiles_are_of_periods() -> None:
    result = run(samplers={"maxRunning": 2}, workload={"responseTokens": {"values": [5]}},
                 staleness={"bound": "hold", "max": 1}, steps=11, warmup=1)  # fmt: skip
    assert (result.period.p10, result.period.p50, result.period.p90) == (1, 2.5, 4)
    assert result.period.mean == 2.5
