"""The samplers: continuous batching on every pod, all pods in one set of arrays.

What runs is a handful of numpy arrays with one entry for a running sample, whatever pod it runs on; a tick is a few passes over
them. That keeps a fleet of sixty replicas with sixty-four samples each far below the tick's own length, so that the emulator can run in real
time beside a control plane on two cores, and in virtual time a thousand times faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dev.emulator.lengths import noise
from dev.emulator.truth import Truth

WATERMARK = 0.01
"""Share of the KV room that admission leaves free, as engines do, lest every new sample preempts another."""

ITERATION_EDGES_S = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
"""Bucket edges of vLLM's inter-token latency, in seconds."""


class Waiting(NamedTuple):
    """A sample that was submitted and has no slot."""

    group: int
    sample: int
    length: int
    """Tokens it will have."""
    generated: float
    """Tokens it has: more than none if it was preempted."""
    version: int | None
    """Policy version of its first token; None if it has none."""
    submitted_at: float
    """Seconds since the start."""


class Finished(NamedTuple):
    """A sample that is done."""

    group: int
    length: int
    version: int


@dataclass
class Histogram:
    """Counts under ascending edges, the last one infinite."""

    edges: tuple[float, ...]
    counts: NDArray[np.float64] = field(init=False)
    total: float = 0.0
    """Sum of all observations."""

    def __post_init__(self) -> None:
        """Start empty."""
        self.counts = np.zeros(len(self.edges) + 1)

    def add(self, value: float, weight: float = 1.0) -> None:
        """Count ``weight`` observations of ``value``."""
        self.counts[int(np.searchsorted(self.edges, value))] += weight
        self.total += value * weight


def length_edges(max_tokens: int) -> tuple[float, ...]:
    """Bucket edges of vLLM's token histograms: 1-2-5 up to the longest model context."""
    return tuple(float(m * 10**e) for e in range(8) for m in (1, 2, 5) if m * 10**e <= max_tokens)


TTFT_EDGES_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
"""Bucket edges of vLLM's time to first token, in seconds."""


@dataclass
class SamplerPod:
    """One sampler pod and what its engine has counted since it started."""

    name: str
    gpus: int
    kv_tokens: int
    lengths: Histogram
    ready: bool = False
    serving_from: float = 0.0
    """Seconds since the start at which its start-up ends; before, it takes no samples."""
    blocked_until: float = 0.0
    """Seconds since the start before which it decodes nothing, for a weight sync."""
    debt_s: float = 0.0
    """Prefill that it still has to do, in seconds."""
    running: int = 0
    resident: float = 0.0
    """Tokens in its KV cache."""
    generation_tokens: float = 0.0
    prompt_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    started: int = 0
    latency: Histogram = field(default_factory=lambda: Histogram(ITERATION_EDGES_S))
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_EDGES_S))

    @property
    def kv_usage(self) -> float:
        """Share of the KV room in use."""
        return min(1.0, self.resident / self.kv_tokens) if self.kv_tokens else 1.0


