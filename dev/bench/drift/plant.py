"""One RL job as a pure object in its own time: told of pods and layouts, it says what it did and what its metrics would show.

It knows nothing of the operator, the cluster or a policy. Samplers that are ready take nothing until the trainer has taken
them into its groups at a step boundary; a draining one gets nothing new; what a killed one ran starts over. The
trainer follows a layout at its next boundary, and stands still for ``regroup`` seconds where its members change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dev.bench.drift import core, state
from dev.bench.drift.state import World
from dev.bench.drift.traces import Run
from dev.bench.drift.truth import Laws, law_by_step
from rljob_planner.api.spec import Bound, Overflow
from rljob_runtime.reporter import RESPONSE_TOKENS_BUCKETS

BOUNDS = {Bound.NONE: state.NO_BOUND, Bound.ADMISSION: state.ADMISSION, Bound.HOLD: state.HOLD, Bound.DROP: state.DROP}
MOST_GROUPS = 1 << 16
"""Groups that may be in flight or wait: more in a queue without a capacity means that it grows without end."""

EDGES = tuple(float(edge) for edge in RESPONSE_TOKENS_BUCKETS if edge != float("inf"))
"""Upper edges of the histogram of responses in tokens: those that jobs report with."""


class PlantError(ValueError):
    """A job that cannot be run to its end."""


@dataclass(frozen=True)
class Wanted:
    """A layout as the trainer sees it."""

    generation: int
    trainers: int
    """Trainer replicas from the next boundary on."""
    samplers: frozenset[str]
    """Samplers that take part from the next boundary on."""
    draining: frozenset[str]
    """Pods that get nothing new, at once; trainer pods that leave."""
    in_flight: int
    """Cap in samples, at once."""


@dataclass(frozen=True)
class Engine:
    """Counters of one sampler since it came."""

    running: int
    resident: int
    running_s: float
    kv_s: float
    latency_s: float
    tokens: float


@dataclass(frozen=True)
class Record:
    """What happened at each published version: arrays over versions."""

    published_s: NDArray[np.float64]
    step_s: NDArray[np.float64]
    wait_s: NDArray[np.float64]
    staleness: NDArray[np.int64]
    """[version, staleness]: trained samples."""
    tokens: NDArray[np.float64]
    """Response tokens of the batch."""

    @property
    def periods_s(self) -> NDArray[np.float64]:
        """Seconds between versions; the first from the start."""
        return np.diff(self.published_s, prepend=0.0)


class Plant:
    """The job. Times in seconds since its start."""

    def __init__(self, run: Run, laws: Laws, *, most_replicas: int, most_in_flight: int) -> None:
        """At time 0, with neither pods nor a layout; room for so many sampler pods at once and samples in flight."""
        self.run, self.laws = run, laws
        self._world = _new_world(run, laws, most_replicas, most_in_flight)
        self._places: dict[str, int] = {}
        self._came = 0
        self._ready_trainers: tuple[str, ...] = ()
        self._members: tuple[str, ...] = ()
        self.in_force: Wanted | None = None
        """The layout that the trainer follows."""
        self.seen: Wanted | None = None
        """The layout seen last."""
        self.acknowledged: dict[str, int] = {}
        """Generation that each trainer pod has acknowledged."""
        self.boundaries: list[float] = []
        """When layouts were adopted, for the record."""

    # --- what the world says ---------------------------------------------------------------------------------------------------

    def set_samplers(self, ready: Iterable[str]) -> None:
        """The sampler pods whose engines run. Those that are gone lose what they ran."""
        w, wished = self._world, list(dict.fromkeys(ready))
        for name in [name for name in self._places if name not in wished]:
            core.kill(w, self._places.pop(name))
        for name in wished:
            if name not in self._places:
                self._places[name] = self._add()
        core.mark_slow(w)
        self._direct()

    def _add(self) -> int:
        w = self._world
        free = np.flatnonzero(w.alive[: w.i[state.REPLICAS]] == 0)
        if not len(free):
            raise PlantError(f"more than {w.i[state.REPLICAS]} sampler pods at once")
        place = int(free[0])
        w.alive[place], w.slow[place], w.iteration[place] = 1, 1.0, 0
        w.ready_s[place], w.order[place], w.next_s[place] = self.now_s, self._came, np.inf
        for counter in (w.running_s, w.kv_s, w.latency_s, w.tokens, w.debt_s, w.joining_debt_s):
            counter[place] = 0.0
        self._came += 1
        return place

    def set_trainers(self, ready: Iterable[str]) -> None:
        """The trainer pods that are ready. A member that goes away stops the step under way, which is done again."""
        w = self._world
        self._ready_trainers = tuple(sorted(dict.fromkeys(ready)))
        self._members = tuple(name for name in self._members if name in self._ready_trainers)
        self.acknowledged = {name: g for name, g in self.acknowledged.items() if name in self._ready_trainers}
        w.i[state.MEMBERS] = len(self._members)
        if (self.in_force is not None and w.i[state.TRAINER] == state.STOPPED) or (
            self.in_force is not None and len(self._members) < w.i[state.TRAINERS]
        ):
            w.i[state.WANT_BOUNDARY] = 1
        if self.in_force is not None and any(name not in self.acknowledged for name in self._ready_trainers):
            w.i[state.WANT_BOUNDARY] = 1

    def see(self, wanted: Wanted) -> None:
        """The layout file changed: cap and draining hold at once, the rest from the trainer's next boundary on."""
        if wanted == self.seen:
            return
        self.seen = wanted
        self._world.i[state.CAP] = wanted.in_flight
        self._world.i[state.WANT_BOUNDARY] = 1
        self._direct()

    def _direct(self) -> None:
        """Which samplers may start samples."""
        self._world.taking[:] = 0
        if self.in_force is None or self.seen is None:
            return
        for name, place in self._places.items():
            joined = name in self.in_force.samplers
            self._world.taking[place] = int(joined and name not in self.seen.draining)

    def _boundary(self) -> None:
        """A step boundary: the trainer follows the layout seen last, with the pods that are there."""
        w, first = self._world, self.in_force is None
        if self.seen is None:
            w.i[state.WANT_BOUNDARY] = 0
            return
        changed_layout = self.in_force != self.seen
        self.in_force = self.seen
        self._direct()
        wished = self.in_force.trainers
        order = [*self._members, *(name for name in self._ready_trainers if name not in self._members)]
        order = [n for n in order if n not in self.seen.draining] + [n for n in order if n in self.seen.draining]
        members = tuple(order[:wished])
        for name in self._ready_trainers:
            self.acknowledged[name] = self.in_force.generation
        changed = set(members) != set(self._members) or wished != w.i[state.TRAINERS]
        stopped = w.i[state.TRAINER] == state.STOPPED
        self._members = members
        w.i[state.TRAINERS], w.i[state.MEMBERS] = wished, len(members)
        w.i[state.WANT_BOUNDARY] = 0
        if changed_layout:
            self.boundaries.append(self.now_s)
        if len(members) < wished or wished < 1:
            self._wait_over()
            w.i[state.TRAINER] = state.STOPPED
        elif first:
            w.i[state.TRAINER] = state.WAITING
            w.x[state.WAIT_FROM] = self.now_s
        elif changed or stopped:
            self._wait_over()
            w.i[state.TRAINER] = state.REGROUPING
            w.x[state.TRAINER_END] = self.now_s + self.run.trace.costs.regroup

    def _wait_over(self) -> None:
        w = self._world
        if w.i[state.TRAINER] == state.WAITING:
            waited = self.now_s - w.x[state.WAIT_FROM]
            w.x[state.WAIT_S] += waited
            w.x[state.WAIT_TOTAL] += waited
            w.x[state.WAIT_FROM] = self.now_s

    # --- time ------------------------------------------------------------------------------------------------------------------

    def advance(self, until_s: float) -> None:
        """Go on until then, or until the last version is published."""
        while self.now_s < until_s and not self.complete:
            why = core.advance(self._world, float(until_s))
            if why == state.BOUNDARY:
                self._boundary()
            elif why == state.NO_ROOM:
                raise PlantError(
                    "the queue of complete groups grows without end, since nothing bounds it and samplers outrun the trainer: "
                    "write job.staleness.bound: admission, or job.queue.capacity"
                )
            else:
                return

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return float(self._world.x[state.NOW])

    @property
    def version(self) -> int:
        """The policy version published last."""
        return int(self._world.i[state.VERSION])

    @property
    def complete(self) -> bool:
        """Whether the last version is published."""
        return bool(self._world.i[state.TRAINER] == state.COMPLETE)

    # --- what it shows ---------------------------------------------------------------------------------------------------------

    @property
    def samplers(self) -> tuple[str, ...]:
        """The sampler pods, oldest first."""
        return tuple(sorted(self._places, key=lambda name: int(self._world.order[self._places[name]])))

    def running(self, name: str) -> int:
        """Samples that run or start on a pod."""
        place = self._places[name]
        return int(self._world.n[place] + self._world.joining[place])

    def engine(self, name: str) -> Engine:
        """The counters of a pod."""
        w, r = self._world, self._places[name]
        return Engine(
            running=self.running(name),
            resident=int(w.resident[r] + w.joining_tokens[r]),
            running_s=float(w.running_s[r]),
            kv_s=float(w.kv_s[r]),
            latency_s=float(w.latency_s[r]),
            tokens=float(w.tokens[r]),
        )

    @property
    def queued(self) -> int:
        """Complete groups that wait."""
        return int(self._world.i[state.QUEUED])

    @property
    def waiting(self) -> int:
        """Samples that wait for a slot."""
        return int(self._world.i[state.LINE])

    @property
    def in_flight(self) -> int:
        """Samples submitted and not finished."""
        return int(self._world.i[state.IN_FLIGHT])

    @property
    def dropped(self) -> int:
        """Groups discarded so far."""
        return int(self._world.i[state.DROPPED])

    @property
    def lost_tokens(self) -> float:
        """Tokens that were generated on pods which went away before the sample was finished."""
        return float(self._world.x[state.LOST_TOKENS])

    @property
    def waited_s(self) -> float:
        """Seconds in which the trainer waited for samples, so far."""
        w = self._world
        now = self.now_s - float(w.x[state.WAIT_FROM]) if w.i[state.TRAINER] == state.WAITING else 0.0
        return float(w.x[state.WAIT_TOTAL]) + now

    @property
    def trained_s(self) -> float:
        """Seconds of training steps, so far."""
        return float(self._world.x[state.TRAIN_TOTAL])

    @property
    def halted_s(self) -> float:
        """Seconds in which the trainer stood still for a change of its members, so far."""
        return float(self._world.x[state.HALTED_S])

    @property
    def lengths(self) -> tuple[NDArray[np.float64], float]:
        """Finished responses by bin of ``edges_tokens`` so far, and the sum of their tokens."""
        return self._world.lengths.copy(), float(self._world.x[state.LENGTH_SUM])

    @property
    def edges_tokens(self) -> tuple[float, ...]:
        """Upper edges of the bins of ``lengths`` in tokens, but for the last, which ends where responses are cut."""
        return tuple(float(edge) for edge in self._world.edges)

    @property
    def turns(self) -> tuple[float, float]:
        """Seconds in environments of all turns that began so far, and their number."""
        return float(self._world.x[state.TURN_SUM]), float(self._world.x[state.TURN_COUNT])

    @property
    def means(self) -> tuple[float, float]:
        """Mean queue in groups and mean samples in flight since the start."""
        w, now = self._world, max(self.now_s, 1e-9)
        return float(w.x[state.QUEUE_INTEGRAL]) / now, float(w.x[state.IN_FLIGHT_INTEGRAL]) / now

    def record(self) -> Record:
        """What happened so far."""
        w, n = self._world, self.version
        return Record(
            w.published_s[:n].copy(),
            w.step_s[:n].copy(),
            w.wait_s[:n].copy(),
            w.staleness[:n].copy(),
            w.trained_tokens[:n].copy(),
        )

    def start(self, samplers: Sequence[str], trainers: Sequence[str], in_flight: int, generation: int = 1) -> None:
        """All pods ready and one layout in force from now on."""
        self.set_samplers(samplers)
        self.set_trainers(trainers)
        self.see(Wanted(generation, len(trainers), frozenset(samplers), frozenset(), in_flight))


