"""Who leads, and what a replica may write when: in virtual time, against an API server in memory that keeps versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dev.virtual.clock import VirtualClock
from dev.virtual.cluster import NAMESPACE, Passage, VirtualCluster
from rljob_operator.cluster import CONFIG_MAPS, LEASES, PODS, RLJOBS, ClusterError, preconditions
from rljob_operator.config import Config, LeaseConfig
from rljob_operator.fence import AGAIN_S, HOLDER, Fence, Fenced, Holding, TakeOver
from rljob_operator.gate import UID_LABEL
from rljob_operator.leader import Elector
from rljob_operator.view import View
from tests.operator.objects import job_dict

Json = dict[str, Any]

LEASE = LeaseConfig(namespace=NAMESPACE, duration_s=15.0, renew_deadline_s=10.0, period_s=2.0, poll_s=1.0)


@dataclass
class Replica:
    """A replica that does nothing but take part in the election."""

    cluster: VirtualCluster
    name: str
    away: bool = False
    """Whether none of its requests reaches the API server."""
    log: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = self.cluster.clock
        self.fence = Fence(clock=lambda: clock.now_s, elected=True)
        self.connection = self.cluster.connect(self.name, self._passage)
        config = LeaseConfig(**{**LEASE.__dict__, "identity": self.name})
        self.elector = Elector(
            self.connection,
            config,
            self.fence,
            acquired=lambda holding: self.log.append((clock.now_s, f"acquired {holding.transitions}")),
            lost=lambda: self.log.append((clock.now_s, "lost")),
            clock=lambda: clock.now_s,
        )
        self.task: asyncio.Task[None] | None = None

    def _passage(self, verb: str, plural: str, name: str) -> Passage:
        return Passage(error=ClusterError(0, "Unreachable", "away"), done=False) if self.away else Passage()

    def start(self) -> Replica:
        self.task = self.cluster.clock.spawn(self.elector.run())
        return self

    def kill(self) -> None:
        """Ends it without a word; what its ``finally`` does is not seen by anybody."""
        assert self.task is not None
        self.away = True
        self.task.cancel()

    @property
    def leads(self) -> bool:
        return self.fence.holding is not None


@pytest.fixture
def cluster() -> VirtualCluster:
    return VirtualCluster(VirtualClock())


def holder(cluster: VirtualCluster) -> str:
    found = cluster.store.get("leases", NAMESPACE, LEASE.name)
    assert found is not None
    return str(found["spec"]["holderIdentity"])


def test_the_first_leads_and_the_second_stands_by(cluster: VirtualCluster) -> None:
    first, second = Replica(cluster, "first").start(), Replica(cluster, "second")
    cluster.clock.run_for(1.0)
    second.start()
    cluster.clock.run_for(300.0)
    assert [what for _, what in first.log] == ["acquired 0"]
    assert second.log == []
    assert holder(cluster) == first.elector.identity


def test_after_a_crash_the_lease_is_taken_once_it_has_stood_its_time(cluster: VirtualCluster) -> None:
    first, second = Replica(cluster, "first").start(), Replica(cluster, "second")
    cluster.clock.run_for(1.0)
    second.start()
    cluster.clock.run_for(60.0)
    killed_s = cluster.clock.now_s
    first.kill()
    cluster.clock.run_for(30.0)
    assert [what for _, what in second.log] == ["acquired 1"]
    waited_s = second.log[0][0] - killed_s
    assert LEASE.duration_s - LEASE.period_s <= waited_s <= LEASE.duration_s + 2 * LEASE.poll_s


def test_a_lease_given_back_is_taken_at_the_next_look(cluster: VirtualCluster) -> None:
    first, second = Replica(cluster, "first").start(), Replica(cluster, "second")
    cluster.clock.run_for(1.0)
    second.start()
    cluster.clock.run_for(60.0)
    assert first.task is not None
    first.task.cancel()
    cluster.clock.run_for(0.01)
    gave_s = cluster.clock.now_s
    cluster.clock.spawn(first.elector.release())
    cluster.clock.run_for(10.0)
    assert second.leads
    assert second.log[0][0] - gave_s <= LEASE.poll_s + 0.1


def test_a_leader_that_is_cut_off_stops_before_another_can_begin(cluster: VirtualCluster) -> None:
    first, second = Replica(cluster, "first").start(), Replica(cluster, "second")
    cluster.clock.run_for(1.0)
    second.start()
    cluster.clock.run_for(60.0)
    first.away = True
    cluster.clock.run_for(40.0)
    assert [what for _, what in first.log] == ["acquired 0", "lost"]
    assert second.leads
    assert first.log[-1][0] < second.log[0][0]
    first.away = False
    cluster.clock.run_for(40.0)
    assert not first.leads, "it stands by from now on"
    assert second.leads


def test_a_renewal_that_hangs_ends_at_the_deadline(cluster: VirtualCluster) -> None:
    first = Replica(cluster, "first").start()
    cluster.clock.run_for(60.0)
    first.connection.passages = lambda verb, plural, name: Passage(before_s=1000.0)
    began_s = cluster.clock.now_s
    cluster.clock.run_for(30.0)
    assert [what for _, what in first.log] == ["acquired 0", "lost"]
    assert first.log[-1][0] <= began_s + LEASE.renew_deadline_s


def test_a_renewal_whose_answer_was_lost_costs_nothing(cluster: VirtualCluster) -> None:
    first = Replica(cluster, "first").start()
    cluster.clock.run_for(60.0)
    lost = iter([True])
    first.connection.passages = lambda verb, plural, name: Passage(
        error=ClusterError(0, "Unreachable", "lost") if verb == "merge" and next(lost, False) else None
    )
    cluster.clock.run_for(60.0)
    assert [what for _, what in first.log] == ["acquired 0"]


def test_a_lease_that_somebody_deletes_ends_the_holding_at_once(cluster: VirtualCluster) -> None:
    first = Replica(cluster, "first").start()
    cluster.clock.run_for(60.0)
    cluster.store.delete("leases", NAMESPACE, LEASE.name)
    cluster.clock.run_for(LEASE.period_s + 0.1)
    assert [what for _, what in first.log] == ["acquired 0", "lost", "acquired 1"], "under a holding that is a new one"


def test_times_under_which_two_could_lead_are_refused() -> None:
    with pytest.raises(ValueError, match="two replicas could lead at once"):
        LeaseConfig(duration_s=10.0, renew_deadline_s=10.0)
    env = {"RLJOB_OPERATOR_LEADER_ELECTION": "true", "RLJOB_OPERATOR_RENEW_DEADLINE": "20s"}
    with pytest.raises(ValueError, match="RENEW_DEADLINE"):
        Config.from_env(env)
    assert Config.from_env({}).lease is None
    found = Config.from_env({"RLJOB_OPERATOR_LEADER_ELECTION": "true", "RLJOB_OPERATOR_LEASE_NAMESPACE": "here"}).lease
    assert found == LeaseConfig(namespace="here", identity=found.identity if found else "")


class World:
    """A job with a ConfigMap and a pod, and what is needed to write to them under a holding."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        job = job_dict(name="mine")
        job["metadata"] = {"name": "mine", "namespace": NAMESPACE}
        self.uid = cluster.create_job(job)
        self.now_s = 0.0
        self.fence = Fence(clock=lambda: self.now_s, elected=True)
        self.still_held = True
        self.fenced = Fenced(cluster.connect("replica"), self.fence)
        self.take_over = TakeOver(self.fenced, self.fence, self._confirm)
        cluster.store.create("configmaps", self._child("mine-layout"))

    async def _confirm(self) -> bool:
        return self.still_held

    def _child(self, name: str) -> Json:
        return {"metadata": {"name": name, "namespace": NAMESPACE, "labels": {UID_LABEL: self.uid}}, "data": {"a": "1"}}

    def hold(self, identity: str, transitions: int = 1) -> None:
        self.fence.open(Holding(identity, transitions), self.now_s + 10.0)

    def run(self, work: Callable[[], Any]) -> Any:
        """What a coroutine returns or raises, in virtual time."""

        async def caught() -> Any:
            try:
                return await work()
            except (ClusterError, ValueError) as error:
                return error

        task = self.cluster.clock.spawn(caught())
        self.cluster.clock.run_for(60.0)
        return task.result()

    def layout(self) -> Json:
        found = self.cluster.store.get("configmaps", NAMESPACE, "mine-layout")
        assert found is not None
        return found

    def job(self) -> Json:
        found = self.cluster.job("mine")
        assert found is not None
        return found

    def edit(self, read: Json) -> Callable[[], Any]:
        patch = {"metadata": preconditions(read), "data": {"a": "2"}}
        return lambda: self.fenced.merge(CONFIG_MAPS, NAMESPACE, "mine-layout", patch)


