"""Whole moves, by the operator's own passes in virtual time, and what people and clusters do to them in every phase."""

from __future__ import annotations

from unittest import mock

import pytest

from dev.virtual.cluster import NAMESPACE
from rljob_operator.passes import Pass
from tests.operator import scene as staging
from tests.operator.scene import Json, scene, split

PHASES = ["Announce", "Drain", "Shrink", "Grow", "Verify"]


def test_a_move_walks_through_its_phases_and_is_committed() -> None:
    with scene() as s:
        s.wish = split(12, 1)
        s.until(lambda: s.move)
        s.settled(12, 1)
        assert "MoveCommitted" in s.codes
        for phase in PHASES:
            assert s.events(f"Move{phase}"), phase
        assert s.condition("Rebalancing")["status"] == "False"
        assert s.ledger.most_held[s.uid] <= 16


def test_a_second_move_is_told_phase_by_phase_though_its_words_are_those_of_the_first() -> None:
    with scene() as s:
        for wish, ends in (((12, 1), 1), ((8, 2), 1), ((12, 1), 2)):
            s.wish = split(*wish)
            s.settled(*wish)
            for phase in PHASES[:-1]:
                assert len(s.events(f"Move{phase}")) >= ends, (wish, phase)
        assert len(s.events("MoveStarted")) == 3
        assert len(s.events("MoveShrink")) == 3


def test_pods_that_never_get_ready_turn_the_move_round_and_the_pause_doubles() -> None:
    with scene() as s:
        known = s.names()
        s.starts_s = lambda pod: 5.0 if pod["metadata"]["name"] in known else 1e9
        s.wish = split(12, 1)
        s.until(lambda: s.in_phase("Grow"))
        s.until(lambda: "4 of 12 samplers" in s.going.get("waitingFor", ""))
        s.until(lambda: s.going.get("rollingBack"))
        s.starts_s = lambda _pod: 5.0
        s.until(lambda: s.move is None)
        s.settled(8, 2)
        moves = s.status["moves"]
        assert (moves["failures"], moves["lastOutcome"]) == (1, "RolledBack")
        assert "BackOff" in s.codes or "MoveRolledBack" in s.codes
        assert "the next move starts in 60 s" in next(
            d["message"] for d in s.status["decisions"] if d["code"] == "MoveRolledBack"
        )


def test_a_pod_stuck_in_terminating_is_named_and_the_other_side_waits() -> None:
    with scene() as s:
        s.wish = split(12, 1)
        s.until(lambda: s.in_phase("Drain") or s.in_phase("Shrink"))
        victim = s.going["victims"][0]
        s.cluster.machines.stick(
            next(p["metadata"]["uid"] for p in s.pods("trainer") if p["metadata"]["name"] == victim)
        )
        s.until(lambda: s.in_phase("Shrink") and victim in s.going.get("waitingFor", ""))
        assert len(s.pods("sampler")) == 8
        s.until(lambda: s.condition("Degraded").get("reason") == "MoveStuck" or s.going.get("rollingBack"))
        s.clock.run_for(120)
        assert victim in s.condition("Rebalancing")["message"]
        assert s.condition("Degraded")["reason"] == "MoveStuck"
        assert "--force" in s.condition("Degraded")["message"]
        s.cluster.machines.unstick()
        s.wish = None
        s.settled(8, 2)


@pytest.mark.parametrize("evicted", [False, True])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("whose", ["victim", "other"])
def test_a_pod_that_is_lost_in_any_phase_is_replaced_and_the_move_ends(phase: str, whose: str, evicted: bool) -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase(phase))
        victims = set(s.going["victims"])
        there = s.names("sampler")
        lost = sorted(there & victims or there) if whose == "victim" else sorted(there - victims)
        if evicted:
            s.cluster.machines.evict(NAMESPACE, lost[0])
        else:
            s.delete(lost[0])
        s.until(lambda: s.move is None)
        s.wish = None
        s.settled(4, 3)
        assert s.ledger.most_held[s.uid] <= 16


def test_a_victim_that_is_deleted_before_its_time_is_replaced_among_the_victims() -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase("Drain"))
        first = list(s.going["victims"])
        s.delete(first[0])
        s.until(lambda: s.going.get("victims", first) != first)
        new = (set(s.going["victims"]) - set(first)).pop()
        s.until(lambda: any(new in words for words in s.events("MoveDrain")))
        s.settled(4, 3)
        assert new not in s.names()
        assert not s.events("OtherPodsGone")


