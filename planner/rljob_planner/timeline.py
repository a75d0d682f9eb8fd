"""The timeline of one simulated run: when each sample ran where, when each step trained, what waited.

A simulation reports means; a timeline shows what they are means of. It is recorded only on request, and as little as the rest
follows from: stays of samples on replicas, the fate of each group, the training steps. How many samples run and how many
groups wait at any instant is counted from these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rljob_planner._state import World

Table = NDArray[np.void]

_SAMPLES = np.dtype(
    [("group", "i8"), ("index", "i8"), ("replica", "i8"), ("start_s", "f8"), ("end_s", "f8"), ("tokens", "i8"), ("version", "i8")]
)  # fmt: skip
_STEPS = np.dtype([("begin_s", "f8"), ("end_s", "f8"), ("published_s", "f8")])
_RUNNING = np.dtype([("time_s", "f8"), ("replica", "i8"), ("running", "i8")])
_QUEUE = np.dtype([("time_s", "f8"), ("groups", "i8")])
_GROUPS = np.dtype([("group", "i8"), ("completed_s", "f8"), ("left_s", "f8"), ("trained_version", "i8")])


@dataclass(frozen=True)
class Timeline:
    """What happened in a simulated run from its first second, the warm-up included, as tables (structured arrays)."""

    samples: Table
    """One row a stay of a sample on a replica: ``group``, ``index``, ``replica``, ``start_s`` (it takes its slot), ``end_s`` (it
    gives it back: finished, preempted, or the run is over), ``tokens`` that it gained meanwhile, and the policy ``version``
    that the sample belongs to. By ``end_s``."""
    steps: Table
    """One row a training step, by the version that it trained from: ``begin_s``, ``end_s``, ``published_s``."""
    groups: Table
    """Groups that were completed: ``group``, ``completed_s``, ``left_s`` (when the trainer took or dropped it, 0 if never), and
    ``trained_version``, the version that the step which consumed them trained from, −1 where none did. By number of the group."""
    end_s: float
    """Until when the tables are complete: the end of the run, or earlier where there was too much to record."""
    complete: bool
    """Whether ``end_s`` is the end of the run."""

    # Counted when somebody looks: a search records hundreds of runs for the sake of their samples and groups alone.

    @cached_property
    def running(self) -> Table:
        """``running`` samples of ``replica`` from ``time_s`` on; by time."""
        return _running(self.samples)

    @cached_property
    def queue(self) -> Table:
        """Complete ``groups`` that wait for the trainer from ``time_s`` on; by time."""
        return _queue(self.groups)


def recorded(world: World) -> Timeline:
    """The timeline of a run that has ended."""
    st = world.counters[0]
    finished_s = float(world.published_s[int(st["version"]) - 1])
    stays = world.stays[: int(st["stays"])]
    complete = len(stays) < len(world.stays) and int(st["opened"]) <= len(world.fates)
    end_s = finished_s
    if len(stays) == len(world.stays):
        end_s = min(end_s, float(stays["end_s"][-1]))
    if int(st["opened"]) > len(world.fates):
        end_s = min(end_s, float(world.fates["completed_s"].max()))
    samples = np.empty(len(stays), _SAMPLES)
    for name in _SAMPLES.names or ():
        samples[name] = stays[name]
    steps = np.empty(int(st["version"]), _STEPS)
    steps["begin_s"], steps["end_s"] = world.steps["begin_s"][: len(steps)], world.steps["end_s"][: len(steps)]
    steps["published_s"] = world.published_s[: len(steps)]
    done = np.flatnonzero(world.fates["completed_s"] > 0)
    fates = world.fates[done]
    groups = np.empty(len(done), _GROUPS)
    groups["group"], groups["completed_s"], groups["left_s"] = done, fates["completed_s"], fates["left_s"]
    groups["trained_version"] = fates["left_as"] - 1
    return Timeline(samples, steps, groups, end_s, complete)


def _running(samples: Table) -> Table:
    """The number of running samples of each replica at its change points."""
    times = np.concatenate([samples["start_s"], samples["end_s"]])
    replicas = np.tile(samples["replica"], 2)
    change = np.repeat(np.array([1, -1]), len(samples))
    order = np.lexsort((times, replicas))
    times, replicas, change = times[order], replicas[order], change[order]
    running = np.cumsum(change)  # every stay ends, so a replica's own count begins at 0
    last = np.append((times[1:] != times[:-1]) | (replicas[1:] != replicas[:-1]), True)[: len(times)]
    table = np.empty(int(last.sum()), _RUNNING)
    table["time_s"], table["replica"], table["running"] = times[last], replicas[last], running[last]
    return table[np.argsort(table["time_s"], kind="stable")]


def _queue(groups: Table) -> Table:
    """The number of complete groups that wait at its change points."""
    left = groups["left_s"][groups["left_s"] > 0]
    times = np.concatenate([groups["completed_s"], left])
    change = np.concatenate([np.ones(len(groups), np.int64), -np.ones(len(left), np.int64)])
    order = np.argsort(times, kind="stable")
    times, waiting = times[order], np.cumsum(change[order])
    last = np.append(times[1:] != times[:-1], True)[: len(times)]
    table = np.empty(int(last.sum()), _QUEUE)
    table["time_s"], table["groups"] = times[last], waiting[last]
    return table
