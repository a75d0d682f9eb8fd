"""An operator on a real API server with everything going wrong at once, and nodes that go.

The budget is asserted at every instant of a watch of its own; what faults left behind must be over soon after they end.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dev.controlplane import ControlPlane
from dev.controlplane.proxy import Fault, Proxy, Rule, effective
from dev.controlplane.rest import MERGE_PATCH, ApiError
from dev.controlplane.stages import MACHINE_LOST
from tests.cluster.conftest import GpuNodes
from tests.cluster.jobs import job, merged
from tests.cluster.moving import annotate, delete
from tests.cluster.rig import ELECTED, SYSTEM, Operator, Recorder, Rig, eventually, holder, install, rig_of

Json = dict[str, Any]

READS = frozenset({"GET"})

HARM = (
    Rule(Fault.CONFLICT, 0.05),
    Rule(Fault.THROTTLED, 0.05),
    Rule(Fault.ERROR, 0.05),
    Rule(Fault.LOST_BEFORE, 0.05),
    Rule(Fault.LOST_AFTER, 0.05),
    Rule(Fault.SLOW, 0.10, seconds=0.4),
    Rule(Fault.ERROR, 0.03, READS),
    Rule(Fault.LOST_BEFORE, 0.03, READS),
    Rule(Fault.SLOW, 0.05, READS, seconds=0.4),
    Rule(Fault.CUT_WATCH, 0.5, READS, seconds=2.0),
)
"""About a third of all writes meet something; half of the watches live for two seconds."""

MOMENT_S = 3.0
"""How long after an edit of the spec a decision may still rest on the spec before it: a slowed pass and its lifts."""

DEEDS = ("budget", "budget", "minimum", "mode", "suspend", "pods", "pods", "stuck", "node")
"""What is done in a round, in an order by chance; each names a method of ``Trouble``."""

ROUNDS = 2
"""In the later ones what is stuck, lost or suspended may come to its end, too."""

AT_ONCE = 3
"""Deeds that come together; once in a round they come while the operator is disturbed."""

OVERDUE = {
    "RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE": "1s",
    "RLJOB_OPERATOR_GONE_DEADLINE": "5s",
    "RLJOB_OPERATOR_READY_DEADLINE": "10s",
}
"""Deadlines that a pod which hangs and a node which is away make a move miss."""

FAR: Json = {"cooldown": "1h"}
"""A job without metrics moves only where its spec demands it."""

TRAINER_GPUS = 4
"""Of a trainer; a sampler has one."""


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Path:
    return install(plane)


@pytest.fixture
def rig(plane: ControlPlane, namespace: str, account: Path, tmp_path: Path, gpu_nodes: GpuNodes) -> Iterator[Rig]:
    gpu_nodes(3, product="NVIDIA-H100-80GB-HBM3")
    yield from rig_of(plane, namespace, account, tmp_path)


class Budgets:
    """What a job was allowed to hold, and when."""

    def __init__(self, gpus: int) -> None:
        self._since: list[tuple[float, int]] = [(0.0, gpus)]

    def set(self, gpus: int) -> None:
        self._since.append((time.time(), gpus))

    def at(self, when_s: float) -> int:
        """The most that was allowed at an instant or the moment before: the operator reads an edit only after it was made."""
        ends = [since for since, _ in self._since[1:]] + [float("inf")]
        return max(
            gpus
            for (since, gpus), end in zip(self._since, ends, strict=True)
            if since <= when_s and end > when_s - MOMENT_S
        )


def grew_over_budget(history: list[tuple[float, int]], budgets: Budgets) -> list[tuple[float, int, int]]:
    """The instants at which a job came to hold more than before, and more than it may."""
    found, before = [], 0
    for when_s, held in history:
        allowed = budgets.at(when_s)
        if held > before and held > allowed:
            found.append((when_s, held, allowed))
        before = held
    return found


class PodsOfJob(Recorder):
    """Follows the pods of one job of several."""

    def __init__(self, rig: Rig, name: str) -> None:
        self._name = name
        super().__init__(rig.plane.kubeconfig, rig.namespace)

    def _note(self) -> None:
        self._pods = {
            uid: pod
            for uid, pod in self._pods.items()
            if pod["metadata"].get("labels", {}).get("rljob.dev/name") == self._name
        }
        super()._note()


class Tenant:
    """One of the jobs that share the nodes: what is wanted of it, what it was allowed to hold, and what it held."""

    def __init__(self, rig: Rig, name: str, offers: Sequence[int]) -> None:
        self._rig = rig
        self.name = name
        self.offers = offers
        """The budgets that it may get."""
        self.gpus = max(offers)
        self.minimum = 1
        self.mode = "Auto"
        self.suspended = False
        self.budgets = Budgets(self.gpus)
        self.recorder = PodsOfJob(rig, name)

    def apply(self) -> None:
        """Makes the job; its pods leave a lost node at once and not after the usual five minutes."""
        soon = [
            {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
            for what in ("unreachable", "not-ready")
        ]
        role: Json = {"template": {"spec": {"tolerations": soon}}}
        quick: Json = {**role, "drainTimeout": "1s"}
        self._rig.apply(job(self._rig.namespace, self.name, gpus=self.gpus, sampler=quick, trainer=role, rebalance=FAR))

    def edit(self, **spec: Any) -> None:
        """Edits the spec."""
        path = f"/apis/rljob.dev/v1alpha1/namespaces/{self._rig.namespace}/rljobs/{self.name}"
        self._rig.plane.api.request("PATCH", path, {"spec": spec}, content_type=MERGE_PATCH)

    def offer(self, gpus: int) -> None:
        """Edits the budget; a minimum that it has no room for is lowered with it."""
        rising = gpus > self.gpus
        self.gpus, self.minimum = gpus, min(self.minimum, gpus - TRAINER_GPUS)
        if rising:
            self.budgets.set(gpus)
        self.edit(gpus=gpus, sampler={"minReplicas": self.minimum})
        if not rising:
            self.budgets.set(gpus)

    def suspend(self, suspended: bool) -> None:
        """Suspends the job or lets it go on; what it may hold while it drains is its budget still."""
        self.suspended = suspended
        self.edit(suspend=suspended)

    def unrest(self) -> str:
        """What is not as it should be once nothing disturbs the job any more, empty if all is."""
        found = self._rig.get("rljob", self.name)
        assert found is not None
        status = found.get("status", {})
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return "the spec is not observed"
        for left in ("rebalance", "grants"):
            if status.get(left):
                return f"{left} is left: {status[left]}"
        said = {c["type"]: c["status"] for c in status["conditions"]}
        if [said.get(what) for what in ("Ready", "Scheduled", "Degraded")] != ["True", "True", "False"]:
            return f"the conditions say {said}"
        samplers, trainers = (status["split"][side]["replicas"] for side in ("samplers", "trainers"))
        gpus = samplers + TRAINER_GPUS * trainers
        if samplers < self.minimum or gpus > self.gpus:
            return f"{samplers} samplers and {trainers} trainers break the spec"
        pods = self._rig.objects("pods", f"rljob.dev/name={self.name}")
        running = [
            p["metadata"]["labels"]["rljob.dev/role"]
            for p in pods
            if p["spec"].get("nodeName") and not p["metadata"].get("deletionTimestamp")
        ]
        if sorted(running) != ["sampler"] * samplers + ["trainer"] * trainers or len(running) < len(pods):
            return f"{running} of {len(pods)} pods run for {samplers} samplers and {trainers} trainers"
        held = self.recorder.history[-1][1]
        return "" if held == gpus else f"its pods were last seen to hold {held} GPUs and not {gpus}"


@pytest.fixture
def tenants(rig: Rig, gpu_nodes: GpuNodes) -> Iterator[Sequence[Tenant]]:
    """Two jobs on four nodes: whatever the others hold and wherever, a trainer finds room on one of them."""
    gpu_nodes(1, product="NVIDIA-H100-80GB-HBM3")
    found = Tenant(rig, "job", (8, 12, 16)), Tenant(rig, "other", (5, 6, 7))
    yield found
    for tenant in found:
        tenant.recorder.stop()


class Trouble:
    """What people, pods and nodes do by chance, until it is ``over``."""

    def __init__(self, rig: Rig, tenants: Sequence[Tenant], draw: random.Random) -> None:
        self._rig = rig
        self._tenants = tenants
        self._draw = draw
        self._stuck: list[str] = []
        self._lost = ""
        self.story: list[str] = []
        """What happened when, for whoever has to find out why a test failed."""

    def budget(self) -> None:
        """Somebody edits a budget."""
        tenant = self._draw.choice(self._tenants)
        tenant.offer(self._draw.choice([gpus for gpus in tenant.offers if gpus != tenant.gpus]))
        self.tell(f"{tenant.name} may hold {tenant.gpus}, {tenant.minimum} samplers at least")

    def minimum(self) -> None:
        """Somebody edits the fewest samplers."""
        tenant = self._draw.choice(self._tenants)
        tenant.minimum = self._draw.randint(1, tenant.gpus - TRAINER_GPUS)
        tenant.edit(sampler={"minReplicas": tenant.minimum})
        self.tell(f"{tenant.name} has {tenant.minimum} samplers at least")

    def mode(self) -> None:
        """Somebody edits what may move a job besides its spec."""
        tenant = self._draw.choice(self._tenants)
        tenant.mode = self._draw.choice([m for m in ("Auto", "Recommend", "Initial") if m != tenant.mode])
        tenant.edit(rebalance={"mode": tenant.mode})
        self.tell(f"{tenant.name} is in mode {tenant.mode}")

    def suspend(self) -> None:
        """Somebody suspends a job, or lets it go on."""
        tenant = self._draw.choice(self._tenants)
        tenant.suspend(not tenant.suspended)
        self.tell(f"{tenant.name} is {'suspended' if tenant.suspended else 'resumed'}")

    def pods(self) -> None:
        """A few pods are deleted, evicted or killed."""
        for _ in range(self._draw.randint(1, 3)):
            harm_a_pod(self._rig, self._draw)
        self.tell("pods were harmed")

    def stuck(self) -> None:
        """Pods that won't go: one is deleted at once, others whenever something deletes them; or those of before do go."""
        before = self._stuck
        self._unstick()
        if before and self._draw.random() < 0.5:
            return
        running = [
            p["metadata"]["name"]
            for p in self._rig.objects("pods")
            if p["spec"].get("nodeName") and not p["metadata"].get("deletionTimestamp")
        ]
        self._stuck = self._draw.sample(running, min(4, len(running)))
        for name in self._stuck:
            with unless_gone():
                annotate(self._rig, name, hang_terminating="true")
        for name in self._stuck[:1]:
            with unless_gone():
                delete(self._rig, name)
        self.tell(f"{self._stuck} won't go once they are deleted")

    def node(self) -> None:
        """A node that has pods is lost, or the one lost before comes back."""
        before = self._lost
        self._bring_back()
        if before and self._draw.random() < 0.5:
            return
        nodes = {p["spec"].get("nodeName") for p in self._rig.objects("pods")} - {None, before}
        if nodes:
            self._lost = self._draw.choice(sorted(nodes))
            self._rig.plane.lose_node(self._lost)
            self.tell(f"{self._lost} is lost")

    def over(self) -> None:
        """Pods go, nodes are back, jobs are resumed; what else people want stays as they left it."""
        self._unstick()
        self._bring_back()
        for tenant in self._tenants:
            tenant.suspend(False)
        self.tell("all is over")

    def tell(self, what: str) -> None:
        """Adds to the story."""
        self.story.append(f"{time.time():.2f} {what}")

    def _unstick(self) -> None:
        for name in self._stuck:
            with unless_gone():
                annotate(self._rig, name, hang_terminating=None)
        if self._stuck:
            self.tell(f"{self._stuck} may go")
        self._stuck = []

    def _bring_back(self) -> None:
        """The machine does its work again, and with it the pods that it has, which end if they were deleted meanwhile."""
        if not self._lost:
            return
        api, works = self._rig.plane.api, {"metadata": {"annotations": {MACHINE_LOST: None}}}
        api.request("PATCH", f"/api/v1/nodes/{self._lost}", works, content_type=MERGE_PATCH)
        for pod in api.request("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={self._lost}")["items"]:
            where = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            with unless_gone():
                api.request("PATCH", where, works, content_type=MERGE_PATCH)
        self.tell(f"{self._lost} is back")
        self._lost = ""