def test_a_pod_that_goes_though_it_was_to_stay_is_said_and_what_ran_there_is_counted() -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase("Shrink"))
        stays = sorted(s.names("sampler") - set(s.going["victims"]))[0]
        s.delete(stays)
        s.settled(4, 3)
        said = s.events("OtherPodsGone")
        assert len(said) == 1
        assert stays in said[0]
        assert s.status["moves"]["lostSamples"] == 12


@pytest.mark.parametrize("phase", PHASES)
def test_a_job_suspended_in_mid_move_frees_all_gpus_in_order_and_resumes_with_its_split(phase: str) -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase(phase))
        s.edit(suspend=True)
        s.wish = None
        s.until(lambda: s.condition("Ready").get("reason") == "Suspending")
        s.until(lambda: s.events("MoveGivenUp"))
        s.until(lambda: s.condition("Ready").get("reason") == "Suspended")
        assert s.pods() == []
        assert s.status["phase"] == "Suspended"
        asked = [layout["checkpoint"] for layout in s.layouts]
        assert asked[-1]
        assert not asked[0]
        s.edit(suspend=False)
        s.settled(8, 2)
        assert not s.layouts[-1]["checkpoint"]
        assert s.layouts[-1]["phase"] == "steady"


def test_a_job_whose_pods_are_refused_asks_for_none_once_it_is_suspended() -> None:
    with scene() as s:
        create = s.cluster.store.create

        def refuse(plural: str, obj: Json) -> Json:
            return obj if plural == "pods" else create(plural, obj)

        with mock.patch.object(s.cluster.store, "create", refuse):
            for name in s.names():
                s.delete(name)
            s.until(lambda: not s.pods())
            s.edit(suspend=True)
            s.until(lambda: s.condition("Ready").get("reason") == "Suspended")
            s.until(lambda: not any(s.workload(side)["spec"]["replicas"] for side in ("samplers", "trainers")))


def test_a_suspended_job_says_whom_it_waits_for() -> None:
    with scene() as s:
        s.drains_s = 40.0
        s.edit(suspend=True)
        s.until(lambda: "12 running" in s.condition("Ready")["message"])
        assert len(s.pods()) == 10
        s.acknowledges_s = 30.0
        s.until(lambda: "checkpoint and then acknowledge" in s.condition("Ready")["message"])
        assert len(s.pods()) == 10
        s.until(lambda: not s.pods(), 60)


def test_without_prometheus_a_suspended_job_waits_as_long_as_its_stalest_sample_and_no_longer() -> None:
    with scene(prometheus=False, sampler={"drainTimeout": "4h"}) as s:
        began = s.clock.now_s
        s.edit(suspend=True)
        s.until(lambda: "no metric shows" in s.condition("Ready")["message"])
        s.until(lambda: not s.pods())
        # 90 s for the layout to arrive and 1 + 3 periods of 11 s; then a checkpoint, of which nobody hears either.
        assert 90 + 44 <= s.clock.now_s - began <= 90 + 44 + 90 + 30


@pytest.mark.parametrize("phase", PHASES)
def test_a_job_deleted_in_mid_move_leaves_nothing(phase: str) -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase(phase))
        s.cluster.delete_job("run")
        s.until(lambda: not s.pods())
        assert s.cluster.job("run") is None
        assert s.cluster.store.get("deployments", NAMESPACE, "run-samplers") is None
        s.judged()


def test_a_budget_that_is_cut_does_not_wait_for_the_jobs_word() -> None:
    with scene(sampler={"drainTimeout": "2h"}) as s:
        s.acknowledges_s, s.drains_s = None, 20.0
        s.edit(gpus=12, trainer={"minReplicas": 2})
        began = s.clock.now_s
        s.until(lambda: len(s.pods("sampler")) == 4)
        assert s.clock.now_s - began < 40
        s.settled(4, 2)
        assert s.codes[-1] != "MoveRolledBack"
        assert "SpecChanged" in s.codes


