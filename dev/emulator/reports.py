"""Which trainer pod says what: one real ``rljob_runtime.Reporter`` for each pod, the one of rank 0 speaking for all.

Rank 0 stays where it is as long as its pod takes part; when that pod goes, the next by name starts a new process, whose
counters begin at zero and which says the version that it resumed from, as a real trainer would.
"""

from __future__ import annotations

from prometheus_client.exposition import generate_latest

from dev.emulator.plant import Plant
from rljob_runtime import Reporter


class TrainerReports:
    """The reporters of a plant's trainer pods."""

    def __init__(self, plant: Plant) -> None:
        """Follow ``plant``."""
        self._plant = plant
        self._reporters: dict[str, Reporter] = {}
        self._rank_0: str | None = None

    def follow(self) -> None:
        """Let reporters come and go with the pods, and pass on what the trainer acknowledged."""
        trainer = self._plant.trainer
        self._reporters = {pod: r for pod, r in self._reporters.items() if pod in trainer.ready}
        candidates = trainer.members or trainer.ready
        if self._rank_0 not in candidates:
            if self._rank_0 in self._reporters:
                self._reporters[self._rank_0] = Reporter(main=False)
            self._rank_0 = min(candidates, default=None)
            self._plant.reports = None
            if self._rank_0 is not None:
                reporter = Reporter()
                reporter.resumed(trainer.version)
                self._reporters[self._rank_0] = reporter
                self._plant.reports = reporter
        for pod in trainer.ready:
            reporter = self._reporters.setdefault(pod, Reporter(main=False))
            if pod in trainer.acknowledged:
                reporter.acknowledged(trainer.acknowledged[pod])

    def page(self, pod: str) -> bytes | None:
        """The metrics of a trainer pod, None if it is not ready."""
        reporter = self._reporters.get(pod)
        return None if reporter is None else generate_latest(reporter.registry)
