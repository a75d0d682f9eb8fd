"""Diagnoses of the job emulator, whose plant is no model of ours: a run that is bound by one side, then by the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.emulator.exposition import sampler_page
from dev.emulator.plant import Plant
from dev.emulator.reports import TrainerReports
from rljob_operator.evidence import observation
from rljob_operator.recordings import read_recording
from rljob_planner.advise import Bound
from rljob_planner.diagnose import Diagnosis, diagnose
from tests.unit.emulator_job import layout, plant, truth

SCRAPE_S = 5.0


def recorded(folder: Path, job: Plant, scrapes: int = 30) -> Diagnosis:
    """Runs the plant, scrapes its pods as Prometheus would, and explains what was scraped."""
    reports = TrainerReports(job)
    reports.follow()
    for _ in range(400):
        job.advance(0.1)
    for number in range(scrapes):
        for _ in range(round(SCRAPE_S / 0.1)):
            job.advance(0.1)
        pages = {pod: (reports.page(pod) or b"").decode() for pod in ("t-0",)}
        pages |= {pod.name: sampler_page(pod, 0, "m") for pod in job.fleet.pods}
        for pod, text in pages.items():
            (folder / pod).mkdir(parents=True, exist_ok=True)
            (folder / pod / f"{number}.txt").write_text(text, encoding="utf-8")
    return diagnose(observation(read_recording([folder], SCRAPE_S)), samples_per_prompt=4)


def share(found: Diagnosis, name: str) -> float:
    value = next(t.share for t in found.terms if t.name == name)
    assert value is not None
    return value


def test_slow_samplers_are_found_out(tmp_path: Path) -> None:
    # 16 samples of 100 tokens at 10 ms on two samplers of 16 slots; a step of 0.2 s waits for them most of the time.
    found = recorded(tmp_path, plant(tr=truth(train_s=0.2), lay=layout(cap=16)))
    assert found.bound is Bound.SAMPLERS
    assert found.sure
    assert share(found, "wait") > 0.6
    assert share(found, "train") == pytest.approx(0.2 / (found.period_s or 1), rel=0.1)


def test_a_slow_trainer_is_found_out(tmp_path: Path) -> None:
    found = recorded(tmp_path, plant(tr=truth(train_s=5.0)))
    assert found.bound is Bound.TRAINERS
    assert share(found, "train") > 0.9
    assert share(found, "wait") < 0.05