@pytest.fixture
def world(cluster: VirtualCluster) -> World:
    return World(cluster)


def test_what_was_read_before_a_take_over_can_be_written_no_more(world: World) -> None:
    read_child, read_job = world.layout(), world.job()
    world.hold("second")
    taken = world.run(lambda: world.take_over(world.job()))
    assert taken["status"]["holder"] == "second/1"
    assert world.layout()["metadata"]["annotations"][HOLDER] == "second/1"
    # The first comes to; its clock has stood still, so that it takes itself for the leader.
    world.hold("first", 0)
    for late in (
        world.edit(read_child),
        lambda: world.fenced.put_status(RLJOBS, NAMESPACE, "mine", {**read_job, "status": {"phase": "Failed"}}),
        lambda: world.fenced.delete(CONFIG_MAPS, NAMESPACE, "mine-layout", preconditions(read_child)),
        lambda: world.fenced.apply({**world._child("mine-layout"), "apiVersion": "v1", "kind": "ConfigMap"}),
    ):
        error = world.run(late)
        assert isinstance(error, ClusterError), error
        assert error.conflict
    assert world.layout()["data"] == {"a": "1"}
    assert world.job()["status"] == taken["status"]


def test_what_is_read_after_a_take_over_ends_the_pass_of_the_deposed(world: World) -> None:
    world.hold("second")
    world.run(lambda: world.take_over(world.job()))
    index = {(world.uid, "ConfigMap", "mine-layout"): [world.layout()]}
    assert View(children=index, token="second/1").child(world.uid, "ConfigMap", "mine-layout", NAMESPACE) is not None
    assert View(children=index).child(world.uid, "ConfigMap", "mine-layout", NAMESPACE) is not None, (
        "without an election nobody minds"
    )
    with pytest.raises(ClusterError) as error:
        View(children=index, token="first/0").child(world.uid, "ConfigMap", "mine-layout", NAMESPACE)
    assert error.value.conflict


