"""``rljob pause`` and ``rljob resume``: what they edit, what they say first, what they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rljob_operator.cli import app
from rljob_operator.overview import MODE_BEFORE_PAUSE
from tests.unit.rljob_api import RLJobApi, serving
from tests.unit.rljob_objects import condition, move, running

Json = dict[str, Any]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RLJobApi]:
    with serving(tmp_path, monkeypatch) as found:
        found.reacts = operator
        yield found


def operator(api: RLJobApi, job: Json) -> None:
    """Suspends and resumes as the operator does, in two looks."""
    name, generation = job["metadata"]["name"], job["metadata"]["generation"]
    if job["spec"].get("suspend"):
        suspending = condition(
            "Ready", "False", "Suspending", "GPUs are freed in order. It waits for samplers to drain"
        )
        api.status(name, observedGeneration=generation, phase="Suspended", conditions=[suspending])
        api.status(name, conditions=[condition("Ready", "False", "Suspended")], observed={"gpusHeld": 0})
    else:
        api.status(
            name,
            observedGeneration=generation,
            phase="Starting",
            conditions=[condition("Ready", "False", "PodsNotReady")],
        )
        api.status(name, phase="Running", conditions=[condition("Ready", "True", "AllReady")])


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_pause_says_what_it_frees_and_waits_until_it_is_free(api: RLJobApi) -> None:
    api.put(running())
    result = run("pause", "math", "--yes")
    assert result.exit_code == 0, result.stderr
    assert (
        "Pausing rljob/math frees 16 GPUs: samplers drain (at most 15m), the trainer writes a checkpoint"
        in result.stdout
    )
    assert "brings back 12×1 samplers + 1×4 trainers" in result.stdout
    assert result.stdout.splitlines()[-1] == "rljob/math: all GPUs are free"
    assert api.patches == [{"spec": {"suspend": True}}]
    # What a person sets is his.
    assert api.managers == ["rljob"]
    again = run("pause", "math")
    assert again.exit_code == 0
    assert "is paused already" in again.stdout
    assert len(api.patches) == 1


def test_nobody_who_could_be_asked_means_no(api: RLJobApi) -> None:
    api.put(running(phase="Rebalancing", rebalance=move()))
    result = run("pause", "math")
    assert result.exit_code == 2
    assert "The move to 8×1 samplers + 2×4 trainers, in Drain, is given up." in result.stdout
    assert "nobody is there to be asked: add --yes" in result.stderr
    assert api.patches == []


@pytest.mark.parametrize(("answer", "patches"), [(True, 1), (False, 0)])
def test_whoever_is_there_is_asked(api: RLJobApi, monkeypatch: pytest.MonkeyPatch, answer: bool, patches: int) -> None:
    from rljob_operator.cli import pause

    api.put(running())
    monkeypatch.setattr(pause, "_confirmed", lambda name: answer)
    assert run("pause", "math", "--no-wait").exit_code == 0
    assert len(api.patches) == patches


def test_resume_brings_it_back_and_waits(api: RLJobApi) -> None:
    api.put(running())
    run("pause", "math", "--yes")
    result = run("resume", "math")
    assert result.exit_code == 0, result.stderr
    assert "resumed, 12×1 samplers + 1×4 trainers come back" in result.stdout
    assert result.stdout.splitlines()[-1] == "rljob/math: Running"
    assert api.patches[-1] == {"spec": {"suspend": False}}
    assert "is not paused" in run("resume", "math").stdout


def test_only_the_rebalancing_may_be_paused_and_comes_back_as_it_was(api: RLJobApi) -> None:
    api.put(running(phase="Rebalancing", rebalance=move("Grow")))
    result = run("pause", "math", "--rebalancing-only")
    assert "runs on with 12×1 samplers + 1×4 trainers" in result.stdout
    assert "goes on to its end, since pods have gone or come for it" in result.stdout
    job = api.jobs["math"]
    assert job["spec"]["rebalance"]["mode"] == "Recommend"
    assert job["metadata"]["annotations"] == {MODE_BEFORE_PAUSE: "Auto"}
    assert "mode Recommend, rebalancing paused" in run("status", "math").stdout
    assert "nothing to pause" in run("pause", "math", "--rebalancing-only").stdout
    result = run("resume", "math")
    assert "rebalance.mode is Auto again" in result.stdout
    assert api.jobs["math"]["spec"]["rebalance"]["mode"] == "Auto"
    assert api.jobs["math"]["metadata"]["annotations"] == {}


def test_a_mode_that_somebody_set_since_stays(api: RLJobApi) -> None:
    api.put(running())
    run("pause", "math", "--rebalancing-only")
    api.patch("math", {"spec": {"rebalance": {"mode": "Initial"}}})
    assert run("resume", "math").exit_code == 0
    assert api.jobs["math"]["spec"]["rebalance"]["mode"] == "Initial"
    assert api.jobs["math"]["metadata"]["annotations"] == {}


def test_what_cannot_be_paused_or_is_undone_meanwhile(api: RLJobApi) -> None:
    api.put(running(phase="Complete"))
    result = run("pause", "math", "--yes")
    assert (result.exit_code, "the run is complete" in result.stderr) == (2, True)

    def undone(api: RLJobApi, job: Json) -> None:
        if job["spec"].get("suspend"):
            api.patch("math", {"spec": {"suspend": False}})

    api.put(running())
    api.reacts = undone
    result = run("pause", "math", "--yes")
    assert result.exit_code == 4
    assert "somebody resumed it" in result.stderr