class Fleet:
    """All sampler pods of a job."""

    def __init__(self, truth: Truth, prompt_tokens: int, max_tokens: int, seed: int) -> None:
        """Start without pods."""
        self._truth = truth
        self._prompt = prompt_tokens
        self._edges = length_edges(prompt_tokens + max_tokens)
        self._seed = seed
        self._pods: list[SamplerPod] = []
        self._order = 0
        self.lost_tokens = 0.0
        """Tokens that were generated on pods that went away before their samples finished."""
        self.slowness: Mapping[str, float] = {}
        """Pods, by name, whose iterations take so many times as long as those of the others."""
        # One entry for each running sample, oldest first.
        self._pod = np.zeros(0, dtype=np.int64)
        self._group = np.zeros(0, dtype=np.int64)
        self._sample = np.zeros(0, dtype=np.int64)
        self._length = np.zeros(0, dtype=np.int64)
        self._generated = np.zeros(0, dtype=np.float64)
        self._version = np.zeros(0, dtype=np.int64)

    @property
    def pods(self) -> tuple[SamplerPod, ...]:
        """The pods, in the order in which they came."""
        return tuple(self._pods)

    @property
    def running(self) -> int:
        """Samples that run."""
        return len(self._pod)

    def get(self, name: str) -> SamplerPod | None:
        """A pod by name."""
        return next((pod for pod in self._pods if pod.name == name), None)

    def oldest_version(self) -> int | None:
        """The smallest version of a running sample, None if none runs."""
        return int(self._version.min()) if len(self._version) else None

    def add(self, name: str, gpus: int, now: float) -> None:
        """A pod is ready: it decodes from the end of its start-up on."""
        pod = SamplerPod(name, gpus, self._truth.decode.kv_tokens(gpus), Histogram(self._edges), ready=True)
        pod.serving_from = now + self._truth.sampler_start_s
        self._pods.append(pod)

    def remove(self, name: str, now: float) -> list[Waiting]:
        """A pod is gone: what ran there comes back without its tokens, oldest first."""
        index = next(i for i, pod in enumerate(self._pods) if pod.name == name)
        lost = self._pod == index
        back = [
            Waiting(int(g), int(s), int(length), 0.0, None, now)
            for g, s, length in zip(self._group[lost], self._sample[lost], self._length[lost], strict=True)
        ]
        self.lost_tokens += float(self._generated[lost].sum())
        self._keep(~lost)
        self._pod[self._pod > index] -= 1
        del self._pods[index]
        return back

    def pause(self, until: float) -> None:
        """All pods take new weights until then: one token of each running sample comes that much later."""
        for pod in self._pods:
            pod.blocked_until = max(pod.blocked_until, until)

    def admit(
        self, waiting: deque[Waiting], eligible: Iterable[str], max_running: int, version: int, now: float
    ) -> int:
        """Start waiting samples, first come first served, each on the pod with the fewest running; returns how many.

        A sample needs a slot and KV room for what it has and one token more. The first that fits nowhere holds up the rest.
        """
        names = set(eligible)
        indices = [i for i, pod in enumerate(self._pods) if pod.name in names and now >= pod.serving_from]
        if not waiting or not indices:
            return 0
        pods = [self._pods[i] for i in indices]
        count = np.array([pod.running for pod in pods], dtype=np.float64)
        resident = np.array([pod.resident for pod in pods])
        room = np.array([pod.kv_tokens * (1.0 - WATERMARK) for pod in pods])
        chosen: list[tuple[int, Waiting]] = []
        while waiting:
            head = waiting[0]
            tokens = self._prompt + head.generated
            fits = (count < max_running) & (resident + tokens + 1 <= room)
            if not fits.any():
                break
            k = int(np.argmin(np.where(fits, count, np.inf)))
            waiting.popleft()
            count[k] += 1
            resident[k] += tokens
            chosen.append((k, head))
            pod = pods[k]
            decode = self._truth.decode
            fresh = self._prompt * decode.uncached_prompt_share + head.generated
            pod.debt_s += fresh * decode.prefill_per_token_s / pod.gpus / decode.speed
            if head.version is None:
                pod.prompt_tokens += self._prompt
                pod.started += 1
                pod.ttft.add(max(0.0, now - head.submitted_at) + max(0.0, pod.blocked_until - now) + pod.debt_s)
        for k, pod in enumerate(pods):
            pod.running, pod.resident = int(count[k]), float(resident[k])
        if chosen:
            self._append(
                [indices[k] for k, _ in chosen],
                [w for _, w in chosen],
                [version if w.version is None else w.version for _, w in chosen],
            )
        return len(chosen)

    def decode(self, waiting: deque[Waiting], now: float, dt_s: float, tick: int) -> list[Finished]:
        """Decode for ``dt_s`` seconds; returns what finished. What is preempted goes to the head of ``waiting``."""
        if not self._pods:
            return []
        count, resident = self._sums()
        gpus = np.array([pod.gpus for pod in self._pods], dtype=np.float64)
        blocked = np.array([pod.blocked_until for pod in self._pods])
        debt = np.array([pod.debt_s for pod in self._pods])
        free = np.clip(now + dt_s - np.maximum(blocked, now), 0.0, dt_s)
        prefill = np.minimum(debt, free)
        free -= prefill
        iteration = self._truth.decode.iteration_s(count, resident, gpus)
        if self._truth.decode.noise:
            iteration = iteration * noise(self._truth.decode.noise, self._seed, 7, tick, np.arange(len(gpus)))
        if self.slowness:
            iteration = iteration * np.array([self.slowness.get(pod.name, 1.0) for pod in self._pods])
        steps = free / iteration
        if self._preempt(waiting, count, resident, steps):
            count, resident = self._sums()
        before = self._generated
        gain = np.minimum(steps[self._pod], self._length - before)
        self._generated = before + gain
        tokens = np.bincount(self._pod, weights=gain, minlength=len(gpus))
        # A sample of n tokens has n − 1 gaps between them.
        gaps = np.bincount(
            self._pod, weights=np.maximum(self._generated, 1.0) - np.maximum(before, 1.0), minlength=len(gpus)
        )
        done = self._length - self._generated < 1e-9
        finished = [
            Finished(int(g), int(length), int(v))
            for g, length, v in zip(self._group[done], self._length[done], self._version[done], strict=True)
        ]
        for index, length in zip(self._pod[done], self._length[done], strict=True):
            pod = self._pods[index]
            pod.finished += 1
            pod.lengths.add(float(length))
        self._keep(~done)
        count, resident = self._sums()
        paused = np.clip(np.minimum(blocked, now + dt_s) - now, 0.0, dt_s) + prefill
        for i, pod in enumerate(self._pods):
            pod.debt_s -= float(prefill[i])
            pod.generation_tokens += float(tokens[i])
            if gaps[i] > 0:
                pod.latency.add(float(iteration[i]), float(gaps[i]))
            # A pause falls between two tokens of every sample that runs through it.
            pod.latency.total += float(paused[i] * count[i])
            pod.running, pod.resident = int(count[i]), float(resident[i])
        return finished

    def _preempt(
        self,
        waiting: deque[Waiting],
        count: NDArray[np.float64],
        resident: NDArray[np.float64],
        steps: NDArray[np.float64],
    ) -> bool:
        """Take the newest samples off pods whose KV cache would overflow in this tick; they keep tokens and version."""
        room = np.array([pod.kv_tokens for pod in self._pods], dtype=np.float64)
        over = np.flatnonzero((resident + count * steps > room) & (count > 1))
        if not len(over):
            return False
        out = np.zeros(len(self._pod), dtype=bool)
        for i in over:
            mine = np.flatnonzero(self._pod == i)
            sizes = self._prompt + self._generated[mine] + steps[i]
            # Newest last: keep the longest prefix that fits, and at least one sample.
            kept = max(1, int(np.searchsorted(np.cumsum(sizes), room[i], side="right")))
            out[mine[kept:]] = True
            self._pods[i].preemptions += len(mine) - kept
        for j in np.flatnonzero(out)[::-1]:
            waiting.appendleft(
                Waiting(
                    int(self._group[j]), int(self._sample[j]), int(self._length[j]),
                    float(self._generated[j]), int(self._version[j]), 0.0,
                )
            )  # fmt: skip
        self._keep(~out)
        return True

    def _sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Running samples and resident tokens of each pod."""
        n = len(self._pods)
        count = np.bincount(self._pod, minlength=n).astype(np.float64)
        return count, np.bincount(self._pod, weights=self._generated, minlength=n) + self._prompt * count

    def _keep(self, mask: NDArray[np.bool_]) -> None:
        self._pod, self._group, self._sample = self._pod[mask], self._group[mask], self._sample[mask]
        self._length, self._generated, self._version = self._length[mask], self._generated[mask], self._version[mask]

    def _append(self, pods: list[int], samples: list[Waiting], versions: list[int]) -> None:
        self._pod = np.append(self._pod, np.array(pods, dtype=np.int64))
        self._group = np.append(self._group, np.array([w.group for w in samples], dtype=np.int64))
        self._sample = np.append(self._sample, np.array([w.sample for w in samples], dtype=np.int64))
        self._length = np.append(self._length, np.array([w.length for w in samples], dtype=np.int64))
        self._generated = np.append(self._generated, np.array([w.generated for w in samples], dtype=np.float64))
        self._version = np.append(self._version, np.array(versions, dtype=np.int64))