def test_a_deposed_leader_takes_nothing_back(world: World) -> None:
    world.hold("second")
    world.run(lambda: world.take_over(world.job()))
    before = world.cluster.store.version
    world.hold("first", 0)
    world.still_held = False
    error = world.run(lambda: world.take_over(world.job()))
    assert isinstance(error, ClusterError)
    assert error.conflict
    assert world.cluster.store.version == before, "nothing was written"


def test_a_job_that_was_taken_over_is_not_taken_over_again(world: World) -> None:
    world.hold("second")
    taken = world.run(lambda: world.take_over(world.job()))
    before = world.cluster.store.version
    assert world.run(lambda: world.take_over(taken)) == taken
    assert world.cluster.store.version == before


def test_two_installations_do_not_take_a_job_from_each_other_without_end(world: World) -> None:
    world.now_s = 1000.0
    world.hold("ours")
    world.run(lambda: world.take_over(world.job()))

    def others() -> Json:
        status = {**world.job()["status"], "holder": "theirs/9"}
        return world.cluster.store.put_status("rljobs", NAMESPACE, "mine", {**world.job(), "status": status})

    others()
    error = world.run(lambda: world.take_over(world.job()))
    assert isinstance(error, ClusterError)
    assert error.reason == "TwoInstallations"
    assert "theirs/9" in error.message
    assert world.job()["status"]["holder"] == "theirs/9"
    world.now_s += AGAIN_S
    world.hold("ours")
    assert world.run(lambda: world.take_over(world.job()))["status"]["holder"] == "ours/1", (
        "the others may be gone by now"
    )
    others()
    world.hold("ours", 2)
    assert world.run(lambda: world.take_over(world.job()))["status"]["holder"] == "ours/2", (
        "a new holding takes at once"
    )