@contextlib.contextmanager
def unless_gone() -> Iterator[None]:
    """Lets it pass that an object is no longer there."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise


def harm_a_pod(rig: Rig, draw: random.Random) -> None:
    """Deletes, evicts or kills one of the jobs' pods."""
    pods = [p for p in rig.objects("pods") if not p["metadata"].get("deletionTimestamp")]
    if not pods:
        return
    meta = draw.choice(pods)["metadata"]
    path = f"/api/v1/namespaces/{rig.namespace}/pods/{meta['name']}"
    how = draw.choice(("delete", "evict", "force"))
    try:
        if how == "evict":
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": meta["name"], "namespace": rig.namespace},
            }
            rig.plane.api.request("POST", f"{path}/eviction", eviction)
        else:
            rig.plane.api.request("DELETE", path, {"gracePeriodSeconds": 0} if how == "force" else None)
    except ApiError as error:
        if error.status not in (404, 429):
            raise


@contextlib.contextmanager
def disturbed(rig: Rig, proxy: Proxy, operators: dict[str, Operator], draw: random.Random) -> Iterator[str]:
    """The operator that leads is dead, suspended or cut off, as is said; of several another must lead before it is back."""
    name = next(iter(operators))
    if len(operators) > 1:
        name = eventually(lambda: (found := holder(rig)) in operators and found, "one of them leads")
    how = draw.choice(("kill", "pause", "cut")) if len(operators) > 1 else "kill"
    if how == "kill":
        operators[name].kill()
    elif how == "pause":
        operators[name].pause()
    else:
        proxy.cut_off(name)
    yield f"{how} {name}"
    if len(operators) > 1:
        eventually(lambda: holder(rig) not in ("", name), f"another leads than {name}", timeout_s=90)
    if how == "kill":
        operators[name].start()
    elif how == "pause":
        operators[name].resume()
    else:
        proxy.reconnect(name)