def _new_world(run: Run, laws: Laws, most_replicas: int, most_in_flight: int) -> World:
    spec, steps = run.spec, run.steps
    group = spec.workload.samples_per_prompt
    samples = max(most_in_flight, group) + group
    slots = min(laws.max_running, samples)
    queue = spec.queue
    in_flight_groups = samples // group + 1
    bounded = spec.staleness.bound is Bound.ADMISSION or queue is not None
    waiting = MOST_GROUPS
    if bounded:
        ahead = (spec.staleness.max + 2) * spec.workload.prompts_per_step
        waiting = max(ahead, (queue.capacity if queue else 0) + in_flight_groups) + spec.workload.prompts_per_step
    groups = in_flight_groups + waiting
    mu, sigma = law_by_step(run)
    edges = [edge for edge in EDGES if edge < run.cap_tokens]
    whole = np.zeros(state.INTS, dtype=np.int64)
    whole[[state.REPLICAS, state.GROUP_SIZE, state.BATCH_GROUPS]] = most_replicas, group, spec.workload.prompts_per_step
    whole[[state.PROMPT, state.MAX_RUNNING, state.KV_TOKENS]] = spec.workload.prompt_tokens.mean, slots, laws.kv_tokens
    whole[[state.STEPS, state.BOUND, state.MAX_STALENESS]] = steps, BOUNDS[spec.staleness.bound], spec.staleness.max
    whole[state.CAPACITY] = 0 if queue is None else queue.capacity
    whole[state.BLOCKS] = int(queue is not None and queue.overflow is Overflow.BLOCK)
    whole[[state.TURNS, state.SEED, state.MAX_TOKENS]] = run.turns, run.trace.seed, run.cap_tokens
    whole[[state.TRAINER, state.FREE_SAMPLES, state.FREE_GROUPS]] = state.STOPPED, samples, groups
    seconds = np.zeros(state.FLOATS)
    seconds[[state.TRAINER_END, state.CORRELATION]] = np.inf, run.trace.group_correlation
    seconds[[state.SYNC_S, state.PREFILL_S, state.RECOMPUTE_S]] = (
        laws.weight_sync_s,
        laws.prefill_s,
        laws.recompute_s_per_token,
    )
    seconds[[state.PER_CONTEXT_S, state.TRAIN_NOISE, state.TURN_CV]] = (
        laws.per_context_token_s,
        run.trace.step_noise,
        run.turn_cv,
    )

    def ints(*shape: int) -> NDArray[np.int64]:
        return np.zeros(shape, dtype=np.int64)

    def floats(*shape: int) -> NDArray[np.float64]:
        return np.zeros(shape)

    r, s, g = most_replicas, samples, groups
    return World(
        i=whole, x=seconds, alive=ints(r), taking=ints(r), slow=np.ones(r), n=ints(r), joining=ints(r), resident=ints(r),
        joining_tokens=ints(r), iteration=ints(r), at_s=floats(r), next_s=np.full(r, np.inf), jump=ints(r), debt_s=floats(r),
        joining_debt_s=floats(r), ready_s=floats(r), heap_end=ints(r, slots + 1), heap_sample=ints(r, slots + 1),
        running_s=floats(r), kv_s=floats(r), latency_s=floats(r), tokens=floats(r), counted_s=floats(r), order=ints(r),
        s_group=ints(s), s_index=ints(s), s_length=ints(s), s_target=ints(s), s_done=ints(s), s_version=ints(s), s_turn=ints(s),
        s_sequence=ints(s), free_samples=np.arange(s)[::-1].copy(), line=ints(s + 1), away_s=floats(s), away_sample=ints(s),
        g_left=ints(g), g_tokens=ints(g), g_squares=floats(g), g_oldest=ints(g), g_versions=ints(g, group), g_number=ints(g),
        free_groups=np.arange(g)[::-1].copy(), queue=ints(g + 1), unfinished=ints(steps + 2),
        iteration_s=laws.iteration_s[: slots + 1].copy(), train_cost=laws.train, mu=mu, sigma=sigma, turn_s=run.turn_s,
        slowdown=run.slowdown, published_s=floats(steps), step_s=floats(steps), wait_s=floats(steps),
        staleness=ints(steps, state.STALENESS_BINS), trained_tokens=floats(steps), edges=np.array(edges),
        lengths=floats(len(edges) + 1),
    )  # fmt: skip