def test_over_budget_each_sampler_goes_as_soon_as_it_runs_nothing() -> None:
    with scene(sampler={"drainTimeout": "2h"}) as s:
        slow: list[str] = []

        def drains(pod: str) -> float:
            return 400.0 if pod in slow else 10.0

        s.drains_one_s = drains
        slow += sorted(s.names("sampler"))
        s.edit(gpus=12, trainer={"minReplicas": 2})
        s.until(lambda: s.in_phase("Drain"))
        last = s.going["victims"][0]
        slow[:] = [last]
        s.drained_again()
        s.until(lambda: len(s.pods("sampler")) == 5)
        assert last in s.names("sampler")
        assert s.in_phase("Drain")
        assert len(s.going["drained"]) == 3
        s.settled(4, 2)
        assert last not in s.names("sampler")
        assert not s.events("OtherPodsGone")


def test_a_budget_that_is_cut_lower_still_in_mid_move_ends_within_it() -> None:
    with scene() as s:
        s.edit(gpus=12)
        s.until(lambda: s.in_phase("Drain"))
        s.edit(gpus=8)
        s.settled(4, 1)
        assert "MoveRolledBack" in s.codes


def test_a_budget_that_is_raised_again_in_mid_move_ends_the_move() -> None:
    with scene() as s:
        s.edit(gpus=8)
        s.until(lambda: s.in_phase("Drain"))
        s.edit(gpus=16)
        s.settled(8, 2)
        assert any("allows the split before it again" in words for words in s.events("MoveGivenUp"))
        assert len(s.pods()) == 10


def test_minima_that_are_raised_in_mid_move_end_the_move() -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase("Drain"))
        s.wish = None
        s.edit(sampler={"minReplicas": 6})
        s.settled(8, 2)
        assert any("minReplicas 6" in words for words in s.events("MoveGivenUp"))


@pytest.mark.parametrize(("phase", "ends"), [("Announce", (8, 2)), ("Drain", (8, 2)), ("Grow", (4, 3))])
def test_a_mode_that_is_switched_in_mid_move_ends_what_has_not_begun(phase: str, ends: tuple[int, int]) -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase(phase))
        s.wish = None
        s.edit(rebalance={"mode": "Recommend"})
        s.settled(*ends)


@pytest.mark.parametrize(("phase", "ends"), [("Drain", (8, 2)), ("Grow", (4, 3))])
def test_trainers_that_become_fixed_in_mid_move_are_not_touched_any_more(phase: str, ends: tuple[int, int]) -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase(phase))
        s.wish = None
        s.edit(trainer={"resize": "fixed"})
        s.settled(*ends)


def test_a_template_that_is_edited_in_mid_move_waits_until_the_pods_that_leave_are_gone() -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase("Drain"))
        before = s.workload("samplers")["spec"]["template"]
        container = {"name": "engine", "image": "example.com/engine:2"}
        s.edit(sampler={"template": {"spec": {"terminationGracePeriodSeconds": 30, "containers": [container]}}})
        s.until(lambda: s.in_phase("Shrink"))
        assert s.workload("samplers")["spec"]["template"] == before
        assert s.events("TemplateHeld")
        s.settled(4, 3)
        s.until(lambda: {p["spec"]["containers"][0]["image"] for p in s.pods("sampler")} == {"example.com/engine:2"})
        s.settled(4, 3)


def test_a_template_that_cant_be_applied_keeps_nothing_from_being_freed() -> None:
    with scene() as s:
        s.edit(sampler={"template": {"spec": {"restartPolicy": "Never"}}})
        s.until(lambda: s.condition("Planned")["reason"] == "InvalidTemplate")
        s.edit(suspend=True)
        s.until(lambda: not s.pods())
        assert s.operator.failures == []


def test_an_accelerator_that_nobody_knows_is_said_also_in_mid_move() -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase("Drain"))
        s.edit(accelerator="H1000-ULTRA")
        s.until(lambda: s.condition("Planned")["status"] == "False")
        assert s.condition("Planned")["reason"] == "UnknownAccelerator"
        assert s.move is not None


def test_a_rival_holds_the_move_and_keeps_its_replicas_until_it_is_gone() -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase("Drain"))
        s.rival("run-samplers")
        s.cluster.store.merge("deployments", NAMESPACE, "run-samplers", {"spec": {"replicas": 10}})
        s.until(lambda: s.condition("Degraded").get("reason") == "AnotherAutoscaler")
        s.clock.run_for(300)
        assert "delete hpa theirs" in s.condition("Degraded")["message"]
        assert s.condition("Rebalancing")["reason"] == "Held"
        assert s.in_phase("Drain")
        assert s.workload("samplers")["spec"]["replicas"] == 10, "left alone"
        assert s.ledger.held(s.uid) <= 16, "what is beyond the split stays behind its gates"
        s.rival(None)
        s.settled(4, 3)
        assert s.condition("Degraded")["status"] == "False"


