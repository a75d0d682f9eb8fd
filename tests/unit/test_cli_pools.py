"""``rljob plan`` of a job whose samplers span pools: its nodes are described by pool, or each pool has as many as it may use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_operator.cli import app

SAMPLE = str(Path(__file__).resolve().parents[2] / "crds" / "samples" / "two-pools.yaml")
PLAIN = str(Path(SAMPLE).with_name("math-short.yaml"))


def pools(*options: str) -> dict[str, int]:
    done = CliRunner().invoke(app, ["plan", SAMPLE, "-o", "json", *options])
    assert done.exit_code == 0, done.output
    return {p["name"]: p["replicas"] for p in json.loads(done.stdout)["split"]["samplers"]["pools"]}


def test_without_nodes_each_pool_has_what_it_may_use() -> None:
    assert pools()["near"] == 16


def test_nodes_are_described_by_pool() -> None:
    assert pools("--sampler-nodes", "near=1x8,spot=1x8", "--trainer-nodes", "1x8") == {"near": 8, "spot": 8}


@pytest.mark.parametrize(
    ("file", "options", "words"),
    [
        (SAMPLE, ["--nodes", "5x8"], "say which nodes each has, as in --sampler-nodes near=2x8,spot=2x8"),
        (
            SAMPLE,
            ["--sampler-nodes", "other=1x8", "--trainer-nodes", "2x8"],
            "knows no pool other: its pools are near, spot",
        ),
        (PLAIN, ["--sampler-nodes", "near=1x8", "--trainer-nodes", "1x8"], "it has no sampler.pools"),
    ],
)
def test_nodes_of_no_pool_are_refused_with_a_remedy(file: str, options: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["plan", file, *options])
    assert done.exit_code != 0
    assert words in " ".join(done.output.split())
