"""Moves by hand: what is refused and with which words, that a request is carried out once, and that Auto does not undo it at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dev.virtual.cluster import NAMESPACE
from rljob_operator import byhand
from rljob_operator.byhand import ANNOTATION, MoveRequest, Unreadable, objection, read
from rljob_operator.decide import decide
from rljob_operator.passes import Pass
from rljob_operator.rebalance import timestamp
from rljob_planner.api.evidence import MeasuredMove
from rljob_planner.api.requests import MoveRequestStatus, RequestOutcome
from rljob_planner.api.spec import RLJobSpec
from rljob_planner.api.status import DecisionCode, MoveHistory, Phase, RLJobStatus
from rljob_planner.errors import PlanningError
from rljob_planner.search import Plan
from tests.operator import scene as scenes
from tests.operator.scene import Scene, scene
from tests.operator.situations import NOW_S, FakePlanner, situation, spec, split

Json = dict[str, Any]


def annotate(s: Scene, text: str | None) -> None:
    s.cluster.store.merge("rljobs", NAMESPACE, "run", {"metadata": {"annotations": {ANNOTATION: text}}})


def ask(s: Scene, samplers: int, trainers: int, name: str = "first", age_s: float = 0.0, **fields: Any) -> None:
    at = timestamp(s.clock.now_s - age_s)
    annotate(s, json.dumps({"id": name, "samplers": samplers, "trainers": trainers, "at": at, "by": "anna", **fields}))


def answers(s: Scene) -> dict[str, tuple[str, str]]:
    requests = s.status.get("moves", {}).get("requests", ())
    return {r["id"]: (r["outcome"], r["message"]) for r in requests}


def outcome(s: Scene, name: str = "first") -> str | None:
    return answers(s).get(name, (None, ""))[0]


def ended(s: Scene, name: str = "first", within_s: float = 600.0) -> tuple[str, str]:
    s.until(lambda: outcome(s, name) not in (None, "Accepted"), within_s)
    return answers(s)[name]


# Carried out.


@pytest.mark.parametrize("mode", ["Auto", "Recommend", "Initial"])
def test_a_move_by_hand_is_made_in_every_mode_by_the_transaction(mode: str) -> None:
    with scene(rebalance={"mode": mode, "interval": "10s"}) as s:
        ask(s, 4, 3)
        # An annotation changes no generation: it has to wake the job all the same.
        s.until(lambda: s.move is not None, within_s=2.0)
        assert (s.going["cause"], s.going["request"], s.going["phase"]) == ("ByHand", "first", "Announce")
        assert outcome(s) == "Accepted"
        assert "by hand, as anna asked" in s.status["summary"]
        s.settled(4, 3)
        assert ended(s)[0] == "Done"
        assert s.codes.index("MoveByHand") < s.codes.index("MoveCommitted")
        assert s.status["plan"]["split"]["trainers"]["replicas"] == 3
        assert s.ledger.most_held[s.uid] <= 16


def test_a_move_by_hand_needs_no_metrics_and_stays_without_them() -> None:
    with scene(prometheus=False) as s:
        ask(s, 8, 1)
        s.settled(8, 1)
        # The job has room for more, and nobody takes it: a person has decided.
        s.clock.run_for(120.0)
        s.settled(8, 1)


def test_an_answered_request_is_never_carried_out_again() -> None:
    with scene() as s:
        ask(s, 4, 3)
        s.settled(4, 3)
        first = s.cluster.job("run")
        assert first is not None
        text = first["metadata"]["annotations"][ANNOTATION]
        ask(s, 8, 2, "second")
        s.settled(8, 2)
        for _ in range(2):
            s.restart()
            s.clock.run_for(60.0)
        # Not even one that was put there again, after so many others that its answer is forgotten.
        for i in range(byhand.KEPT + 1):
            ask(s, 99, 9, f"much-{i}")
            assert ended(s, f"much-{i}")[0] == "Refused"
        annotate(s, text)
        assert "a move has ended at" in ended(s)[1]
        s.settled(8, 2)
        assert s.status["moves"]["moves"] == 2
        assert len(s.status["moves"]["requests"]) == byhand.KEPT


@pytest.mark.parametrize("phase", ["Announce", "Drain", "Shrink", "Grow", "Verify"])
def test_a_restart_in_any_phase_makes_one_move_of_a_request(phase: str) -> None:
    with scene() as s:
        ask(s, 4, 3)
        s.until(lambda: s.in_phase(phase))
        name = s.going["id"]
        s.restart(lambda: s.clock.run_for(20.0))
        s.clock.run_for(0.5)
        assert s.move is None or s.going["id"] == name
        s.settled(4, 3)
        assert ended(s)[0] == "Done"
        assert s.status["moves"]["moves"] == 1


def test_what_is_in_force_already_is_done() -> None:
    with scene() as s:
        ask(s, 8, 2)
        assert ended(s) == ("Done", "8×1 samplers + 2×4 trainers is in force already")
        assert s.status["moves"]["moves"] == 0


# Ended otherwise.


def test_a_request_that_is_taken_back_ends_its_move_while_no_pod_is_touched() -> None:
    with scene() as s:
        s.drains_s = None
        ask(s, 4, 3)
        s.until(lambda: s.in_phase("Drain"))
        annotate(s, None)
        s.settled(8, 2)
        assert ended(s)[0] == "RolledBack"
        assert "the request for it was taken back" in ended(s)[1]


def test_a_request_that_is_taken_back_too_late_is_carried_out() -> None:
    with scene() as s:
        ask(s, 4, 3)
        s.until(lambda: s.in_phase("Grow"))
        annotate(s, None)
        s.settled(4, 3)
        assert ended(s)[0] == "Done"


def test_a_move_by_hand_rolls_back_as_any_other() -> None:
    with scene() as s:
        s.starts_s = lambda pod: 1e9 if pod["metadata"]["labels"]["rljob.dev/role"] == "trainer" else 5.0
        ask(s, 4, 3)
        s.until(lambda: s.going.get("rollingBack"))
        assert outcome(s) == "Accepted"
        s.settled(8, 2)
        how, why = ended(s)
        assert how == "RolledBack"
        assert "Grow missed its deadline" in why
        # The pause after a roll-back is for the operator's own ideas.
        s.starts_s = lambda _pod: 5.0
        ask(s, 4, 3, "again")
        s.settled(4, 3)


def test_suspending_ends_a_move_by_hand() -> None:
    with scene() as s:
        s.drains_s = None
        ask(s, 4, 3)
        s.until(lambda: s.in_phase("Drain"))
        s.edit(suspend=True)
        assert ended(s) == ("RolledBack", "spec.suspend ended it")
        ask(s, 4, 3, "meanwhile")
        assert "rljob resume NAME" in ended(s, "meanwhile")[1]


def test_the_mode_may_change_under_a_move_by_hand() -> None:
    with scene() as s:
        ask(s, 4, 3)
        s.until(lambda: s.in_phase("Announce"))
        s.edit(rebalance={"mode": "Recommend"})
        s.settled(4, 3)


# Refused.


@pytest.mark.parametrize(
    ("samplers", "trainers", "words"),
    [
        (9, 2, "the split uses 17 GPUs, the budget is 16: with 2 trainers ask for 8 samplers at most"),
        (8, 5, "the split uses 28 GPUs, the budget is 16: ask for another split, or change the spec"),
        (1, 2, "1 samplers are fewer than sampler.minReplicas 2: ask for another split"),
        (7, 1, "7 samplers are more than sampler.maxReplicas 6: with 1 trainer ask for 6 samplers at most"),
    ],
)
def test_what_the_spec_forbids_is_refused_with_what_to_ask_instead(samplers: int, trainers: int, words: str) -> None:
    limits = {"minReplicas": 2} if samplers == 1 else {"maxReplicas": 6} if samplers == 7 else {}
    with scene(sampler=limits) as s:
        before = s.replicas
        ask(s, samplers, trainers)
        how, why = ended(s)
        assert (how, words in why) == ("Refused", True), why
        s.clock.run_for(1.0)
        assert s.events("MoveRefused") == [f"the move that was asked for is refused: {why}"]
        assert s.replicas == before
        # What the operator thinks of the split stays in sight.
        assert "MoveByHand" not in s.codes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "holds no JSON: ask with rljob move"),
        ('{"id": "x", "samplers": 1, "at": "2026-01-01T00:00:00Z"}', "can't be read (trainers: field required)"),
        ('{"id": "x", "samplers": 1, "trainers": 1, "at": "2026-01-01T00:00:00Z", "gpus": 3}', "(gpus: extra inputs"),
        (
            '{"id": "x", "samplers": 0, "trainers": 1, "at": "2026-01-01T00:00:00Z"}',
            "(samplers: input should be greater",
        ),
        ('{"id": "x", "samplers": 1, "trainers": 1, "at": "yesterday"}', "(at: "),
        ("[]", "can't be read (it: "),
        ("[" * 100_000, "holds no JSON"),
        ('{"id": "x", "samplers": 1, "trainers": 1, "at": "0001-01-01T00:00:00"}', "(at: "),
        ('{"id": "x", "samplers": 1, "trainers": 1, "at": "2026-01-01T00:00:00Z", "by": "\\u001b[2J"}', "(by: "),
        ('{"id": "x", "samplers": 1' + 30 * "0" + ', "trainers": 1, "at": "2026-01-01T00:00:00Z"}', "(samplers: "),
        ('{"' + "x" * 5000 + '": 1}', "can't be read ("),
        ('{"\\u001b[2J\\u001b]0;owned\\u0007": 1, "\\u009b2J\\u202e": 2}', "can't be read ("),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_once(text: str, words: str) -> None:
    with scene() as s:
        annotate(s, text)
        s.until(lambda: answers(s))
        s.clock.run_for(60.0)
        ((how, why),) = answers(s).values()
        assert (how, words in why) == ("Refused", True), why
        assert len(s.events("MoveRefused")) == 1
        assert len(why) < 500
        # It is shown in terminals.
        assert why.isprintable()
        # Whatever somebody writes there, passes go on.
        s.judged()


def test_nodes_without_room_and_a_planner_that_knows_better_refuse() -> None:
    with scene() as s:
        strangers = {"metadata": {"namespace": "others", "name": "x"}, "status": {"phase": "Pending", "conditions": []}}
        resources = {"limits": {"nvidia.com/gpu": "4"}}
        ask(s, 4, 2, "fewer")
        s.settled(4, 2)
        s.cluster.store.create(
            "pods", {**strangers, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}}
        )
        s.clock.run_for(5.0)
        ask(s, 8, 2, "more")
        assert "find no place on the nodes as they are" in ended(s, "more")[1]
        s.settled(4, 2)


def test_what_the_planner_finds_impossible_is_refused_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = scenes._plan

    def choosy(job: RLJobSpec, rooms: Any, **options: Any) -> Plan:
        if job.trainer.max_replicas == 1:
            raise PlanningError("NothingFeasible", "one trainer can't hold the model: ask for two")
        return plan(job, rooms, **options)

    monkeypatch.setattr(scenes, "_plan", choosy)
    with scene() as s:
        ask(s, 8, 1)
        assert ended(s)[1].endswith(
            "no way to run 8×1 samplers + 1×4 trainers: one trainer can't hold the model: ask for two"
        )


def test_a_rival_and_pods_that_are_not_ready_refuse() -> None:
    with scene() as s:
        s.rival("run-samplers")
        ask(s, 4, 3)
        assert "kubectl -n rl delete hpa theirs" in ended(s)[1]
        s.rival(None)
        s.starts_s = lambda _pod: 100.0
        s.delete(sorted(s.names("sampler"))[0])
        s.until(lambda: not s.ready)
        ask(s, 4, 3, "second")
        assert "a move begins with whole sides: 7/8 samplers" in ended(s, "second")[1]


def test_another_move_under_way_refuses_and_goes_on() -> None:
    with scene() as s:
        ask(s, 4, 3)
        s.until(lambda: s.in_phase("Drain"))
        ask(s, 8, 1, "second")
        assert "a move to 4×1 samplers + 3×4 trainers is under way" in ended(s, "second")[1]
        s.settled(4, 3)
        assert ended(s)[0] == "Done"


def test_many_refusals_meanwhile_do_not_push_out_the_request_that_is_under_way() -> None:
    with scene() as s:
        s.drains_s = None
        ask(s, 4, 3)
        s.until(lambda: s.in_phase("Drain"))
        for i in range(byhand.KEPT + 2):
            ask(s, 8, 1, f"also-{i}")
            assert ended(s, f"also-{i}", 30.0)[0] == "Refused"
        assert outcome(s) == s.status["moves"]["requests"][0]["outcome"] == "Accepted"
        assert len(answers(s)) == byhand.KEPT + 1
        s.drained_again()
        s.settled(4, 3, 3600.0)
        assert outcome(s) != "Accepted"
        assert len(answers(s)) <= byhand.KEPT + 1


def test_what_another_job_takes_while_the_gain_is_weighed_is_not_promised_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, taken = scenes._plan, False

    def taking(job: RLJobSpec, rooms: Any, **options: Any) -> Plan:
        nonlocal taken
        # The last question before a start is that of the split in force.
        taken = taken or job.sampler.max_replicas == 8
        return plan(job, rooms, **options)

    monkeypatch.setattr(scenes, "_plan", taking)
    monkeypatch.setattr(Pass, "still_holds", lambda *_: not taken)
    with scene() as s:
        ask(s, 4, 3)
        how, why = ended(s)
        assert taken
        assert (how, "another job took what" in why) == ("Refused", True), why
        s.settled(8, 2)
        assert s.status["moves"]["moves"] == 0


def request(**changes: Any) -> MoveRequest:
    found: Json = {"id": "x", "samplers": 40, "trainers": 3, "at": timestamp(NOW_S), **changes}
    return MoveRequest.model_validate(found)


def running(**changes: Any) -> RLJobStatus:
    return RLJobStatus(phase=Phase.RUNNING, split=split(48, 2)).model_copy(update=changes)


@pytest.mark.parametrize(
    ("asked", "job", "status", "words"),
    [
        (request(at=timestamp(NOW_S - 601)), spec(), running(), "it was made 601 s ago"),
        (request(at=timestamp(NOW_S + 601)), spec(), running(), "it was made 601 s ahead"),
        (request(uid="gone"), spec(), running(), "an RLJob that is gone"),
        (request(), spec(), running(phase=Phase.COMPLETE), "the run is complete"),
        (request(), spec(suspend=True), running(), "rljob resume"),
        (request(), spec(), running(split=None), "no split is in force yet"),
        (request(), spec(trainer__resize="fixed"), running(), "trainer.resize is fixed, so that trainers stay 2"),
        (request(), spec(), running(moves=MoveHistory(last_ended_at=timestamp(NOW_S + 1))), "a move has ended at"),
    ],
)
def test_spec_and_status_that_forbid_any_move(
    asked: MoveRequest, job: RLJobSpec, status: RLJobStatus, words: str
) -> None:
    found = objection(job, status, asked, uid="mine", now_s=NOW_S)
    assert found is not None
    assert words in found


def test_nothing_speaks_against_what_is_allowed() -> None:
    assert objection(spec(), running(), request(uid="mine"), uid="mine", now_s=NOW_S) is None
    fixed = spec(trainer__resize="fixed")
    assert objection(fixed, running(), request(samplers=30, trainers=2), uid="mine", now_s=NOW_S) is None


@pytest.mark.parametrize("letter", ["\x1b", "\x7f", "\x9b", "\u202e", "\u2028", "\ud800"])
def test_what_terminals_obey_is_in_no_name(letter: str) -> None:
    text = json.dumps(request().model_dump(mode="json") | {"by": f"anna{letter}"})
    found = read({"annotations": {ANNOTATION: text}})
    assert isinstance(found, Unreadable)
    assert found.why.isprintable()
    assert "(by: " in found.why
    named = read({"annotations": {ANNOTATION: json.dumps(request(by="Анна Müller").model_dump(mode="json"))}})
    assert isinstance(named, MoveRequest)


def test_reading() -> None:
    assert read({}) is None
    assert read({"annotations": {ANNOTATION: ""}}) is None
    good = read({"annotations": {ANNOTATION: json.dumps(request().model_dump(mode="json"))}})
    assert isinstance(good, MoveRequest)
    assert isinstance(read({"annotations": {ANNOTATION: "x"}}), Unreadable)
    # Its name follows from its text, so that another scribble is another request.
    ids = {found.id for found in (read({"annotations": {ANNOTATION: text}}) for text in "xxy") if found is not None}
    assert len(ids) == 2


# What mode Auto does with it.


def test_auto_leaves_the_way_back_closed_even_when_the_decision_is_forgotten() -> None:
    came, at = split(40, 3), timestamp(NOW_S - 1800)
    answer = MoveRequestStatus(
        id="x", samplers=40, trainers=3, at=at, outcome=RequestOutcome.DONE, message="", ended_at=at
    )
    history = MoveHistory(
        last_ended_at=at,
        requests=(answer,),
        measured=MeasuredMove(left=split(48, 2), left_period_seconds=10.0, at=at),
    )
    best = FakePlanner(best=split(48, 2), period=lambda s: 9.0 if s.trainers.replicas == 2 else 10.0)
    here = situation(split=came, moves=history)
    decision = decide(here, best.planner())
    assert decision.code is DecisionCode.COOLDOWN, decision.message
    later = decide(situation(split=came, moves=history, now_s=NOW_S + 1801), best.planner())
    assert later.code is DecisionCode.MOVE, later.message
    # On the same way it may go on at once.
    onwards = FakePlanner(best=split(32, 4), period=lambda s: 9.0 if s.trainers.replicas == 4 else 10.0)
    assert decide(here, onwards.planner()).code is DecisionCode.MOVE
