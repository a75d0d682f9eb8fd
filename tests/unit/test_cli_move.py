"""``rljob move``: what it asks for, how it follows the move, and how it ends where the operator says no."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rljob_operator.byhand import ANNOTATION, MoveRequest
from rljob_operator.cli import app
from rljob_operator.cli import move as command
from tests.unit.rljob_api import RLJobApi, serving
from tests.unit.rljob_objects import AT, decision, move, running, split

Json = dict[str, Any]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RLJobApi]:
    with serving(tmp_path, monkeypatch) as found:
        yield found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["move", *arguments])


def request_of(job: Json) -> MoveRequest:
    return MoveRequest.model_validate_json(job["metadata"]["annotations"][ANNOTATION])


def answering(outcome: str, message: str = "said so") -> Callable[[RLJobApi, Json], None]:
    """An operator that takes a request up and ends it."""

    def operator(api: RLJobApi, job: Json) -> None:
        if ANNOTATION not in (job["metadata"].get("annotations") or {}):
            return
        asked = request_of(job)
        answer = {"id": asked.id, "samplers": asked.samplers, "trainers": asked.trainers, "at": AT}
        if outcome != "Refused":
            under_way = move("Announce", request=asked.id, cause="ByHand")
            accepted = [{**answer, "outcome": "Accepted", "message": "by hand"}]
            api.status("math", phase="Rebalancing", rebalance=under_way, moves={"requests": accepted})
            api.status("math", rebalance={"phase": "Drain", "waitingFor": "samplers to finish"})
        ended = [{**answer, "outcome": outcome, "message": message}]
        done = split(asked.samplers, asked.trainers) if outcome == "Done" else split()
        api.status("math", phase="Running", rebalance=None, split=done, summary="Runs.", moves={"requests": ended})

    return operator


def test_a_move_is_asked_for_and_followed_to_its_end(api: RLJobApi) -> None:
    api.put(running())
    api.reacts = answering("Done")
    result = run("math", "--samplers", "8", "--trainers", "2")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "rljob/math: 12×1 samplers + 1×4 trainers → 8×1 samplers + 2×4 trainers, 16 of 16 GPUs"
    assert "4 samplers are drained, for at most 15m, and go" in lines[1]
    assert "rljob pause math --rebalancing-only keeps the split" in lines[2]
    assert lines[-1] == "rljob/math: done. Runs."
    asked = request_of(api.jobs["math"])
    assert (asked.samplers, asked.trainers, asked.by, asked.uid) == (8, 2, "anna", "uid-math")
    # An annotation and nothing else: what the operator does is the operator's.
    assert [list(patch) for patch in api.patches] == [["metadata"]]
    assert api.managers == ["rljob"]


@pytest.mark.parametrize(("outcome", "words"), [("Refused", "refused: said so"), ("RolledBack", "not done: said so")])
def test_what_the_operator_does_not_do_is_a_failure_with_its_reason(api: RLJobApi, outcome: str, words: str) -> None:
    api.put(running())
    api.reacts = answering(outcome)
    result = run("math", "--samplers", "8", "--trainers", "2")
    assert result.exit_code == 4
    assert words in result.stderr


def test_a_side_that_is_left_out_stays(api: RLJobApi) -> None:
    api.put(running())
    result = run("math", "--samplers", "11", "--no-wait")
    assert result.exit_code == 0
    asked = request_of(api.jobs["math"])
    assert (asked.samplers, asked.trainers) == (11, 1)
    assert f"asked ({asked.id}); rljob status math -w follows it" in result.stdout


def test_what_is_recommended_is_taken(api: RLJobApi) -> None:
    api.put(running(decisions=[decision("RecommendOnly", to=split(8, 2))]))
    assert run("math", "--recommended", "--no-wait").exit_code == 0
    asked = request_of(api.jobs["math"])
    assert (asked.samplers, asked.trainers) == (8, 2)
    api.put(running())
    result = run("math", "--recommended")
    assert result.exit_code == 0
    assert "the split in force is the one that is recommended: 12×1 samplers" in result.stdout
    assert "is in force already" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "say where to: --samplers N and --trainers M in replicas, or --recommended"),
        (("--recommended", "--samplers", "3"), "say where to"),
        (("--samplers", "3", "--timeout", "soon"), "--timeout: "),
        (("--samplers", "0"), "greater than or equal to 1"),
    ],
)
def test_mistakes_are_told(api: RLJobApi, arguments: tuple[str, ...], words: str) -> None:
    api.put(running())
    result = run("math", *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert api.patches == []


def test_what_the_operator_would_refuse_is_not_even_asked(api: RLJobApi) -> None:
    api.put(running())
    result = run("math", "--trainers", "2")
    assert result.exit_code == 4
    assert "the split uses 20 GPUs, the budget is 16: with 2 trainers ask for 8 samplers at most" in result.stderr
    api.put(running(phase="Rebalancing", rebalance=move()))
    assert "a move to 8×1 samplers + 2×4 trainers is under way" in run("math", "--samplers", "4").stderr
    api.put(running(split=None))
    assert "nothing is recommended yet" in run("math", "--recommended").stderr
    assert api.patches == []


def test_a_request_that_nobody_answers_is_taken_back(api: RLJobApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ANSWER_WITHIN_S", 0.05)
    api.put(running())
    result = run("math", "--samplers", "11")
    assert result.exit_code == 4
    assert "no operator answered within" in result.stderr
    assert "check that the operator runs" in result.stderr
    assert api.jobs["math"]["metadata"]["annotations"] == {}


def test_looking_may_end_before_the_move(api: RLJobApi) -> None:
    api.put(running())
    result = run("math", "--samplers", "11", "--timeout", "100ms")
    assert result.exit_code == 4
    assert "not done within 100ms; it goes on" in result.stderr
    assert ANNOTATION in api.jobs["math"]["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("under_way", "code", "words"),
    [
        (None, 0, "no move was under way for it"),
        (move("Drain", cause="ByHand"), 0, "the move to 8×1 samplers + 2×4 trainers is given up"),
        (move("Grow", cause="ByHand"), 4, "it goes on to its end, and another one leads back"),
        (move("Drain"), 0, "no move was under way for it"),
    ],
)
def test_a_request_may_be_taken_back(api: RLJobApi, under_way: Json | None, code: int, words: str) -> None:
    job = running(**({} if under_way is None else {"phase": "Rebalancing", "rebalance": under_way}))
    job["metadata"]["annotations"] = {ANNOTATION: json.dumps({"id": "x", "samplers": 8, "trainers": 2, "at": AT})}
    api.put(job)
    result = run("math", "--cancel")
    assert result.exit_code == code
    assert words in result.stdout + result.stderr
    assert api.jobs["math"]["metadata"]["annotations"] == {}
    assert "there is no request to take back" in run("math", "--cancel").stdout
