"""Whoever's measurements are packaged is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DATA = ROOT / "planner" / "rljob_planner" / "data"
NOTICE = (ROOT / "NOTICE").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", ["hardware.yaml", "training.yaml", "latency-curves.yaml", "models.yaml"])
def test_every_repository_that_data_come_from_is_named(file: str) -> None:
    text = (DATA / file).read_text(encoding="utf-8")
    named = set(re.findall(r"\b([\w.-]+/[\w.-]+)@[0-9a-f]{7}", text))
    assert named
    assert sorted(name for name in named if name not in NOTICE) == []


def test_the_license_of_copied_rows_is_there() -> None:
    sources = yaml.safe_load((DATA / "latency-curves.yaml").read_text(encoding="utf-8"))["sources"]
    assert "Apache-2.0" in sources["silicon"]
    assert "silicon_sample.csv" in NOTICE
    assert "Permission is hereby granted" in NOTICE