def test_a_mark_that_somebody_set_by_hand_is_replaced_when_it_is_taken_over_anew(world: World) -> None:
    world.hold("second")
    taken = world.run(lambda: world.take_over(world.job()))
    patch = {"metadata": {**preconditions(world.layout()), "annotations": {HOLDER: "kubectl"}}}
    world.run(lambda: world.fenced.merge(CONFIG_MAPS, NAMESPACE, "mine-layout", patch))
    world.run(lambda: world.take_over(taken))
    assert world.layout()["metadata"]["annotations"][HOLDER] == "kubectl", "nobody looks while all seems well"
    world.run(lambda: world.take_over(taken, anew=True))
    assert world.layout()["metadata"]["annotations"][HOLDER] == "second/1"


def test_a_touch_that_meets_a_successors_mark_leaves_it(world: World) -> None:
    world.hold("first", 0)
    read = world.layout()
    patch = {"metadata": {**preconditions(read), "annotations": {HOLDER: "second/1"}}}
    world.run(lambda: world.fenced.merge(CONFIG_MAPS, NAMESPACE, "mine-layout", patch))
    error = world.run(lambda: world.take_over._touch(CONFIG_MAPS, read, "first/0"))
    assert isinstance(error, ClusterError)
    assert world.layout()["metadata"]["annotations"][HOLDER] == "second/1"


def test_a_take_over_that_was_cut_off_is_begun_anew(world: World) -> None:
    world.hold("second")
    connection = world.cluster.connect("replica", lambda verb, plural, name: _no_status(verb))
    take_over = TakeOver(Fenced(connection, world.fence), world.fence, world._confirm)
    world.cluster.store.put_status("rljobs", NAMESPACE, "mine", {**world.job(), "status": {"holder": "first/0"}})
    error = world.run(lambda: take_over(world.job()))
    assert isinstance(error, ClusterError)
    assert world.job()["status"]["holder"] == "first/0"
    connection.passages = None
    assert world.run(lambda: take_over(world.job()))["status"]["holder"] == "second/1"


def _no_status(verb: str) -> Passage:
    return Passage(error=ClusterError(500, "", "broken"), done=False) if verb == "put_status" else Passage()


def test_a_holding_that_ended_sends_nothing(world: World) -> None:
    world.hold("first")
    read = world.layout()
    world.now_s = 10.0
    error = world.run(world.edit(read))
    assert isinstance(error, ClusterError)
    assert error.reason == "NotLeading"
    world.hold("first")
    assert world.run(world.edit(read))["data"] == {"a": "2"}
    world.fence.close()
    assert world.run(world.edit(world.layout())).reason == "NotLeading"


def test_writes_that_speak_of_no_version_are_mistakes(world: World) -> None:
    world.hold("first")
    blind = (
        lambda: world.fenced.merge(PODS, NAMESPACE, "p", {"metadata": {"annotations": {}}}),
        lambda: world.fenced.put_status(RLJOBS, NAMESPACE, "mine", {"metadata": {}, "status": {}}),
        lambda: world.fenced.delete(PODS, NAMESPACE, "p"),
        lambda: world.fenced.apply({"kind": "ConfigMap", "metadata": {"name": "c", "resourceVersion": "1"}}),
    )
    for write in blind:
        assert isinstance(world.run(write), ValueError)


def test_a_write_under_way_is_finished_though_its_pass_is_cancelled(world: World) -> None:
    world.hold("first")
    clock = world.cluster.clock
    task = clock.spawn(world.edit(world.layout())())
    clock.run_for(0.0005)
    task.cancel()
    clock.spawn(world.fenced.settled(5.0))
    clock.run_for(1.0)
    assert task.cancelled()
    assert world.layout()["data"] == {"a": "2"}


def test_the_lease_is_among_what_a_connection_can_write(cluster: VirtualCluster) -> None:
    assert LEASES.path(NAMESPACE, "x") == f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/x"
