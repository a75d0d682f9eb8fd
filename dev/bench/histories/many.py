"""Runs many histories, in several processes: a module of its own, since fresh processes have to be able to import it."""

from __future__ import annotations

import gc
import logging
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass

from dev.bench.histories.history import Verdict, drawn, run
from dev.bench.histories.shape import Shape


@dataclass(frozen=True)
class Outcome:
    """One history's verdict."""

    seed: int
    verdict: Verdict


def seed_of(seed: int, index: int) -> int:
    """The seed of one history of a run; no two runs of different seeds share one, up to a million histories."""
    return seed * 1_000_000 + index


def _one(task: tuple[int, str | None]) -> Outcome:
    seed, mutant = task
    logging.getLogger("rljob_operator").setLevel(logging.CRITICAL)
    # A history leaves a world of cycles behind and collects none while it runs: once in a while is enough.
    gc.disable()
    if seed % 20 == 0:
        gc.collect()
    return Outcome(seed, run(Shape.drawn(seed), drawn(seed), mutant))


def outcomes(seeds: range, mutant: str | None, processes: int) -> Iterator[Outcome]:
    """Runs a history for each seed, as they come."""
    tasks = ((seed, mutant) for seed in seeds)
    if processes == 1:
        yield from map(_one, tasks)
        return
    # Fresh processes: what is imported and patched here is nothing that a history should know.
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=500) as pool:
        yield from pool.imap_unordered(_one, tasks, chunksize=4)
