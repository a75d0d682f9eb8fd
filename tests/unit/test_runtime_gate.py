"""How many samples are in flight, and where: caps, order, drains, cancellations, threads and event loops."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from rljob_runtime import Group, InFlightGate, Layout, Reporter
from tests.unit.emulator_job import layout_text
from tests.unit.test_runtime_reporter import value

LONG_S = 60.0


def layout(cap: int = 8, samplers: Sequence[str] = ("s-0", "s-1"), draining: Sequence[str] = ()) -> Layout:
    return Layout.parse(layout_text(1, cap=cap, samplers=samplers, draining=draining))


def waiting(gate: InFlightGate, groups: int) -> None:
    """Wait until so many groups wait for room."""
    until = time.monotonic() + LONG_S
    while len(gate._asks) != groups:
        assert time.monotonic() < until, str(gate)
        time.sleep(0.001)


def test_a_group_is_admitted_only_when_all_of_its_samples_fit() -> None:
    gate = InFlightGate(layout(cap=8))
    first = gate.admit(5)
    assert gate.try_admit(4) is None
    second = gate.try_admit(3)
    assert second is not None
    assert gate.in_flight == 8
    with pytest.raises(TimeoutError, match=r"no room for a group of 4 within 0 s: 8 of 8 samples in flight"):
        gate.admit(4, timeout_s=0)
    first.leave()
    first.leave()
    assert gate.in_flight == 3
    assert gate.admit(4, timeout_s=0)


def test_nothing_is_admitted_before_the_first_layout() -> None:
    gate = InFlightGate()
    assert gate.try_admit(1) is None
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(gate.admit, 4, LONG_S)
        waiting(gate, 1)
        gate.follow(layout(cap=4))
        asked.result(LONG_S)
    assert gate.in_flight == 4


def test_a_group_frees_its_room_sample_by_sample() -> None:
    gate = InFlightGate(layout(cap=4))
    with gate.admit(4) as group:
        samples = [group.sample() for _ in range(4)]
        with pytest.raises(ValueError, match=r"goes on with Sample\.elsewhere"):
            group.sample()
        samples[0].done()
        samples[0].done()
        assert gate.in_flight == 3
        assert gate.try_admit(1) is not None
    assert gate.in_flight == 1, "what is left goes with the group; the other group is there"


def test_groups_are_admitted_in_the_order_in_which_they_ask() -> None:
    gate = InFlightGate(layout(cap=8))
    running = gate.admit(8)
    order: list[int] = []
    with ThreadPoolExecutor() as pool:

        def ask(samples: int) -> None:
            gate.admit(samples, LONG_S)
            order.append(samples)

        large = pool.submit(ask, 8)
        waiting(gate, 1)
        small = pool.submit(ask, 1)
        waiting(gate, 2)
        assert gate.try_admit(1) is None, "nobody passes by"
        sample = running.sample()
        sample.done()
        assert not small.done(), "one would fit, but the large one was first"
        running.leave()
        large.result(LONG_S)
        gate.follow(layout(cap=9))
        small.result(LONG_S)
    assert order == [8, 1]


def test_a_cap_that_falls_takes_nothing_back() -> None:
    gate = InFlightGate(layout(cap=8))
    first, second = gate.admit(4), gate.admit(4)
    gate.follow(layout(cap=4))
    assert gate.in_flight == 8
    first.leave()
    assert gate.try_admit(1) is None
    second.leave()
    assert gate.try_admit(4) is not None


def test_a_group_that_can_never_fit_is_said(caplog: pytest.LogCaptureFixture) -> None:
    gate = InFlightGate(layout(cap=4))
    with caplog.at_level(logging.WARNING), pytest.raises(TimeoutError):
        gate.admit(5, timeout_s=0)
    assert "a group of 5 samples does not fit under the layout's in-flight cap of 4" in caplog.text


def test_samples_go_where_the_fewest_are_and_never_to_one_that_drains() -> None:
    gate = InFlightGate(layout(cap=100, samplers=("s-0", "s-1", "s-2"), draining=("s-1",)))
    group = gate.admit(6)
    samples = [group.sample() for _ in range(4)]
    assert [s.endpoint.pod for s in samples] == ["s-0", "s-2", "s-0", "s-2"]
    gate.follow(layout(cap=100, samplers=("s-1", "s-2"), draining=("s-2",)))
    assert {group.sample().endpoint.pod for _ in range(2)} == {"s-1"}
    assert (gate.at("s-0"), gate.at("s-1"), gate.at("s-2")) == (2, 2, 2), "those in flight stay counted where they run"
    for sample in samples:
        sample.done()
    assert (gate.at("s-0"), gate.at("s-2")) == (0, 0)


def test_a_sampler_that_refuses_is_not_given_everything() -> None:
    now = 0.0
    gate = InFlightGate(layout(cap=100, samplers=("s-0", "s-1")), shun_s=5.0, clock=lambda: now)
    group = gate.admit(20)
    refused = group.sample()
    assert refused.endpoint.pod == "s-0"
    assert refused.elsewhere().pod == "s-1"
    assert gate.in_flight == 20, "it is still in flight"
    assert {group.sample().endpoint.pod for _ in range(5)} == {"s-1"}
    now = 6.0
    assert group.sample().endpoint.pod == "s-0"
    assert (gate.at("s-0"), gate.at("s-1")) == (1, 6)


def test_a_retry_at_the_only_sampler_waits_until_it_is_shunned_no_longer() -> None:
    gate = InFlightGate(layout(samplers=("s-0",)), shun_s=5.0, clock=lambda: 0.0)
    group = gate.admit(2)
    refused = group.sample()
    with pytest.raises(TimeoutError, match="no sampler takes samples within 0 s"):
        refused.elsewhere(timeout_s=0)
    assert gate.at("s-0") == 1, "it stays where it was, to be asked for again"
    assert group.sample().endpoint.pod == "s-0", "one that is new takes any"

    async def asked() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await refused.elsewhere_async()
        assert gate._waiters == [], "who was cancelled waits no more"

    asyncio.run(asked())
    with ThreadPoolExecutor() as pool:
        placed = pool.submit(refused.elsewhere, LONG_S)
        gate.follow(layout(samplers=("s-0", "s-1")))
        assert placed.result(LONG_S).pod == "s-1", "another one came"


def test_a_shun_that_is_over_is_waited_for_and_not_longer() -> None:
    gate = InFlightGate(layout(samplers=("s-0",)), shun_s=0.05)
    sample = gate.admit(1).sample()
    for _ in range(3):
        before = time.monotonic()
        assert sample.elsewhere(LONG_S).pod == "s-0"
        assert time.monotonic() - before >= 0.05
        before = time.monotonic()
        assert asyncio.run(sample.elsewhere_async()).pod == "s-0"
        assert time.monotonic() - before >= 0.05


def test_a_retry_tries_each_sampler_before_one_again() -> None:
    gate = InFlightGate(layout(cap=8, samplers=("s-0", "s-1", "s-2")), shun_s=0.0)
    sample = gate.admit(1).sample()
    tried = [sample.endpoint.pod, *(sample.elsewhere().pod for _ in range(3))]
    assert set(tried[:3]) == {"s-0", "s-1", "s-2"}
    assert tried[3] != tried[2]
    sample.done()
    with pytest.raises(ValueError, match="done"):
        sample.elsewhere()
    assert all(gate.at(pod) == 0 for pod in tried)


def test_a_single_sampler_is_tried_again() -> None:
    gate = InFlightGate(layout(samplers=("s-0",)))
    assert gate.admit(1).sample().elsewhere().pod == "s-0"


def test_a_sample_waits_as_long_as_no_sampler_takes_any() -> None:
    gate = InFlightGate(layout(samplers=("s-0",), draining=("s-0",)))
    group = gate.admit(2)
    with pytest.raises(TimeoutError, match="no sampler takes samples within 0 s"):
        group.sample(timeout_s=0)
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(group.sample, LONG_S) for _ in range(2)]
        gate.follow(layout(samplers=("s-3",)))
        assert {each.result(LONG_S).endpoint.pod for each in asked} == {"s-3"}


def test_what_is_in_flight_is_reported() -> None:
    reporter = Reporter(strict=True)
    gate = InFlightGate(layout(), reporter=reporter)
    assert value(reporter, "rljob_inflight_samples") is None
    group = gate.admit(3)
    assert value(reporter, "rljob_inflight_samples") == 3
    group.leave()
    assert value(reporter, "rljob_inflight_samples") == 0


async def test_an_event_loop_is_served_in_the_same_order() -> None:
    gate = InFlightGate(layout(cap=4, samplers=("s-0",)))
    done: list[int] = []

    async def rollout(number: int) -> None:
        with await gate.admit_async(4) as group:
            for _ in range(4):
                with await group.sample_async() as sample:
                    assert sample.endpoint.pod == "s-0"
                    assert gate.in_flight <= 4
                    await asyncio.sleep(0)
            done.append(number)

    await asyncio.gather(*(rollout(n) for n in range(10)))
    assert done == list(range(10))
    assert gate.in_flight == 0


async def test_a_cancelled_wait_leaves_no_room_taken() -> None:
    gate = InFlightGate(layout(cap=4))
    running = gate.admit(4)
    first = asyncio.create_task(gate.admit_async(4))
    second = asyncio.create_task(gate.admit_async(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    running.leave()
    assert isinstance(await second, Group)
    assert gate.in_flight == 2


async def test_a_wait_that_is_cancelled_as_it_ends_leaves_no_room_taken() -> None:
    gate = InFlightGate(layout(cap=4))
    running = gate.admit(4)
    asked = asyncio.create_task(gate.admit_async(4))
    await asyncio.sleep(0)
    running.leave()  # it is admitted now, and told at the loop's next turn
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert gate.in_flight == 0


async def test_a_sample_that_waits_in_an_event_loop_can_be_cancelled_and_asked_for_again() -> None:
    gate = InFlightGate(layout(samplers=()))
    group = gate.admit(1)
    asked = asyncio.create_task(group.sample_async())
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    again = asyncio.create_task(group.sample_async())
    await asyncio.sleep(0)
    gate.follow(layout(samplers=("s-9",)))
    assert (await again).endpoint.pod == "s-9"
    gate.follow(layout(samplers=()))
    moved = asyncio.create_task((await again).elsewhere_async())
    await asyncio.sleep(0)
    gate.follow(layout(samplers=("s-8",)))
    assert (await moved).pod == "s-8"
    assert (gate.at("s-8"), gate.at("s-9")) == (1, 0)


def test_many_threads_and_layouts_never_exceed_the_cap_that_admitted_them() -> None:
    gate = InFlightGate(layout(cap=16))
    highest: list[int] = []
    stop = threading.Event()

    def rollout(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(60):
            with gate.admit(draw.randint(1, 8), LONG_S) as group:
                highest.append(gate.in_flight)
                with group.sample(LONG_S) as sample:
                    if draw.random() < 0.3:
                        sample.elsewhere(LONG_S)

    def layouts() -> None:
        draw = random.Random(99)
        while not stop.is_set():
            gate.follow(layout(cap=draw.randint(8, 16), samplers=draw.choice([("s-0",), ("s-0", "s-1", "s-2")])))

    changer = threading.Thread(target=layouts)
    changer.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            for each in [pool.submit(rollout, seed) for seed in range(8)]:
                each.result(LONG_S * 4)
    finally:
        stop.set()
        changer.join()
    assert max(highest) <= 16
    assert gate.in_flight == 0
    assert gate._at == {}