def test_a_child_that_is_scaled_in_mid_move_is_restored() -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase("Drain"))
        s.cluster.store.merge("deployments", NAMESPACE, "run-samplers", {"spec": {"replicas": 20}})
        s.until(lambda: s.events("ChildEdited"))
        s.settled(4, 3)
        assert s.ledger.most_held[s.uid] <= 16


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
@pytest.mark.parametrize("to", [(12, 1), (4, 3)])
def test_trainers_that_restart_write_a_checkpoint_go_and_come_in_their_new_number(
    kind: str, to: tuple[int, int]
) -> None:
    with scene(trainer={"kind": kind, "resize": "restart"}) as s:
        old = {p["metadata"]["uid"] for p in s.pods("trainer")}
        met: list[str] = []

        def seen(event: str, plural: str, obj: dict[str, object]) -> None:
            uids = {p["metadata"]["uid"] for p in s.pods("trainer")}
            if uids & old and uids - old:
                met.append(event)

        s.cluster.store.watch(seen)
        s.wish = split(*to)
        s.until(lambda: s.move)
        s.until(lambda: s.layouts[-1]["phase"] == "resizing")
        before = s.layouts[-2]
        assert (before["checkpoint"], before["trainers"]["replicas"]) == (True, 2)
        assert set(before["draining"]) >= {p for p in s.going["victims"] if "trainer" in p}
        s.settled(*to)
        assert not met, "an old and a new trainer met"
        assert not {p["metadata"]["uid"] for p in s.pods("trainer")} & old
        grown = next(layout for layout in s.layouts if layout["phase"] == "resizing")
        assert (grown["checkpoint"], grown["trainers"]["replicas"], grown["draining"]) == (False, to[1], [])
        asked = s.events("MoveCheckpoint" if to[0] < 8 else "MoveAnnounce")
        assert asked


def test_a_checkpoint_is_asked_for_after_the_samplers_have_drained() -> None:
    with scene(trainer={"resize": "restart"}) as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase("Drain"))
        assert not s.layouts[-1]["checkpoint"]
        s.until(lambda: s.in_phase("Checkpoint"))
        s.acknowledges_s = None
        s.until(lambda: "write a checkpoint" in s.going.get("waitingFor", ""))
        s.until(lambda: s.going.get("rollingBack"))
        assert not s.going["restart"], "trainers that were not touched stay"
        s.acknowledges_s = 5.0
        s.wish = None
        s.settled(8, 2)


def test_a_restart_that_fails_to_grow_comes_back_by_a_restart() -> None:
    with scene(trainer={"resize": "restart"}) as s:
        s.wish = split(12, 1)
        s.until(lambda: s.in_phase("Shrink"))
        s.starts_s = lambda _pod: 1e9
        s.until(lambda: s.going.get("rollingBack"))
        s.starts_s = lambda _pod: 5.0
        s.wish = None
        s.settled(8, 2)
        assert s.codes[-1] in ("MoveRolledBack", "AtOptimum")


@pytest.mark.parametrize("phase", PHASES)
def test_an_operator_of_a_later_version_goes_on_with_the_move_of_an_earlier_one(phase: str) -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase(phase))

        def strip() -> None:
            job = s.cluster.job("run")
            assert job is not None
            status = dict(job["status"])
            known = (
                "id", "phase", "from", "to", "reason", "predictedGain", "generation", "startedAt", "phaseSince", "deadline",
                "victims",
            )  # fmt: skip
            status["rebalance"] = {key: value for key, value in status["rebalance"].items() if key in known}
            status["moves"] = {}
            status.pop("grants", None)
            s.cluster.store.put_status("rljobs", NAMESPACE, "run", {**job, "status": status})

        s.restart(strip)
        s.settled(4, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "Dancing"},
        {"cause": "Whim"},
        {"hover": True},
    ],
)
def test_a_move_of_a_later_version_is_held_and_said(change: dict[str, object]) -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase("Drain"))

        def spoil() -> None:
            job = s.cluster.job("run")
            assert job is not None
            status = {**job["status"], "rebalance": {**job["status"]["rebalance"], **change}}
            s.cluster.store.put_status("rljobs", NAMESPACE, "run", {**job, "status": status})

        before = {p["metadata"]["uid"] for p in s.pods()}
        s.restart(spoil)
        s.clock.run_for(600)
        assert {p["metadata"]["uid"] for p in s.pods()} == before
        assert s.condition("Degraded")["reason"] == "StatusUnreadable"
        assert "Run the version of the operator" in s.condition("Degraded")["message"]
        s.judged()