def written(proxy: Proxy, count: int) -> bool:
    """Whether so many writes have changed something of the jobs."""
    return len(effective(proxy.writes())) >= count


def settle(rig: Rig, tenants: Sequence[Tenant], story: Sequence[str]) -> None:
    """Waits until every job is at rest, and shows what is not if that does not come."""
    left: dict[str, str] = {}

    def rests() -> bool:
        left.update({tenant.name: tenant.unrest() for tenant in tenants})
        return not any(left.values())

    try:
        eventually(rests, "the jobs have converged", timeout_s=120)
    except AssertionError as error:
        shown = {tenant.name: rig.status(tenant.name) for tenant in tenants if left[tenant.name]}
        raise AssertionError(f"{error}: {left}\n{'; '.join(story)}\n{json.dumps(shown)[:6000]}") from error


@pytest.mark.parametrize(("replicas", "seed"), [(1, 1), (2, 2), (1, 3)])
def test_random_harm_never_costs_the_budget_and_is_over_when_it_ends(
    rig: Rig, tenants: Sequence[Tenant], plane: ControlPlane, account: Path, tmp_path: Path, replicas: int, seed: int
) -> None:
    draw = random.Random(seed)
    trouble = Trouble(rig, tenants, draw)
    deeds = [deed for _ in range(ROUNDS) for deed in draw.sample(DEEDS, len(DEEDS))]
    plane.kubectl("delete", "leases", "rljob-operator", "-n", SYSTEM, "--ignore-not-found")
    with Proxy.start(plane.server, plane.ca_file, seed=seed) as proxy:
        operators = {}
        for name in ("one", "two")[:replicas]:
            kubeconfig = proxy.kubeconfig(name, account, tmp_path / f"{name}.kubeconfig")
            env = {**(ELECTED if replicas > 1 else {}), **OVERDUE}
            operators[name] = rig.start_operator(name, kubeconfig, RLJOB_OPERATOR_IDENTITY=name, **env)
        for tenant in tenants:
            tenant.apply()
        for tenant in tenants:
            rig.wait_condition(tenant.name, "Ready", "True", timeout_s=90)
        proxy.rules = HARM
        for done in range(0, len(deeds), AT_ONCE):
            with contextlib.ExitStack() as meanwhile:
                if done % len(DEEDS) == AT_ONCE:
                    trouble.tell(meanwhile.enter_context(disturbed(rig, proxy, operators, draw)))
                for deed in deeds[done : done + AT_ONCE]:
                    getattr(trouble, deed)()
            with contextlib.suppress(AssertionError):
                # Where there is calm before there are more, that is as good.
                eventually(partial(written, proxy, len(effective(proxy.writes())) + 20), "more writes", timeout_s=3)
        trouble.over()
        proxy.rules = ()
        settle(rig, tenants, trouble.story)
    for tenant in tenants:
        grew = grew_over_budget(tenant.recorder.history, tenant.budgets)
        assert grew == [], f"{tenant.name}: {'; '.join(trouble.story)}"
    met = {fault for fault, times in proxy.faults.items() if times}
    assert len(met) >= 5, f"too little harm was done to mean anything: {proxy.faults}"


