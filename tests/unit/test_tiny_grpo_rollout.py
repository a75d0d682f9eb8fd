"""The tiny GRPO job's rollout against samplers that come, go, die, and break off their updates: no sample is lost, and none is by old weights."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tiny_grpo.account import Account
from tiny_grpo.admission import Admission, Limits
from tiny_grpo.rollout import Rollout
from tiny_grpo.task import Kind, LengthTrace

from rljob_runtime import Endpoint, Layout, LayoutPhase, Reporter, SamplerLayout, TrainerLayout
from tests.unit.tiny_grpo_double import Double, double

LIMITS = Limits(prompts_per_step=2, samples_per_prompt=2, steps=10, max_staleness=0)


class Job:
    """A rollout with its account, and weights to publish."""

    def __init__(self, directory: Path) -> None:
        registry = CollectorRegistry()
        self.directory = directory
        self.admission = Admission(LIMITS, version=0)
        self.account = Account(registry)
        self.rollout = Rollout(
            self.admission, self.account, Reporter(registry), kind=Kind.COUNT, lengths=LengthTrace("5"), seed=0
        )
        self.rollout.start()

    def use(self, *samplers: Double, draining: tuple[str, ...] = ()) -> None:
        self.rollout.follow(layout(samplers, draining))

    def publish(self, version: int) -> None:
        weights = self.directory / f"v{version}"
        weights.mkdir()
        (weights / "config.json").write_text("{}")
        self.rollout.publish(version, weights)

    def step(self) -> None:
        assert self.admission.take(timeout_s=20) is not None, self.account.numbers()


def layout(samplers: tuple[Double, ...], draining: tuple[str, ...] = ()) -> Layout:
    return Layout(
        generation=1,
        phase=LayoutPhase.STEADY,
        samplers=SamplerLayout(len(samplers), 1, 1, 8, tuple(Endpoint(pod_of(s), s.url) for s in samplers)),
        trainers=TrainerLayout(1, 1, 1, 1, 1, 1, ""),
        in_flight_cap=8,
        max_staleness=0,
        draining=draining,
        checkpoint=False,
    )


def pod_of(sampler: Double) -> str:
    return f"sampler-{sampler.url.rpartition(':')[2]}"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    try:
        yield made
    finally:
        made.rollout.close()


@pytest.fixture
def sampler() -> Iterator[Double]:
    with double() as made:
        yield made


@pytest.fixture
def another() -> Iterator[Double]:
    with double() as made:
        yield made


UPDATE = ["/pause?mode=keep", "/collective_rpc", "/update_weight_version", "/resume"]


def test_a_sampler_has_the_weights_before_its_first_sample(job: Job, sampler: Double) -> None:
    job.use(sampler)
    job.publish(0)
    job.step()
    assert sampler.calls == [*UPDATE, *["generate by 0"] * 4]
    assert sampler.weights.endswith("v0")


def test_a_new_one_gets_those_of_now(job: Job, sampler: Double, another: Double) -> None:
    job.use(sampler)
    job.publish(0)
    job.step()
    job.publish(1)
    job.use(sampler, another)
    another.wait_until(lambda: "/resume" in another.calls)
    assert another.version == "1"
    job.use(another)
    job.step()
    job.publish(2)
    job.step()
    assert {c for c in another.calls if c.startswith("generate")} <= {"generate by 1", "generate by 2"}
    assert "generate by 2" in another.calls


def test_a_limit_of_0_is_on_policy(job: Job, sampler: Double) -> None:
    job.use(sampler)
    for version in range(3):
        job.publish(version)
        groups = job.admission.take(timeout_s=20)
        assert groups is not None
        assert {s.staleness(version) for g in groups for s in g.samples} == {0}


def check_retried(job: Job, bad: Double, good: Double, spoil: Callable[[Double], None]) -> None:
    bad.free.clear()
    job.use(bad)
    job.publish(0)
    bad.wait_until(lambda: bad.waiting == 4)
    spoil(bad)
    job.use(bad, good)
    good.wait_until(lambda: good.version == "0")
    bad.free.set()
    job.step()
    numbers = job.account.numbers()
    assert numbers["submitted"] == numbers["finished"] == 4
    assert numbers["lost"] == 0
    assert numbers["retried"] >= 4
    assert "generate by 0" in good.calls


@pytest.mark.parametrize("how", ["closed", "aborted", "died"])
def test_a_cut_sample_is_asked_for_again(job: Job, sampler: Double, another: Double, how: str) -> None:
    def spoil(bad: Double) -> None:
        bad.breaks = {"/pause?mode=keep"}
        if how == "closed":
            bad.hang_up = True
        elif how == "aborted":
            bad.finish_reason = "abort"
        else:
            bad.answer_with = (500, "EngineCore encountered an issue")

    check_retried(job, sampler, another, spoil)
    assert job.account.numbers()["cut"] >= 4
    assert job.account.numbers()["refused"] == 0


def test_a_refused_sample_is_asked_for_again_and_not_counted_as_cut(job: Job, sampler: Double, another: Double) -> None:
    def spoil(bad: Double) -> None:
        bad.breaks = {"/pause?mode=keep"}
        bad.answer_with = (500, "cannot schedule new futures after shutdown")

    check_retried(job, sampler, another, spoil)
    assert job.account.numbers()["cut"] == 0
    assert job.account.numbers()["refused"] >= 4


def test_one_whose_queue_is_full_keeps_its_weights(job: Job, sampler: Double, another: Double) -> None:
    def spoil(bad: Double) -> None:
        bad.answer_with = (503, "queue full")

    check_retried(job, sampler, another, spoil)
    assert sampler.calls.count("/pause?mode=keep") == 1


def test_one_that_was_started_anew_gets_the_weights_again(job: Job, sampler: Double) -> None:
    job.use(sampler)
    job.publish(0)
    job.step()
    job.publish(1)
    job.step()
    sampler.start_anew()
    # On a server that forgot its weights, the next update is right anyway; what matters are samples before it.
    job.admission.limits = replace(LIMITS, max_staleness=1)
    job.rollout.follow(layout((sampler,)))
    job.step()
    assert sampler.version == "1"
    assert "generate by default" in sampler.calls
    assert job.account.numbers()["cut"] == 0
    assert job.account.numbers()["refused"] >= 1


def test_an_update_that_breaks_off_leaves_nobody_paused(job: Job, sampler: Double, another: Double) -> None:
    job.use(sampler, another)
    job.publish(0)
    job.step()
    another.wait_until(lambda: another.version == "0")
    sampler.breaks = {"/collective_rpc"}
    job.publish(1)
    assert not sampler.paused
    another.wait_until(lambda: another.version == "1")
    job.step()
    assert "generate by 1" not in sampler.calls
    sampler.breaks = set()
    sampler.wait_until(lambda: sampler.version == "1" and not sampler.paused)
    job.use(sampler)
    job.publish(2)
    job.step()
    assert "generate by 2" in sampler.calls


def test_what_a_sampler_wrote_when_its_update_broke_off_is_written_again(
    job: Job, sampler: Double, another: Double
) -> None:
    job.use(sampler)
    sampler.free.clear()
    job.publish(0)
    sampler.wait_until(lambda: sampler.waiting == 4)
    sampler.breaks = {"/update_weight_version"}
    job.publish(1)
    job.use(sampler, another)
    job.step()
    numbers = job.account.numbers()
    assert numbers["cut"] == 4
    assert numbers["lost"] == 0


def test_one_whose_answer_to_the_pause_was_lost_is_not_left_paused(
    job: Job, sampler: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiny_grpo.sampler.UPDATE_TIMEOUT_S", 0.5)
    released = threading.Event()
    sampler.held["/pause?mode=keep"] = released
    job.use(sampler)
    job.publish(0)
    try:
        sampler.wait_until(lambda: "/resume" in sampler.calls and not sampler.paused)
    finally:
        sampler.held.clear()
        released.set()
    monkeypatch.undo()
    job.step()
    assert not sampler.paused


def test_one_is_not_left_paused_by_a_trainer_that_ends(tmp_path: Path, sampler: Double) -> None:
    job = Job(tmp_path)
    released = threading.Event()
    sampler.held["/collective_rpc"] = released
    job.use(sampler)
    job.publish(0)
    sampler.wait_until(lambda: "/collective_rpc" in sampler.calls)
    assert sampler.paused
    try:
        job.rollout.close()
        assert not sampler.paused
    finally:
        released.set()


@pytest.mark.parametrize("text", ["no JSON", "{}", '{"choices": []}', '{"choices": [{"finish_reason": "stop"}]}'])
def test_an_answer_that_cannot_be_read_is_a_cut(job: Job, sampler: Double, another: Double, text: str) -> None:
    def spoil(bad: Double) -> None:
        bad.breaks = {"/pause?mode=keep"}
        bad.answer_with = (200, text)

    check_retried(job, sampler, another, spoil)
    assert job.account.numbers()["cut"] >= 4


def test_a_failure_that_nobody_waits_for_is_heard_of(
    job: Job, sampler: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise KeyError("a bug")

    failed = threading.Event()
    monkeypatch.setattr(job.admission, "complete", lambda group: (failed.set(), fail(group)))
    job.use(sampler)
    job.publish(0)
    assert failed.wait(20)
    # Anything that the rollout's thread does after the failure is done after it was noted.
    job.rollout.numbers()
    job.rollout.numbers()
    with pytest.raises(RuntimeError, match="the rollout failed"):
        job.rollout.check()


@pytest.mark.parametrize("turns", range(5))
def test_it_ends_though_a_sample_is_finished_at_that_moment(job: Job, turns: int) -> None:
    """``turns`` of the loop between what wakes the admission and the end."""
    rollout = job.rollout

    async def end() -> None:
        admitting = next(iter(rollout._tasks))
        await asyncio.sleep(0.1)
        rollout._changed.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        admitting.cancel()
        await asyncio.wait([admitting], timeout=20)
        assert admitting.cancelled()

    rollout._run(end())


def test_the_only_one_whose_queue_is_full_is_asked_again(job: Job, sampler: Double) -> None:
    sampler.answer_with = (503, "queue full")
    job.use(sampler)
    job.publish(0)
    sampler.wait_until(lambda: sampler.calls.count("generate by 0") >= 8)
    sampler.answer_with = None
    job.step()
    numbers = job.account.numbers()
    assert numbers["finished"] == 4
    assert numbers["refused"] == numbers["retried"] >= 4


def test_an_account_adds_up_at_any_moment(job: Job, sampler: Double) -> None:
    job.use(sampler)
    for version in range(5):
        job.publish(version)
        while job.admission.queued < 2:
            numbers = job.rollout.numbers()
            assert numbers["submitted"] == numbers["finished"] + numbers["lost"] + numbers["in_flight"]
        job.step()


def test_a_draining_one_finishes_what_it_has_and_gets_no_weights(job: Job, sampler: Double, another: Double) -> None:
    sampler.free.clear()
    job.use(sampler)
    job.publish(0)
    sampler.wait_until(lambda: sampler.waiting == 4)
    job.use(sampler, another, draining=(pod_of(sampler),))
    job.publish(1)
    another.wait_until(lambda: "generate by 1" in another.calls)
    assert sampler.calls == [*UPDATE, *["generate by 0"] * 4]
    sampler.free.set()
    job.step()
    job.step()
    numbers = job.account.numbers()
    assert numbers["finished"] == 8
    assert numbers["cut"] == numbers["refused"] == numbers["lost"] == 0


def test_without_weights_or_samplers_nothing_is_asked_for(job: Job, sampler: Double) -> None:
    job.use(sampler)
    assert job.admission.take(timeout_s=0.2) is None
    assert sampler.calls == []
