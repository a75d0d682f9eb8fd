"""One emulated job beside a real cluster: plant, reporters, volume, and the plant that never moves.

Still without a clock and without I/O of its own: it is told what the cluster shows and how late it is, so that a test can
drive it as the process does.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from dev.emulator.cluster import LayoutVolume, PodState
from dev.emulator.config import EmulatorConfig, Faults
from dev.emulator.exposition import sampler_page, shares
from dev.emulator.plant import TICK_S, Plant, StepRecord, Workload
from dev.emulator.reports import TrainerReports
from rljob_runtime import Layout, LayoutPhase

_log = logging.getLogger(__name__)

MAX_CATCH_UP_S = 5.0
"""Most time made up at once after the machine was too busy; more is left out for both plants alike."""

LIVE, SHADOW = "live", "shadow"


class Emulation:
    """An emulated job."""

    def __init__(
        self,
        config: EmulatorConfig,
        workload: Workload,
        model_name: str,
        *,
        shadow: bool = False,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Emulate ``workload``; ``log`` gets one line of JSON for each published version of both plants."""
        self._config, self._model_name, self._log = config, model_name, log
        self.plant = self._plant(workload, LIVE)
        """The plant that the operator sees."""
        self.shadow = self._plant(workload, SHADOW) if shadow else None
        """The same luck under the first split for ever; None if not wished."""
        self._reports = TrainerReports(self.plant)
        self._volume = LayoutVolume(config.layout_lag_s, config.untouched_lag_s)
        self._text: str | None = None
        self._pods: Mapping[str, PodState] = {}
        self._first_seen: float | None = None
        self._started_at: float | None = None
        self._ticks = 0
        self.faults = config.faults

    def _plant(self, workload: Workload, name: str) -> Plant:
        plant = Plant(workload, self._config.truth, self._config.lengths, self._config.seed)
        plant.on_step = lambda record: self._log(_line(name, record))
        return plant

    @property
    def faults(self) -> Faults:
        """What goes wrong now."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        self._volume.forced_lag_s = faults.layout_lag_s
        self.plant.trainer.acknowledge_after_s = faults.acknowledge_after_s
        self.plant.environment_s = faults.environment_s
        self.plant.fleet.slowness = faults.slow_samplers

    @property
    def started(self) -> bool:
        """Whether all pods came together and the loop runs."""
        return self._started_at is not None

    def observe(self, pods: Mapping[str, PodState], layout_text: str | None, now: float) -> None:
        """Take in what the cluster shows at ``now`` (seconds on any steady clock) and let the plants go on up to it."""
        if layout_text is not None and layout_text != self._text:
            self._text = layout_text
            self._volume.wrote(layout_text, now)
        if pods != self._pods:
            self._pods = dict(pods)
            self.plant.set_pods(self._ready("sampler"), self._ready("trainer"))
        layout = self._volume.poll(max((pod.touched for pod in pods.values()), default=-1), now)
        if layout is not None:
            _log.info("layout generation %d (%s) arrived", layout.generation, layout.phase)
            self.plant.see_layout(layout)
        self._reports.follow()
        if self._started_at is None:
            self._start(now)
        else:
            self._advance(now)
        self._reports.follow()

    def _ready(self, role: str) -> dict[str, bool]:
        return {name: pod.ready for name, pod in self._pods.items() if pod.role == role}

    def _start(self, now: float) -> None:
        layout = self.plant.layout
        if layout is None:
            return
        if self._first_seen is None:
            self._first_seen = now
        samplers, trainers = self._ready("sampler"), self._ready("trainer")
        whole = (
            layout.phase is LayoutPhase.STEADY
            and sum(samplers.values()) == layout.samplers.replicas == len(layout.samplers.endpoints)
            and sum(trainers.values()) == layout.trainers.replicas
        )
        late = now - self._first_seen >= self._config.start_timeout_s and any(samplers.values())
        if not whole and not (late and sum(trainers.values()) >= layout.trainers.replicas):
            return
        _log.info("the loop starts with %d samplers and %d trainers", sum(samplers.values()), sum(trainers.values()))
        self._started_at = now
        if self.shadow is not None:
            self.shadow.set_pods(samplers, trainers)
            self.shadow.see_layout(layout)

    def _advance(self, now: float) -> None:
        assert self._started_at is not None
        behind = int((now - self._started_at) / TICK_S) - self._ticks
        excess = behind - round(MAX_CATCH_UP_S / TICK_S)
        if excess > 0:
            _log.warning("the machine is too busy: %.1f s left out", excess * TICK_S)
            self._started_at += excess * TICK_S
            behind -= excess
        for _ in range(behind):
            self.plant.advance(TICK_S)
            if self.shadow is not None:
                self.shadow.advance(TICK_S)
        self._ticks += max(0, behind)

    def page(self, pod: str) -> bytes | None:
        """What a pod answers to a scrape; None if it does not."""
        state = self._pods.get(pod)
        if state is None or not state.ready or state.role in self.faults.silent_roles:
            return None
        if state.role == "trainer":
            return self._reports.page(pod)
        sampler = self.plant.fleet.get(pod)
        if sampler is None:
            return None
        taking = self.plant.taking()
        waiting = dict(zip(taking, shares(len(self.plant.waiting), len(taking)), strict=True)) if taking else {}
        return sampler_page(sampler, waiting.get(pod, 0), self._model_name).encode()

    def state(self) -> dict[str, Any]:
        """What both plants are doing, for people."""
        return {
            "started": self.started,
            "faults": dataclasses.asdict(self.faults),
            LIVE: _state(self.plant),
            SHADOW: None if self.shadow is None else _state(self.shadow),
        }


def _line(plant: str, record: StepRecord) -> str:
    return json.dumps({"plant": plant, **dataclasses.asdict(record)})


def _state(plant: Plant) -> dict[str, Any]:
    layout: Layout | None = plant.layout
    return {
        "t": round(plant.t, 3),
        "version": plant.trainer.version,
        "trainer": plant.trainer.state.name.lower(),
        "generation": min(plant.trainer.acknowledged.values(), default=None),
        "layout": None if layout is None else layout.generation,
        "samplers": len(plant.taking()),
        "trainers": None if plant.trainer.in_force is None else plant.trainer.in_force.trainers.replicas,
        "running": plant.fleet.running,
        "inFlight": plant.in_flight,
        "queue": len(plant.ready_groups),
        "dropped": plant.dropped,
        "lengthNow": round(plant.length_now, 1),
        "complete": plant.complete,
    }
