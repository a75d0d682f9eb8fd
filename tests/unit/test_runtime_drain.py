"""When a sampler may be stopped: the decision alone, with looks and times given."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_runtime.drain import Listing, Outcome, Patience, Vigil, drain, listing
from rljob_runtime.sampler import Look, Sampler, State
from tests.unit.emulator_job import layout_text
from tests.unit.vllm_double import double

PATIENCE = Patience(deadline_s=300.0, settle_s=3.0, lag_s=15.0, gone_s=3.0, stuck_s=60.0)
IDLE = Look(State.IDLE, 0.0, 0.0, progress=100.0)
BLIND = Look(State.BLIND, 4.0, 0.0, progress=100.0, halted="paused")
SILENT = Look(State.SILENT, why="timed out")
GONE = Look(State.GONE, why="nothing listens")
DEAD = Look(State.DEAD, why="dead")


def busy(progress: float = math.nan, load: float = math.nan) -> Look:
    return Look(State.BUSY, 2.0, 0.0, load, progress)


def end(looks: dict[float, Look], told: bool = False, patience: Patience = PATIENCE) -> tuple[float, Outcome]:
    """What comes of looks, each of which holds until the next, seen every half second."""
    vigil, at, look, order = Vigil(patience), 0.0, SILENT, sorted(looks)
    while at < 10_000:
        look = looks[max(t for t in order if t <= at)]
        outcome = vigil.see(at, look, told)
        if outcome is not None:
            return at, outcome
        at += 0.5
    raise AssertionError("it never ends")


def test_an_idle_sampler_that_the_layout_had_listed_settles_and_goes() -> None:
    assert end({0: IDLE}, told=True) == (3.0, Outcome.DRAINED)


def test_one_that_was_not_listed_gives_the_job_time_to_learn() -> None:
    assert end({0: IDLE}) == (15.0, Outcome.DRAINED)


def test_a_burst_after_the_first_zero_starts_the_settling_anew() -> None:
    assert end({0: busy(), 5: IDLE, 7: busy(), 20: IDLE}, told=True) == (23.0, Outcome.DRAINED)
    assert end({0: IDLE, 14: busy(), 40: IDLE}) == (43.0, Outcome.DRAINED)


def test_samples_shorter_than_the_time_between_looks_are_samples() -> None:
    moving = {float(at): Look(State.IDLE, 0.0, 0.0, progress=float(at)) for at in range(40)}
    assert end(moving) == (42.0, Outcome.DRAINED)
    assert end({0: Look(State.IDLE, 0.0, 0.0)}, told=True) == (3.0, Outcome.DRAINED), "without counters nothing moves"


def test_no_answer_is_neither_idle_nor_gone() -> None:
    assert end({0: SILENT}, told=True) == (300.0, Outcome.DEADLINE)
    assert end({0: busy(), 5: SILENT, 60: IDLE}, told=True) == (63.0, Outcome.DRAINED)
    assert end({0: IDLE, 1: SILENT, 10: IDLE}, told=True) == (10.0, Outcome.DRAINED), "no burst was seen between"


def test_a_halted_sampler_of_which_nothing_is_known_waits_until_it_goes_on() -> None:
    assert end({0: BLIND, 20: IDLE}, told=True) == (23.0, Outcome.DRAINED)
    assert end({0: BLIND}, told=True) == (300.0, Outcome.DEADLINE)


@pytest.mark.parametrize(("look", "outcome"), [(GONE, Outcome.GONE), (DEAD, Outcome.DEAD)])
def test_nothing_is_waited_for_where_nothing_lives(look: Look, outcome: Outcome) -> None:
    assert end({0: look}) == (3.0, outcome)
    assert end({0: busy(), 10: look}) == (13.0, outcome)
    assert end({0: look, 2: busy(), 10: IDLE}, told=True) == (13.0, Outcome.DRAINED), "it was only starting"


def test_the_deadline_ends_a_drain_that_has_work_left() -> None:
    assert end({t: busy(float(t)) for t in range(400)}) == (300.0, Outcome.DEADLINE)


def test_gauges_that_nothing_stands_behind_are_not_waited_for() -> None:
    assert end({0: busy(1.0), 10: busy(2.0)}) == (70.0, Outcome.STUCK)
    assert end({0: busy(1.0), 10: busy(2.0, load=0.0)}) == (25.0, Outcome.STUCK), "the server counts none either"


def test_a_sampler_that_is_only_halted_or_really_holds_requests_is_not_stuck() -> None:
    held = Look(State.BUSY, 2.0, 0.0, 2.0, 1.0)
    assert end({0: held}) == (300.0, Outcome.DEADLINE)
    paused = Look(State.BUSY, 2.0, 0.0, 2.0, 1.0, halted="paused")
    assert end({0: paused, 200: busy(1.0), 210: IDLE}, told=True) == (213.0, Outcome.DRAINED)
    assert end({0: busy()}) == (300.0, Outcome.DEADLINE), "without counters it is not known"


def counted(running: float, load: float, progress: float, waiting: float = 0.0) -> Look:
    """What a server says that counts requests by itself."""
    return Look(State.BUSY if load > 0.0 else State.IDLE, running, waiting, load, progress)


def test_a_request_that_is_counted_for_ever_is_not_waited_for() -> None:
    """As seen of vLLM 0.32: its /load stayed at 1 after a client had gone away."""
    at_work = {float(at): counted(5.0 - at, 6.0 - at, float(at)) for at in range(5)}
    assert end({**at_work, 5.0: counted(0.0, 1.0, 5.0)}, told=True) == (8.0, Outcome.DRAINED)
    assert end({**at_work, 5.0: counted(0.0, 1.0, 5.0)}) == (15.0, Outcome.DRAINED), (
        "the job is to learn of it all the same"
    )


@pytest.mark.parametrize("late", [counted(0.0, 32.0, 5.0), Look(State.BUSY, 0.0, 32.0, math.nan, 5.0)])
def test_a_burst_after_a_long_rest_is_not_stuck_before_it_has_begun(late: Look) -> None:
    """Its counters move with the first iteration, which may be after the first look at it."""
    patient = replace(PATIENCE, lag_s=90.0)
    looks = {0.0: counted(0.0, 0.0, 5.0), 70.0: late, 72.0: counted(32.0, 32.0, 6.0), 80.0: counted(0.0, 0.0, 7.0)}
    assert end(looks, patience=patient) == (90.0, Outcome.DRAINED)


def test_more_requests_than_were_counted_too_much_are_requests() -> None:
    at_work = {float(at): counted(5.0 - at, 6.0 - at, float(at)) for at in range(5)}
    late = {**at_work, 5.0: counted(0.0, 2.0, 5.0), 7.0: counted(1.0, 2.0, 6.0), 9.0: counted(0.0, 1.0, 7.0)}
    assert end(late, told=True) == (12.0, Outcome.DRAINED)
    on_their_way = {float(at): counted(5.0 - at, 6.0 - at if at != 2 else 3.0, float(at)) for at in range(5)}
    held = end({**on_their_way, 5.0: counted(0.0, 1.0, 5.0)}, told=True)
    assert held == (65.0, Outcome.STUCK), "once there was none too many, so it may be one"
    few = {float(at): at_work[float(at)] for at in range(3)}
    assert end({**few, 3.0: counted(0.0, 1.0, 3.0)}, told=True) == (63.0, Outcome.STUCK), "too few looks tell nothing"


def test_a_halted_engine_tells_nothing_of_what_is_counted_too_much() -> None:
    paused = {float(at): Look(State.BUSY, 0.0, 0.0, 3.0, float(at), halted="paused") for at in range(6)}
    assert end({**paused, 6.0: counted(0.0, 3.0, 6.0)}, told=True) == (66.0, Outcome.STUCK)
    works = {float(at): counted(1.0, 2.0, float(at)) for at in range(6)}
    halted = Look(State.BUSY, 0.0, 0.0, 1.0, 6.0, halted="paused")
    assert end({**works, 6.0: halted}, told=True) == (300.0, Outcome.DEADLINE), "its gauges tell of the past"


def write(folder: Path, text: str) -> Path:
    (folder / "layout.json").write_text(text)
    return folder


def test_the_layout_says_whether_a_pod_gets_anything_new(tmp_path: Path) -> None:
    assert listing(tmp_path, "s-0") is Listing.UNKNOWN, "there is none"
    folder = write(tmp_path, layout_text(1, samplers=("s-0", "s-1"), draining=("s-1",)))
    assert listing(folder, "s-0") is Listing.SERVING
    assert listing(folder, "s-1") is Listing.LEAVING
    assert listing(folder, "s-2") is Listing.ABSENT
    assert listing(folder, "") is Listing.UNKNOWN, "nobody knows who asks"
    assert listing(None, "s-1") is Listing.UNKNOWN
    assert listing(write(tmp_path, "{"), "s-1") is Listing.UNKNOWN
    (folder / "layout.json").write_bytes(b"\xff\xfe")
    assert listing(folder, "s-1") is Listing.UNKNOWN


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)


def test_a_drain_says_what_it_waits_for_and_how_it_ended(tmp_path: Path) -> None:
    folder = write(tmp_path, layout_text(1, samplers=("s-0",), draining=("s-0",)))
    clock, said = Clock(), list[str]()
    with double(tracks_load=True) as server:
        server.engine.submit(6, max_tokens=1000)

        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            server.engine.step()
            if clock.now > 1020 and server.engine.requests:
                server.engine.finish()

        outcome = drain(
            Sampler(server.url, timeout_s=30),
            PATIENCE,
            layout=folder,
            pod="s-0",
            say=said.append,
            clock=clock,
            sleep=sleep,
        )
    assert outcome is Outcome.DRAINED
    assert said[0] == f"draining {server.url} for at most 300 s; the layout sends nothing new to s-0"
    assert said[1] == "still draining after 10 s: 4 running, 2 waiting, 6 counted by /load"
    assert said[-1].startswith("drained after 2")


def test_a_layout_that_learns_of_it_in_between_counts(tmp_path: Path) -> None:
    folder = write(tmp_path, layout_text(1, samplers=("s-0",)))
    clock, said = Clock(), list[str]()
    with double() as server:

        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            if clock.now >= 1005:
                write(folder, layout_text(2, samplers=(), draining=("s-0",)))

        outcome = drain(
            Sampler(server.url, timeout_s=30),
            PATIENCE,
            layout=folder,
            pod="s-0",
            say=said.append,
            clock=clock,
            sleep=sleep,
        )
    assert outcome is Outcome.DRAINED
    assert 1005 <= clock.now < 1010
    assert "does not say yet" in said[0]


def test_work_that_is_left_is_named(tmp_path: Path) -> None:
    clock, said = Clock(), list[str]()
    with double() as server:
        server.engine.submit(5)

        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            server.engine.step()
            server.engine.requests[0].max_tokens += 1

        outcome = drain(Sampler(server.url, timeout_s=30), Patience(16.0), say=said.append, clock=clock, sleep=sleep)
    assert outcome is Outcome.DEADLINE
    assert "the deadline is over after 16 s, with " in said[-1]
    assert "running" in said[-1]


class Told(Sampler):
    """A sampler that is idle at each look, and notes how long each look may take."""

    def __init__(self) -> None:
        super().__init__("http://sampler:8000")
        self.within_s: list[float] = []
        self.state = State.IDLE

    def look(self, within_s: float = math.inf) -> Look:
        self.within_s.append(within_s)
        return Look(self.state, 1.0, 0.0)


def lasted(folder: Path, pod: str, at: dict[float, str] | None = None) -> tuple[float, str]:
    """How long the drain of an idle ``pod`` takes, and its first words; ``at``: layouts that are written in between."""
    clock, said, texts = Clock(), list[str](), dict(at or {})

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        for when in [each for each in texts if clock.now >= 1000.0 + each]:
            write(folder, texts.pop(when))

    drain(Told(), PATIENCE, layout=folder, pod=pod, say=said.append, clock=clock, sleep=sleep)
    return clock.now - 1000.0, said[0]


def test_a_copy_of_the_layout_that_is_older_than_the_pod_tells_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, layout_text(1, samplers=("s-0",)))
    took_s, said = lasted(folder, "s-1")
    assert took_s == PATIENCE.lag_s
    assert f"the layout in {folder} has no pod s-1: it is older than the pod, or this is not the pod's name" in said
    took_s, _ = lasted(folder, "s-1", {2.0: layout_text(2, samplers=("s-0", "s-1"))})
    assert took_s == PATIENCE.lag_s


def test_a_pod_that_left_the_layout_before_its_eyes_is_told(tmp_path: Path) -> None:
    folder = write(tmp_path, layout_text(1, samplers=("s-0", "s-1")))
    took_s, _ = lasted(folder, "s-1", {5.0: layout_text(2, samplers=("s-0",))})
    assert PATIENCE.settle_s <= took_s < 6.0


def test_no_look_may_take_longer_than_the_time_that_is_left() -> None:
    clock, said, sampler = Clock(), list[str](), Told()
    sampler.state = State.BUSY

    def sleep(seconds: float) -> None:
        clock.sleep(max(seconds, 4.0))

    outcome = drain(sampler, Patience(10.0), say=said.append, clock=clock, sleep=sleep)
    assert outcome is Outcome.DEADLINE
    assert sampler.within_s == [10.0, 6.0, 2.0], "and none is taken when no time is left"
    assert "with 1 running" in said[-1], "what was known last"
