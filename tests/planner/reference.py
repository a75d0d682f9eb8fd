"""A second simulator, slow and plain, that the fast one is checked against.

It goes iteration by iteration, keeps samples as objects in lists and knows no arithmetic series, no heap and no record
array; it shares no code with the product. It follows the rules as a person would read them: where the fast simulator refuses
a start that would be preempted at once, this one starts the sample and preempts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class Job:
    """What the reference needs to know."""

    mode: str
    replicas: int
    max_running: int
    kv_tokens: int
    iteration_s: Callable[[int, int], float]
    train_s: Callable[[list[int]], float]
    weight_sync_s: float
    prompts_per_step: int
    samples_per_prompt: int
    prompt_tokens: int
    length: Callable[[int, int], int]
    bound: str = "none"
    max_staleness: int = 0
    queue_capacity: int | None = None
    overflow: str = "drop-oldest"
    in_flight_cap: int | None = None
    steps: int = 10
    warmup: int = 0
    prefill_s: float = 0.0
    recompute_s_per_token: float = 0.0
    turns: int = 1
    environment_s: Callable[[int, int, int], float] = lambda _group, _index, _turn: 0.0
    sandboxes: int | None = None
    drift: Callable[[int], float] | None = None
    """Factor of lengths by the version of a sample's start; they are cut at ``cap_tokens``."""
    cap_tokens: int = 10**9


@dataclass(eq=False)
class Sample:
    group: Group
    index: int
    length: int = -1  # drawn at the start
    generated: int = 0
    version: int = -1
    fresh: bool = True
    turn_ends: list[int] = field(default_factory=list)  # tokens at which a turn is over, the next first
    turns_done: int = 0
    left_at_version: int | None = None  # went to its environment, context in the cache
    recompute: bool = False

    def place(self) -> tuple[int, int]:
        return self.group.number, self.index


@dataclass(eq=False)
class Group:
    number: int
    samples: list[Sample] = field(default_factory=list)

    def done(self) -> bool:
        return all(s.generated == s.length for s in self.samples)


@dataclass(eq=False)
class Replica:
    running: list[Sample] = field(default_factory=list)  # by start, oldest first
    joining: list[Sample] = field(default_factory=list)
    until: float = math.inf  # end of the iteration under way, or of a pause
    iterating: bool = False
    pause: float = 0.0


@dataclass
class Outcome:
    published: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    trained_lengths: list[int] = field(default_factory=list)
    trained_groups: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    wasted_tokens: int = 0
    training: float = 0.0
    running_area: float = 0.0
    busy_area: float = 0.0
    in_flight_area: float = 0.0
    queue_area: float = 0.0
    queue_max: int = 0
    kv_area: float = 0.0
    preemptions: int = 0
    environment_area: float = 0.0
    sandbox_waits: list[float] = field(default_factory=list)
    begin: float = 0.0
    end: float = 0.0
    periods: list[float] = field(default_factory=list)

    @property
    def elapsed(self) -> float:
        return self.end - self.begin

    @property
    def mean_period(self) -> float:
        return sum(self.periods) / len(self.periods)

    @property
    def mean_staleness(self) -> float:
        return sum(self.staleness) / len(self.staleness)