def test_a_run_whose_steps_are_raised_goes_on() -> None:
    with scene() as s:
        s.version = 1000
        s.until(lambda: s.status["phase"] == "Complete" and not s.pods())
        assert s.status["completedVersion"] == 1000
        assert "raise spec.workload.steps" in s.condition("Ready")["message"]
        s.clock.run_for(60)
        assert s.status["phase"] == "Complete"
        s.edit(workload={"steps": 2000})
        s.settled(8, 2)
        assert s.events("StepsRaised")
        assert s.status["phase"] == "Running"


def test_a_raised_budget_of_a_job_without_metrics_is_used_by_adding_alone() -> None:
    with scene(prometheus=False, nodes=1) as s:
        assert s.replicas == (4, 1)
        s.cluster.add_nodes(1, prefix="more")
        s.settled(8, 2)
        assert "BudgetRaised" in s.codes
        assert "MoveCommitted" in s.codes


def test_a_growth_without_metrics_that_was_rolled_back_is_tried_again() -> None:
    with scene(prometheus=False, nodes=1) as s:
        s.starts_s = lambda _pod: 1e6
        s.cluster.add_nodes(1, prefix="more")
        s.until(lambda: "MoveRolledBack" in s.codes)
        assert s.replicas == (4, 1)
        s.starts_s = lambda _pod: 5.0
        s.settled(8, 2)


def test_a_budget_that_is_lowered_while_suspended_is_kept_from_the_start() -> None:
    with scene() as s:
        s.edit(suspend=True)
        s.until(lambda: s.condition("Ready").get("reason") == "Suspended")
        s.edit(gpus=8)
        s.until(lambda: s.replicas == (4, 1))
        s.edit(suspend=False)
        s.settled(4, 1)


def test_a_side_that_the_metrics_show_to_be_broken_degrades_the_job_until_they_no_longer_do() -> None:
    with scene() as s:
        s.fault = "sampler pod run-samplers-1 takes 50 ms a token"
        s.until(lambda: s.condition("Degraded")["status"] == "True")
        s.clock.run_for(120.0)
        assert s.condition("Degraded")["reason"] == "SideBroken"
        assert "50 ms a token" in s.condition("Degraded")["message"]
        s.fault = None
        s.until(lambda: s.condition("Degraded")["status"] == "False")
        assert len(s.events("SideBroken")) == 1


def test_gpus_that_are_scattered_are_not_moved_for() -> None:
    with scene() as s:
        # One sampler more on each node than a trainer leaves: no node would have four free GPUs.
        s.wish = split(6, 2).model_copy(update={"trainers": split(6, 3).trainers})
        s.until(lambda: s.events("NothingPlaceable") or s.move)
        assert s.events("NothingPlaceable"), "two GPUs are not room for a trainer of four"
        assert s.move is None


def test_a_move_whose_room_another_job_took_is_said_and_not_begun() -> None:
    with scene() as s:
        with mock.patch.object(Pass, "still_holds", return_value=False):
            s.wish = split(12, 1)
            s.until(lambda: "NothingPlaceable" in s.codes)
        assert s.move is None
        assert "another job took what 12×1 samplers + 1×4 trainers needs" in s.status["decisions"][-1]["message"]
        s.until(lambda: s.move)


def test_a_job_with_long_steps_has_three_of_them_to_acknowledge() -> None:
    with mock.patch.object(staging, "PERIOD_S", 60.0), scene() as s:
        s.acknowledges_s = 150.0
        s.wish = split(12, 1)
        s.until(lambda: s.move)
        s.settled(12, 1)
        assert "MoveCommitted" in s.codes
        assert "MoveRolledBack" not in s.codes
