"""From metrics as they were recorded to what a diagnosis explains: pure functions over series, wherever these came from.

Recorded scrapes, a dump of a range query and a live Prometheus all end as series of points, so that one set of rules holds for all. A
counter that falls started anew, and what it shows afterwards is growth. An engine whose requests run while it makes no token is
paused, and its gauges are frozen: they are left out rather than believed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rljob_operator.engines import VLLM
from rljob_planner.observation import Observation, Seen

LEAST_FOR_SHARES = 5
"""Scrapes from which the share of them in which samplers ran says how much of the time they did."""
FEW_STEPS = 5.0
"""Steps below which a window that is no whole number of periods tells the period badly."""

RUNNING, WAITING = VLLM.metrics.running, VLLM.metrics.waiting
KV_USAGE, TOKEN_LATENCY = VLLM.metrics.kv_usage, VLLM.metrics.token_latency
(GENERATED,) = VLLM.metrics.generated
ITERATIONS = "vllm:iteration_tokens_total_count"
PREEMPTIONS = "vllm:num_preemptions_total"
LAYOUT = "rljob_layout_generation"
SLEEP_STATE = "vllm:engine_sleep_state"
INFERENCE = ("vllm:request_inference_time_seconds", "vllm:request_decode_time_seconds")

NAMES = (
    "rljob_policy_version",
    "rljob_queue_depth_groups",
    "rljob_inflight_samples",
    "rljob_sample_staleness_versions_sum",
    "rljob_sample_staleness_versions_count",
    "rljob_environment_seconds_sum",
    "rljob_environment_seconds_count",
    "rljob_train_step_seconds_sum",
    "rljob_train_step_seconds_count",
    "rljob_trainer_wait_seconds_total",
    "rljob_weight_sync_seconds_sum",
    "rljob_weight_sync_seconds_count",
    "rljob_trained_samples_total",
    "rljob_trained_tokens_total",
    "rljob_dropped_groups_total",
    "rljob_response_tokens_sum",
    "rljob_response_tokens_count",
    LAYOUT,
    RUNNING,
    WAITING,
    *KV_USAGE,
    *(f"{name}_{part}" for name in TOKEN_LATENCY for part in ("sum", "count")),
    GENERATED,
    ITERATIONS,
    PREEMPTIONS,
    SLEEP_STATE,
    *(f"{name}_{part}" for name in INFERENCE for part in ("sum", "count")),
)
"""What a diagnosis reads; histograms by their sums and counts."""

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Track:
    """One series: the values of a metric of one process, in order of time."""

    name: str
    labels: Mapping[str, str]
    points: Points
    """Pairs of time and value; times are only an order where the recording is not timed."""

    @property
    def process(self) -> tuple[str, str]:
        """Pod and engine; a pod that two scrape configurations reach is one."""
        place = next((self.labels[k] for k in ("pod", "target", "instance") if self.labels.get(k)), "")
        return place, self.labels.get("engine", "")


@dataclass(frozen=True)
class Recording:
    """Series of one job."""

    tracks: tuple[Track, ...]
    timed: bool = True
    """Whether times are seconds."""
    notes: tuple[str, ...] = ()

    @property
    def scrapes(self) -> int:
        """Points of the longest series."""
        return max((len(t.points) for t in self.tracks), default=0)

    @property
    def window_s(self) -> float | None:
        """Seconds between the first point and the last, None if they have no times or there is only one."""
        times = [t for track in self.tracks for t, _ in track.points]
        return max(times) - min(times) if self.timed and times and max(times) > min(times) else None

    def processes(self, *names: str) -> dict[tuple[str, str], Points]:
        """Points by process, under the first of these names that it has; of doubles the longest."""
        found: dict[tuple[str, str], Points] = {}
        for name in names:
            of_name: dict[tuple[str, str], Points] = {}
            for track in self.tracks:
                if track.name == name and len(track.points) > len(of_name.get(track.process, ())):
                    of_name[track.process] = track.points
            found |= {k: v for k, v in of_name.items() if k not in found}
        return found


def growth(points: Points) -> tuple[float, bool]:
    """How much a counter grew, and whether it started anew meanwhile. A single point counts from zero, as its process did."""
    if len(points) == 1:
        return points[0][1], False
    grown, anew = 0.0, False
    for (_, before), (_, after) in pairwise(points):
        anew = anew or after < before
        grown += after - before if after >= before else after
    return grown, anew


def observation(recording: Recording) -> Observation:
    """What a recording shows."""
    return _Reader(recording).read()


class _Reader:
    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.restarts: list[str] = []
        self.notes = list(recording.notes)
        self.frozen = self._frozen()

    def read(self) -> Observation:
        steps, period = self._steps(), self._period()
        trained, iteration = self._grown("rljob_trained_samples_total"), self._ratio(*TOKEN_LATENCY)
        response = self._ratio("rljob_response_tokens")
        single = self.recording.scrapes == 1
        if single:
            self.notes.append("there is one scrape: means are since the processes started, and gauges of that instant")
        if any(len({v for _, v in points}) > 1 for points in self.recording.processes(LAYOUT).values()):
            self.notes.append(
                f"{LAYOUT} changed in the window, so that means are over two layouts: take a window after the move"
            )
        return Observation(
            window_s=self.recording.window_s,
            scrapes=self.recording.scrapes,
            period_s=period,
            train_s=self._ratio("rljob_train_step_seconds"),
            wait_s=self._per(self._grown("rljob_trainer_wait_seconds_total"), steps),
            sync_s=self._ratio("rljob_weight_sync_seconds"),
            environment_s=self._ratio("rljob_environment_seconds"),
            decode_s=self._decode(response, iteration),
            busy=self._busy(),
            queue_groups=self._level("rljob_queue_depth_groups"),
            queue_growth_groups=self._change("rljob_queue_depth_groups"),
            in_flight=self._level("rljob_inflight_samples"),
            running=self._fleet(RUNNING),
            waiting=self._fleet(WAITING),
            kv_usage=self._fleet(*KV_USAGE, mean=True),
            preemptions=self._grown(PREEMPTIONS),
            iteration_s=iteration,
            tokens_per_s=self._rate(self._grown(GENERATED)),
            response_tokens=response,
            samples_per_step=self._per(trained, steps),
            samples_per_s=self._rate(trained),
            staleness=self._ratio("rljob_sample_staleness_versions"),
            dropped_groups=self._grown("rljob_dropped_groups_total"),
            samplers=len({pod for pod, _ in self.recording.processes(RUNNING)}) or None,
            restarts=tuple(dict.fromkeys(self.restarts)),
            notes=tuple(self.notes),
        )

    def _frozen(self) -> set[tuple[str, str]]:
        """Engines whose gauges can't be believed: asleep, or with running requests and no token made."""
        found = set()
        asleep = {
            t.process
            for t in self.recording.tracks
            if t.name == SLEEP_STATE and t.labels.get("sleep_state") == "awake" and t.points[-1][1] == 0
        }
        generated = self.recording.processes(GENERATED)
        for process, points in self.recording.processes(RUNNING).items():
            made = generated.get(process, ())
            stuck = len(made) > 1 and growth(made)[0] == 0 and all(v > 0 for _, v in points)
            if process in asleep or stuck:
                found.add(process)
                why = (
                    "sleeps"
                    if process in asleep
                    else "has running requests and made no token, so it is paused or stuck"
                )
                self.notes.append(f"sampler {process[0] or 'engine'} {why}: its gauges are frozen and left out")
        return found

    def _grown(self, *names: str) -> Seen | None:
        """Growth of a counter over all processes."""
        processes = self.recording.processes(*names)
        if not processes:
            return None
        total = 0.0
        for points in processes.values():
            grown, anew = growth(points)
            total += grown
            if anew:
                self.restarts.append(names[0])
        return Seen(total, f"increase of {self._name(*names)}")

    def _ratio(self, *names: str) -> Seen | None:
        """Mean of a histogram's observations in the window, None where there were none."""
        total = self._grown(*(f"{n}_sum" for n in names))
        count = self._grown(*(f"{n}_count" for n in names))
        if total is None or count is None or count.value <= 0:
            return None
        return Seen(total.value / count.value, f"{self._name(*(f'{n}_sum' for n in names))} over its count")

    def _name(self, *names: str) -> str:
        """The first of these names that is there."""
        there = {t.name for t in self.recording.tracks}
        return next((n for n in names if n in there), names[0])

    @staticmethod
    def _per(part: Seen | None, steps: Seen | None) -> Seen | None:
        if part is None or steps is None or steps.value <= 0:
            return None
        return Seen(part.value / steps.value, f"{part.metric} over {steps.metric}")

    def _rate(self, part: Seen | None) -> Seen | None:
        window_s = self.recording.window_s
        return None if part is None or not window_s else Seen(part.value / window_s, f"{part.metric} a second")

    def _steps(self) -> Seen | None:
        """Steps that ended in the window."""
        counted = self._grown("rljob_train_step_seconds_count")
        if counted is not None:
            return counted
        name = "rljob_policy_version"
        versions = [points for points in self.recording.processes(name).values() if len(points) > 1]
        if not versions:
            return None
        # A version falls where a trainer goes back to a checkpoint; the steps before it were made all the same.
        made = math.fsum(max(0.0, b - a) for points in versions for (_, a), (_, b) in pairwise(points))
        return Seen(made, f"increase of {name}")

    def _period(self) -> Seen | None:
        """Mean seconds between two published versions: between the first change that was seen and the last, where there are two."""
        from rljob_operator.answers import steps_and_period
        from rljob_operator.prometheus import Series

        window_s = self.recording.window_s
        if not window_s:
            return None
        versions = [
            Series({"pod": place}, points)
            for (place, _), points in self.recording.processes("rljob_policy_version").items()
        ]
        steps, period = steps_and_period(versions)
        if period is not None:
            return Seen(period, "time between changes of rljob_policy_version")
        if not steps:
            grown = self._grown("rljob_train_step_seconds_count") if self.recording.scrapes > 1 else None
            steps = None if grown is None else round(grown.value)
        if not steps:
            return None
        if steps < FEW_STEPS:
            self.notes.append(
                f"only {steps} steps ended in {window_s:.0f} s, so that the period may be off by a factor of {1 + 1 / steps:.2g}: "
                "record over more of them"
            )
        return Seen(window_s / steps, f"{window_s:.0f} s over {steps} versions")

    def _level(self, name: str) -> Seen | None:
        """Mean of a gauge of the job over the scrapes, whichever process reports it."""
        processes = self.recording.processes(name)
        values = [v for points in processes.values() for _, v in points]
        return None if not values else Seen(math.fsum(values) / len(values), f"mean of {name}")

    def _change(self, name: str) -> Seen | None:
        points = sorted(p for each in self.recording.processes(name).values() for p in each)
        if len(points) < LEAST_FOR_SHARES:
            return None
        third = max(1, len(points) // 3)
        early = math.fsum(v for _, v in points[:third]) / third
        late = math.fsum(v for _, v in points[-third:]) / third
        return Seen(late - early, f"last third of {name} less its first")

    def _fleet(self, *names: str, mean: bool = False) -> Seen | None:
        """A gauge over all engines whose gauges can be believed; None if there is one that can't, or none at all."""
        processes = self.recording.processes(*names)
        if not processes or self.frozen & processes.keys():
            return None
        parts = [math.fsum(v for _, v in points) / len(points) for points in processes.values()]
        total = math.fsum(parts)
        how = "mean" if mean else "sum"
        return Seen(total / len(parts) if mean else total, f"{how} over samplers of {self._name(*names)}")

    def _busy(self) -> Seen | None:
        """Share of time in which engines have something to run: steps times their length, or the scrapes in which requests ran."""
        iterations = self.recording.processes(ITERATIONS)
        latency = self._ratio(*TOKEN_LATENCY)
        if iterations and latency is not None and self.recording.window_s:
            shares = []
            for points in iterations.values():
                spent_s = points[-1][0] - points[0][0]
                if spent_s > 0:
                    shares.append(min(1.0, growth(points)[0] * latency.value / spent_s))
            if shares:
                return Seen(math.fsum(shares) / len(shares), f"{ITERATIONS} × {latency.metric}")
        running = self.recording.processes(RUNNING)
        seen = [v > 0 for points in running.values() for _, v in points]
        if self.recording.scrapes < LEAST_FOR_SHARES or not seen or self.frozen & running.keys():
            return None
        return Seen(sum(seen) / len(seen), f"share of scrapes with {RUNNING} above 0")

    def _decode(self, response: Seen | None, iteration: Seen | None) -> Seen | None:
        """Seconds of a sample on samplers: all requests' time over finished samples, of which each may have made several requests."""
        spent = self._grown(*(f"{n}_sum" for n in INFERENCE))
        samples = self._grown("rljob_response_tokens_count")
        if spent is not None and spent.value > 0 and samples is not None and samples.value > 0:
            return Seen(
                spent.value / samples.value, f"{self._name(*(f'{n}_sum' for n in INFERENCE))} over finished samples"
            )
        each = self._ratio(*INFERENCE)
        if each is not None:
            return each
        if response is None or iteration is None:
            return None
        return Seen(response.value * iteration.value, f"{response.metric} × {iteration.metric}")


def tracks_of(
    scrapes: Sequence[tuple[float, Sequence[tuple[str, Mapping[str, str], float]]]], target: str
) -> list[Track]:
    """Series from scrapes of one target, each a time and its samples (name, labels, value); only what a diagnosis reads."""
    wanted = set(NAMES)
    points: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = {}
    for time, samples in scrapes:
        for name, labels, value in samples:
            if name in wanted:
                points.setdefault((name, tuple(sorted(labels.items()))), []).append((time, value))
    return [
        Track(name, dict(labels) | ({"target": target} if target else {}), tuple(series))
        for (name, labels), series in points.items()
    ]