class Reference:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.out = Outcome()
        self.now = 0.0
        self.version = 0
        self.replicas = [Replica() for _ in range(job.replicas)]
        self.line: list[Sample] = []
        self.queue: list[Group] = []
        self.unfinished: list[Sample] = []  # started
        self.asking: list[tuple[float, Sample]] = []  # since when it waits for a sandbox
        self.away: list[tuple[float, Sample]] = []  # until when it is in its environment
        self.admitted = 0
        self.dropped = 0
        self.in_flight = 0
        self.steps_started = 0
        self.trainer = "waiting"
        self.trainer_until = math.inf

    def run(self) -> Outcome:
        self.admit_and_start()
        self.begin_iterations()
        while self.version < self.job.steps:
            self.now = self.advance()
            self.land()
            self.visit_environments()
            self.train()
            if self.version == self.job.steps:
                break
            self.trim()
            self.admit_and_start()
            self.begin_iterations()
        self.out.end = self.now
        times = [0.0, *self.out.published]
        self.out.periods = [b - a for a, b in pairwise(times)][self.job.warmup :]
        return self.out

    def advance(self) -> float:
        now = min([self.trainer_until] + [r.until for r in self.replicas] + [until for until, _ in self.away])
        assert now < math.inf, "nothing left to happen"
        dt = now - self.now
        out = self.out
        out.running_area += dt * sum(len(r.running) + len(r.joining) for r in self.replicas)
        out.busy_area += dt * sum(bool(r.running or r.joining) for r in self.replicas)
        out.kv_area += dt * sum(self.context(s) for r in self.replicas for s in r.running)
        out.in_flight_area += dt * self.in_flight
        out.environment_area += dt * len(self.away)
        out.queue_area += dt * len(self.queue)
        return now

    def context(self, sample: Sample) -> int:
        return self.job.prompt_tokens + sample.generated

    def land(self) -> None:
        completed = []
        for r in self.replicas:
            if r.until > self.now:
                continue
            r.until = math.inf
            if not r.iterating:
                continue  # a pause is over
            r.iterating = False
            for s in list(r.running):
                s.generated += 1
                if s.generated == s.turn_ends[0] and s.generated < s.length:
                    r.running.remove(s)
                    s.turn_ends.pop(0)
                    s.turns_done += 1
                    s.left_at_version = self.version
                    self.asking.append((self.now, s))
                elif s.generated == s.length:
                    r.running.remove(s)
                    self.unfinished.remove(s)
                    self.in_flight -= 1
                    if s.group.done():
                        completed.append(s.group)
            r.running += r.joining
            r.joining = []
            if r.pause > 0:
                r.until, r.pause = self.now + r.pause, 0.0
        self.queue += sorted(completed, key=lambda g: g.number)

    def visit_environments(self) -> None:
        job = self.job
        while True:
            changed = False
            self.asking.sort(key=lambda entry: (entry[0], entry[1].place()))
            while self.asking and (job.sandboxes is None or len(self.away) < job.sandboxes):
                since, sample = self.asking.pop(0)
                self.out.sandbox_waits.append(self.now - since)
                seconds = job.environment_s(*sample.place(), sample.turns_done)
                self.away.append((self.now + seconds, sample))
                changed = True
            self.away.sort(key=lambda entry: (entry[0], entry[1].place()))
            while self.away and self.away[0][0] <= self.now:
                self.line.append(self.away.pop(0)[1])
                changed = True
            if not changed:
                return

    def train(self) -> None:
        job = self.job
        while self.version < job.steps:
            if self.trainer == "waiting":
                if len(self.queue) < job.prompts_per_step:
                    return
                batch: list[Group] = []
                while self.queue and len(batch) < job.prompts_per_step:
                    group = self.queue.pop(0)
                    oldest = min(s.version for s in group.samples)
                    if job.mode == "async" and job.bound == "drop" and self.version - oldest > job.max_staleness:
                        self.drop(group)
                    else:
                        batch.append(group)
                if len(batch) < job.prompts_per_step:
                    self.queue = batch
                    return
                samples = [s for g in batch for s in g.samples]
                seconds = job.train_s([s.length for s in samples])
                if self.version >= job.warmup:
                    self.out.staleness += [self.version - s.version for s in samples]
                    self.out.trained_lengths += [s.length for s in samples]
                    self.out.trained_groups += [g.number for g in batch]
                    self.out.training += seconds
                self.steps_started += 1
                self.trainer, self.trainer_until = "training", self.now + seconds
            elif self.trainer == "training":
                if self.trainer_until > self.now:
                    return
                self.trainer, self.trainer_until = "done", math.inf
            elif self.trainer == "done":
                if job.mode == "one-step-off" and len(self.queue) < job.prompts_per_step:
                    return
                if job.mode == "async" and job.bound == "hold":
                    new = self.version + 1
                    if any(new - s.version > job.max_staleness for s in self.unfinished):
                        return
                if job.mode != "async" and job.weight_sync_s > 0:
                    self.trainer, self.trainer_until = "syncing", self.now + job.weight_sync_s
                else:
                    self.publish()
            elif self.trainer == "syncing":
                if self.trainer_until > self.now:
                    return
                self.publish()

    def publish(self) -> None:
        self.version += 1
        self.out.published.append(self.now)
        self.trainer, self.trainer_until = "waiting", math.inf
        if self.version == self.job.warmup:
            self.out = Outcome(published=self.out.published, begin=self.now)
        if self.job.mode == "async":
            for r in self.replicas:
                if r.iterating:
                    r.pause += self.job.weight_sync_s
                elif self.job.weight_sync_s > 0:
                    since = r.until if r.until < math.inf else self.now
                    r.until = since + self.job.weight_sync_s

    def drop(self, group: Group) -> None:
        self.dropped += 1
        self.out.dropped.append(group.number)
        self.out.wasted_tokens += sum(s.length for s in group.samples)

    def trim(self) -> None:
        if self.job.queue_capacity is not None and self.job.overflow == "drop-oldest":
            while len(self.queue) > self.job.queue_capacity:
                self.drop(self.queue.pop(0))
        self.out.queue_max = max(self.out.queue_max, len(self.queue))

    def may_admit(self) -> bool:
        job = self.job
        if job.in_flight_cap is not None and self.in_flight + job.samples_per_prompt > job.in_flight_cap:
            return False
        if job.overflow == "block" and job.queue_capacity is not None and len(self.queue) >= job.queue_capacity:
            return False
        if job.mode == "sync":
            return self.admitted < (self.version + 1) * job.prompts_per_step
        if job.mode == "one-step-off":
            return self.admitted < (self.steps_started + 1) * job.prompts_per_step
        if job.bound == "admission":
            limit = (self.version + job.max_staleness + 1) * job.prompts_per_step
            return self.admitted - self.dropped < limit
        return True

    def admit(self) -> None:
        group = Group(self.admitted)
        group.samples = [Sample(group, j) for j in range(self.job.samples_per_prompt)]
        self.line += group.samples
        self.admitted += 1
        self.in_flight += len(group.samples)

    def place(self, context: int) -> Replica | None:
        def tokens(r: Replica) -> int:
            return sum(self.context(s) for s in r.running + r.joining)

        with_room = [
            r
            for r in self.replicas
            if len(r.running) + len(r.joining) < self.job.max_running and tokens(r) + context + 1 <= self.job.kv_tokens
        ]
        return min(with_room, key=lambda r: len(r.running) + len(r.joining), default=None)

    def admit_and_start(self) -> None:
        while True:
            if self.job.in_flight_cap is not None:
                while self.may_admit():
                    self.admit()
            elif (
                not self.line
                and not self.asking
                and self.may_admit()
                and self.place(self.job.prompt_tokens) is not None
            ):
                self.admit()
            if not self.line:
                return
            sample = self.line[0]
            replica = self.place(self.context(sample))
            if replica is None:
                return
            self.line.pop(0)
            if sample.length < 0:
                self.draw(sample)
            sample.recompute = sample.left_at_version != self.version
            sample.left_at_version = None
            if sample not in self.unfinished:
                self.unfinished.append(sample)
            sample.fresh = True
            (replica.joining if replica.iterating else replica.running).append(sample)

    def draw(self, sample: Sample) -> None:
        job = self.job
        sample.version = self.version
        sample.length = job.length(*sample.place())
        if job.drift is not None:
            sample.length = max(1, min(job.cap_tokens, math.floor(sample.length * job.drift(self.version) + 0.5)))
        turns = min(job.turns, sample.length)
        sample.turn_ends = [sample.length * turn // turns for turn in range(1, turns + 1)]

    def begin_iterations(self) -> None:
        job = self.job
        for r in self.replicas:
            if r.iterating or not r.running or (r.until < math.inf and r.until > self.now):
                continue
            while sum(self.context(s) for s in r.running) + len(r.running) > job.kv_tokens:
                sample = r.running.pop()
                self.line.insert(0, sample)
                self.out.preemptions += 1
            seconds = job.iteration_s(len(r.running), sum(self.context(s) for s in r.running))
            for s in r.running:
                if s.fresh and s.generated == 0:
                    seconds += job.prefill_s
                elif s.fresh and s.recompute:
                    seconds += job.recompute_s_per_token * self.context(s)
                s.fresh = False
            r.iterating = True
            r.until = self.now + seconds
