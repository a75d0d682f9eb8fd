"""An operator on a real API server with everything going wrong at once, and nodes that go.

The budget is asserted at every instant of a watch of its own; what faults left behind must be over soon after they end.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dev.controlplane import ControlPlane
from dev.controlplane.proxy import Fault, Proxy, Rule
from dev.controlplane.rest import ApiError
from tests.cluster.conftest import GpuNodes
from tests.cluster.jobs import job, merged
from tests.cluster.rig import ELECTED, SYSTEM, Operator, Rig, eventually, holder, install, rig_of

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

TURNS = 6
"""Edits of the budget, disturbances of the operator and of pods, in turn."""

FAR: Json = {"cooldown": "1h"}
"""A job without metrics moves only where its spec demands it."""


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


def harm_a_pod(rig: Rig, draw: random.Random) -> None:
    """Deletes, evicts or kills one of the job's pods."""
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


def disturb(rig: Rig, proxy: Proxy, operators: dict[str, Operator], draw: random.Random) -> None:
    """Kills and starts again, suspends, or cuts off the operator that leads; of several another must lead meanwhile."""
    name = holder(rig) if len(operators) > 1 else next(iter(operators))
    if name not in operators:
        return
    how = draw.choice(("kill", "pause", "cut")) if len(operators) > 1 else "kill"
    if how == "kill":
        operators[name].kill()
    elif how == "pause":
        operators[name].pause()
    else:
        proxy.cut_off(name)
    if len(operators) > 1:
        eventually(lambda: holder(rig) not in ("", name), f"another leads than {name}", timeout_s=90)
    if how == "kill":
        operators[name].start()
    elif how == "pause":
        operators[name].resume()
    else:
        proxy.reconnect(name)


def written(proxy: Proxy, count: int) -> bool:
    """Whether so many writes have come by."""
    return len(proxy.writes()) >= count


@pytest.mark.parametrize("replicas", [1, 2])
def test_random_harm_never_costs_the_budget_and_is_over_when_it_ends(
    rig: Rig, plane: ControlPlane, account: Path, tmp_path: Path, replicas: int
) -> None:
    draw, gpus = random.Random(replicas), 16
    budgets = Budgets(gpus)
    quick: Json = {"drainTimeout": "1s"}
    plane.kubectl("delete", "leases", "rljob-operator", "-n", SYSTEM, "--ignore-not-found")
    with Proxy.start(plane.server, plane.ca_file, seed=replicas) as proxy:
        operators = {}
        for name in ("one", "two")[:replicas]:
            kubeconfig = proxy.kubeconfig(name, account, tmp_path / f"{name}.kubeconfig")
            env = ELECTED if replicas > 1 else {"RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE": "1s"}
            operators[name] = rig.start_operator(name, kubeconfig, RLJOB_OPERATOR_IDENTITY=name, **env)
        rig.apply(job(rig.namespace, sampler=quick, rebalance=FAR))
        rig.wait_condition("job", "Ready", "True", timeout_s=90)
        proxy.rules = HARM
        for turn in range(TURNS):
            what = ("budget", "disturb", "pod")[turn % 3]
            if what == "budget":
                gpus = draw.choice([g for g in (8, 12, 16) if g != gpus])
                rising = gpus > budgets.at(time.time())
                if rising:
                    budgets.set(gpus)
                rig.apply(job(rig.namespace, sampler=quick, rebalance=FAR, gpus=gpus))
                if not rising:
                    budgets.set(gpus)
            elif what == "pod":
                for _ in range(draw.randint(1, 3)):
                    harm_a_pod(rig, draw)
            else:
                disturb(rig, proxy, operators, draw)
            with contextlib.suppress(AssertionError):
                # Where there is calm before there are more, that is as good.
                eventually(partial(written, proxy, len(proxy.writes()) + 8), "more writes", timeout_s=3)
        proxy.rules = ()

        def calm() -> bool:
            status = rig.status("job")
            ready = next((c["status"] for c in status.get("conditions", ()) if c["type"] == "Ready"), None)
            return status.get("rebalance") is None and ready == "True" and not status.get("grants")

        eventually(calm, "the job has converged", timeout_s=120)
        split = rig.status("job")["split"]
        wanted = split["samplers"]["replicas"] + 4 * split["trainers"]["replicas"]
        assert wanted <= gpus
        eventually(lambda: rig.recorder.history[-1][1] == wanted, "the pods are those of the split")
    assert grew_over_budget(rig.recorder.history, budgets) == []
    met = {fault for fault, count in proxy.faults.items() if count}
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
