"""What the benchmark of drains calls a failure; running it takes the better part of an hour."""

from __future__ import annotations

from typing import Any

import pytest

from dev.bench.drain import failures


def part(**fields: int) -> dict[str, Any]:
    zero = dict.fromkeys(
        ("samplesLost", "samplesCut", "samplesUnanswered", "samplesUncounted", "samplesUnaccounted"), 0
    )
    return {**zero, "samplesCutInLog": fields.get("samplesCut", 0), **fields}


def test_all_well() -> None:
    assert failures(part(), part(samplesCut=7, samplesUnanswered=7)) == []
    assert failures(part(), part(samplesCut=9, samplesUnanswered=7)) == [], (
        "two were sent to servers that did not note them"
    )
    assert failures(part(), None) == []


@pytest.mark.parametrize(
    ("fits", "cuts", "words"),
    [
        (part(samplesLost=1), None, "with time to finish: 1 samples were lost"),
        (part(samplesCut=2), None, "with time to finish: 2 samples were cut"),
        (part(samplesUnanswered=3), None, "3 samples were taken by a server and never answered"),
        (part(samplesUnaccounted=-4), None, "-4 samples are missing from the account"),
        (part(), part(), "nothing was cut: so the count proves nothing"),
        (part(), part(samplesCut=5, samplesUncounted=1), "1 samples were taken and never answered, and not counted"),
        (part(), part(samplesCut=5, samplesCutInLog=4), "counted 5 cut samples, and its log names 4"),
        (part(), part(samplesCut=5, samplesUnanswered=5, samplesLost=1), "with too little time: 1 samples were lost"),
    ],
)
def test_each_failure_is_said(fits: dict[str, Any], cuts: dict[str, Any] | None, words: str) -> None:
    assert any(words in said for said in failures(fits, cuts))