def test_a_node_that_is_lost_holds_its_gpus_until_it_is_known_to_be_gone(rig: Rig, plane: ControlPlane) -> None:
    # The pods leave their lost node at once and not after the usual five minutes.
    soon = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        for what in ("unreachable", "not-ready")
    ]
    base = job(rig.namespace, gpus=12, rebalance=FAR)
    for role in ("sampler", "trainer"):
        base = merged(base, {"spec": {role: {"template": {"spec": {"tolerations": soon}}}}})
    rig.start_operator()
    rig.apply(base)
    rig.wait_condition("job", "Ready", "True")
    split = rig.status("job")["split"]
    wanted = split["samplers"]["replicas"] + 4 * split["trainers"]["replicas"]
    by_node: dict[str, list[str]] = {}
    for pod in rig.objects("pods"):
        by_node.setdefault(pod["spec"]["nodeName"], []).append(pod["metadata"]["name"])
    lost = max(by_node, key=lambda name: len(by_node[name]))
    plane.lose_node(lost)
    rig.wait_condition("job", "Ready", "False")

    def replaced() -> bool:
        pods = rig.objects("pods")
        leaving = {p["metadata"]["name"] for p in pods if p["metadata"].get("deletionTimestamp")}
        return leaving == set(by_node[lost]) and len(pods) == sum(map(len, by_node.values())) + len(leaving)

    eventually(replaced, "the lost pods are terminating beside their replacements")
    waiting = [p for p in rig.objects("pods") if p["spec"].get("schedulingGates")]
    free = 12 - wanted
    assert sum(_gpus(p) for p in waiting) > free, "what the lost node held can't be given again yet"
    found = rig.wait_condition("job", "Scheduled", "False", "WaitingForBudget")
    assert any(name in found["message"] for name in by_node[lost])
    assert rig.recorder.peak <= 12
    degraded = rig.wait_condition("job", "Degraded", "True", "NodeLost")
    assert f"kubectl delete node {lost}" in degraded["message"]
    # A person finds out that the machine is dead and says so; by itself Kubernetes would give up its pods a minute later.
    rig.plane.kubectl("delete", "node", lost)
    rig.plane.kubectl("delete", "pods", "-n", rig.namespace, "--force", "--grace-period=0", *by_node[lost])
    rig.wait_condition("job", "Ready", "True", timeout_s=90)
    rig.wait_condition("job", "Scheduled", "True")
    rig.wait_condition("job", "Degraded", "False")
    assert rig.recorder.peak <= 12
    assert lost not in {p["spec"]["nodeName"] for p in rig.objects("pods")}
    assert {"NodeLost", "AsExpected"} <= {e["reason"] for e in rig.events("job")}
    assert rig.status("job")["decisions"][-1]["code"] != "Move", "a lost node is no reason to change the split"


def _gpus(pod: Json) -> int:
    return sum(int(c["resources"]["requests"]["nvidia.com/gpu"]) for c in pod["spec"]["containers"])
