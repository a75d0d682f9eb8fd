"""A small cluster with one or two jobs and the operator, and everything that may happen to them.

Whatever happens is an ``Act`` with two numbers in 0..1 that choose its object among those that exist at that moment, so that a
history stays meaningful when parts of it are taken out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from dev.bench.histories.byhand import People
from dev.bench.histories.decisions import Chance
from dev.bench.histories.framework import Framework
from dev.bench.histories.shape import Shape
from dev.bench.histories.weather import Weather
from dev.virtual import jobs
from dev.virtual.cluster import NAMESPACE, VirtualCluster
from dev.virtual.ledger import Ledger, Violation
from dev.virtual.machines import Pace
from dev.virtual.operator import PROMETHEUS, VirtualOperator
from dev.virtual.store import Json
from rljob_operator.cluster import ClusterError
from rljob_operator.config import Config
from rljob_operator.rebalance import Deadlines

T = TypeVar("T")

CONFIG = Config(
    prometheus_url=PROMETHEUS,
    move_tick_s=3.0,
    idle_tick_s=30.0,
    deadlines=Deadlines(acknowledge_s=20.0, drain_s=20.0, gone_s=30.0, ready_s=30.0),
)
"""Short deadlines, so that a history of minutes sees all of them missed."""


class World:
    """A cluster, its jobs, the operator, the ledger, and what may happen."""

    def __init__(self, shape: Shape) -> None:
        self.rng = random.Random(f"world {shape.seed}")
        rng = self.rng
        pace = Pace(
            schedule_s=lambda: rng.uniform(0.01, 0.5),
            start_s=lambda _pod: rng.choice((1.0, 3.0, 10.0)) * rng.uniform(0.5, 1.5),
            stop_s=lambda _pod: rng.choice((0.2, 1.0, 5.0, 60.0)) * rng.uniform(0.5, 1.5),
        )
        self.cluster = VirtualCluster(pace=pace, controllers_s=lambda: rng.uniform(0.005, 0.3), pack=rng.random() < 0.7)
        self.clock = self.cluster.clock
        self.ledger = Ledger(self.cluster)
        self.framework = Framework(self.cluster, rng)
        self.people = People(self.cluster, self.ledger, rng)
        self.chance = Chance(rng)
        self.weather = Weather(rng, now_s=lambda: self.clock.now_s, kill=lambda: self._kill_soon())
        self.lag_s = 0.0
        self._burst_s = rng.choice((0.2, 1.5, 1.5))
        self.operators: list[VirtualOperator] = []
        self.mistakes: list[str] = []
        """What passes raised besides the API server's errors."""
        self.gpus_per_node = shape.gpus_per_node
        self.patches = ExitStack()
        """What is replaced in the operator while the history runs."""
        for i in range(shape.nodes):
            self.cluster.machines.add_node(f"node-{i}", shape.gpus_per_node, labels={"pool": "ab"[i % 2]})
        self._manifests = {m["metadata"]["name"]: m for m in shape.jobs}
        self._killing = False
        for manifest in shape.jobs:
            self.cluster.create_job(manifest)
        self.start_operator()

    # The operator.

    def start_operator(self) -> None:
        """Starts one more process of the operator."""
        operator = VirtualOperator(
            self.cluster,
            observe=self.framework.observe,
            planner=self.chance.planner(),
            config=CONFIG,
            passages=self.weather,
            burst_s=self._burst_s,
            lag=lambda _plural: self.rng.uniform(0.0, self.lag_s) if self.lag_s else 0.0,
            name=f"operator-{len(self.mistakes)}",
        )
        self.ledger.audit(operator.connection)
        self.operators.append(operator.start())

    def kill_operators(self) -> None:
        """Kills every process of the operator."""
        killed, self.operators = self.operators, []
        for operator in killed:
            operator.kill()
            self.mistakes += operator.failures

    def end(self) -> None:
        """Ends the world."""
        self.kill_operators()
        self.clock.run_for(0.0)

    def _kill_soon(self) -> None:
        """The process dies while a request is on its way, and is started again a little later."""
        if not self._killing:
            self._killing = True
            self.clock.after(self.rng.uniform(0.0, 0.02), self._killed)

    def _killed(self) -> None:
        self._killing = False
        self.kill_operators()
        self.clock.after(self.rng.choice((0.0, 0.05, 5.0, 60.0)), self._revive)

    def _revive(self) -> None:
        if not self.operators:
            self.start_operator()

    @property
    def passes(self) -> int:
        """Passes of the operators that run now."""
        return sum(operator.passes for operator in self.operators)

    @property
    def violations(self) -> list[Violation]:
        """What must not happen and did; a pass that fails by its own mistake is among it."""
        mistakes = [*self.mistakes, *(m for operator in self.operators for m in operator.failures)]
        return [*self.ledger.violations, *(Violation(self.clock.now_s, "mistake", m) for m in dict.fromkeys(mistakes))]

    # Acts. Each takes two numbers in 0..1.

    def act(self, name: str, a: float, b: float) -> None:
        """Lets something happen; what is impossible at the moment is let go."""
        try:
            ACTS[name](self, a, b)
        except ClusterError:
            # Somebody asked for what the API server refuses; so he was told.
            return

    def wait(self, _a: float, _b: float) -> None:
        """Time passes."""

    def storm(self, a: float, b: float) -> None:
        """Requests begin to go wrong."""
        self.weather.rate, self.weather.slow = (0.05, 0.2, 0.5)[int(3 * a)], (0.0, 0.05, 0.3)[int(3 * b)]

    def hang(self, a: float, _b: float) -> None:
        """The API server's store hangs for a while."""
        self.weather.hangs_until_s = self.clock.now_s + 20.0 * a

    def fair(self, _a: float, _b: float) -> None:
        """Requests go well again."""
        self.weather.calm()

    def lag(self, a: float, _b: float) -> None:
        """Watches begin to lag, or no longer do."""
        self.lag_s = (0.0, 0.3, 2.0, 15.0)[int(4 * a)]

    def kill(self, a: float, b: float) -> None:
        """The operator dies, now or at one of its next requests."""
        if a < 0.3:
            self._killed()
        else:
            self.weather.deadly_in = 1 + int(20 * b)

    def twin(self, a: float, _b: float) -> None:
        """A second process starts before the first has ended, as in a rollout."""
        if len(self.operators) == 1:
            old = self.operators[0]
            self.start_operator()
            self.clock.after(30.0 * a, self._retire, old)

    def _retire(self, old: VirtualOperator) -> None:
        if old in self.operators and len(self.operators) > 1:
            self.operators.remove(old)
            old.kill()
            self.mistakes += old.failures

    def delete_pod(self, a: float, b: float) -> None:
        """Somebody deletes one pod, or a quarter of them."""
        pods = self._pods()
        for pod in pods if b < 0.1 else self._one(pods, a):
            if b >= 0.1 or self.rng.random() < 0.25:
                self.cluster.store.delete("pods", *_place(pod))

    def force_delete(self, a: float, _b: float) -> None:
        """Somebody takes a pod out of the API server whose containers may still run."""
        for pod in self._one(self._pods(), a):
            self.cluster.store.remove("pods", *_place(pod))

    def evict(self, a: float, b: float) -> None:
        """Kubelets evict a pod, or several."""
        pods = self._pods()
        for pod in pods if b < 0.1 else self._one(pods, a):
            self.cluster.machines.evict(*_place(pod))

    def stick(self, a: float, b: float) -> None:
        """A pod that will not go, or no longer any."""
        if b < 0.3:
            self.cluster.machines.unstick()
        for pod in self._one(self._pods(), a) if b >= 0.3 else ():
            self.cluster.machines.stick(pod["metadata"]["uid"])

    def crash(self, a: float, b: float) -> None:
        """A pod that crashes again and again, or no longer any."""
        if b < 0.3:
            self.cluster.machines.mend_pods()
        for pod in self._one(self._pods(), a) if b >= 0.3 else ():
            self.cluster.machines.break_pod(*_place(pod))

    def node(self, a: float, b: float) -> None:
        """A node falls silent, comes back, is cordoned, is let in again, goes for good, or a new one comes."""
        names = [n["metadata"]["name"] for n in self.cluster.store.all("nodes")]
        machines = self.cluster.machines
        deeds: tuple[Callable[[str], object], ...] = (
            machines.lose,
            machines.restore,
            machines.cordon,
            lambda name: machines.cordon(name, on=False),
            machines.remove_node if len(names) > 2 else machines.restore,
            lambda _name: self.add_node(),
        )
        for name in self._one(names, a):
            deeds[int(b * len(deeds))](name)

    def add_node(self) -> None:
        """One more node, as long as there are few."""
        if len(list(self.cluster.store.all("nodes"))) < 5:
            pool = self.rng.choice("ab")
            self.cluster.machines.add_node(
                f"new-{self.cluster.store.version}", self.gpus_per_node, labels={"pool": pool}
            )

    def strangers(self, a: float, b: float) -> None:
        """Pods of others take GPUs, or give them back."""
        there = self.cluster.store.matching("pods", "others", {})
        if there and a < 0.5:
            for pod in there:
                self.cluster.store.delete("pods", *_place(pod))
        else:
            spec = jobs.template("other")["spec"]
            spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(1 + int(3 * b))}}
            meta = {"namespace": "others", "generateName": "other-"}
            self.cluster.store.create(
                "pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending", "conditions": []}}
            )

    def budget(self, a: float, b: float) -> None:
        """Somebody edits the budget."""
        for job in self._one(self._jobs(), a):
            spec = job["spec"]
            least = _least(spec)
            self._edit(job, {"gpus": max(least, int(spec["gpus"] * (0.4 + 1.2 * b)))})

    def limits(self, a: float, b: float) -> None:
        """Somebody edits the fewest or the most replicas of a side."""
        for job in self._one(self._jobs(), a):
            role = "sampler" if b < 0.5 else "trainer"
            b = 2 * b % 1
            if b < 0.5:
                wish = {role: {"minReplicas": 1 + int(6 * b)}}
                changed = {**job["spec"], role: {**job["spec"][role], **wish[role]}}
                most = job["spec"][role].get("maxReplicas")
                if _least(changed) <= job["spec"]["gpus"] and (most is None or wish[role]["minReplicas"] <= most):
                    self._edit(job, wish)
            else:
                least = int(job["spec"][role].get("minReplicas", 1))
                self._edit(job, {role: {"maxReplicas": None if b < 0.7 else least + int(8 * (b - 0.7))}})

    def suspend(self, a: float, b: float) -> None:
        """Somebody suspends a job, or lets it go on."""
        for job in self._one(self._jobs(), a):
            self._edit(job, {"suspend": b < 0.5})

    def mode(self, a: float, b: float) -> None:
        """Somebody edits the mode, the drain timeout or how trainers are resized."""
        for job in self._one(self._jobs(), a):
            edits: tuple[Json, ...] = (
                {"rebalance": {"mode": "Recommend"}},
                {"rebalance": {"mode": "Auto"}},
                {"rebalance": {"mode": "Initial"}},
                {"sampler": {"drainTimeout": "10s"}},
                {"trainer": {"resize": "elastic"}},
                {"trainer": {"resize": "restart"}},
                {"trainer": {"resize": "fixed"}},
            )
            self._edit(job, edits[int(b * len(edits))])

    def by_hand(self, a: float, b: float) -> None:
        """Somebody asks for a move, takes a request back, or scribbles."""
        for job in self._one(self._jobs(), a):
            self.people.ask(job, self.rng.random(), b)

    def job(self, a: float, b: float) -> None:
        """A job is deleted, made anew under its name, or has published its last version."""
        for job in self._one(self._jobs(), a):
            if b < 0.2:
                self.framework.finish(job["metadata"]["uid"])
            else:
                self.cluster.delete_job(job["metadata"]["name"])
                if b < 0.8:
                    self.clock.after(10.0 * b, self._create, job["metadata"]["name"])

    def _create(self, name: str) -> None:
        if self.cluster.job(name) is None:
            self.cluster.create_job(self._manifests[name])

    def edit_child(self, a: float, b: float) -> None:
        """Somebody scales a workload, edits its template, or deletes a child or its layout."""
        store = self.cluster.store
        children = [c for kind in ("deployments", "statefulsets") for c in store.all(kind)]
        layouts = [c for c in store.all("configmaps") if c["metadata"]["name"].endswith("-layout")]
        if b < 0.6:
            for child in self._one(children, a):
                plural = f"{child['kind'].lower()}s"
                if b < 0.4:
                    patch: Json = {"spec": {"replicas": int(20 * b)}}
                else:
                    patch = {"spec": {"template": {"metadata": {"annotations": {"edited": str(store.version)}}}}}
                store.merge(plural, *_place(child), patch)
        elif b < 0.75:
            for child in self._one(children, a):
                store.delete(f"{child['kind'].lower()}s", *_place(child))
        else:
            for layout in self._one(layouts, a):
                if b < 0.9:
                    store.delete("configmaps", *_place(layout))
                else:
                    store.merge("configmaps", *_place(layout), {"data": {"layout.json": "{}"}})

    def metrics(self, a: float, b: float) -> None:
        """Metrics vanish or come back; trainers no longer acknowledge; samplers don't drain."""
        self.framework.silent, self.framework.deaf = a < 0.3, 0.3 <= a < 0.5
        self.framework.busy, self.framework.patchy = 0.5 <= a < 0.6, (0.0, 0.2, 0.6)[int(3 * b)]

    # Helpers.

    def calm(self) -> None:
        """All faults cease; what people want stays as they left it."""
        self.weather.calm()
        self.chance.restless = False
        self.lag_s = 0.0
        machines = self.cluster.machines
        machines.unstick()
        machines.mend_pods()
        for node in self.cluster.store.all("nodes"):
            machines.restore(node["metadata"]["name"])
            machines.cordon(node["metadata"]["name"], on=False)
        for pod in self.cluster.store.matching("pods", "others", {}):
            self.cluster.store.delete("pods", *_place(pod))
        self.framework.calm()
        if len(self.operators) > 1:
            self._retire(self.operators[0])
        self._revive()

    def jobs(self) -> list[Json]:
        """The jobs that exist."""
        return self._jobs()

    def _jobs(self) -> list[Json]:
        return list(self.cluster.store.all("rljobs"))

    def _pods(self) -> list[Json]:
        return self.cluster.store.matching("pods", NAMESPACE, {})

    def _edit(self, job: Json, spec: Json) -> None:
        self.cluster.edit_job(job["metadata"]["name"], spec)

    @staticmethod
    def _one(things: Sequence[T], a: float) -> Sequence[T]:
        return [things[int(a * len(things))]] if things else []


def _place(obj: Json) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _least(spec: Json) -> int:
    """GPUs of a job's minima: the API refuses a budget below them."""
    return sum(
        int(spec[role].get("minReplicas", 1)) * int(spec[role]["gpusPerReplica"]) for role in ("sampler", "trainer")
    )


ACTS: dict[str, Callable[[World, float, float], None]] = {
    "wait": World.wait,
    "storm": World.storm,
    "hang": World.hang,
    "fair": World.fair,
    "lag": World.lag,
    "kill": World.kill,
    "twin": World.twin,
    "delete_pod": World.delete_pod,
    "force_delete": World.force_delete,
    "evict": World.evict,
    "stick": World.stick,
    "crash": World.crash,
    "node": World.node,
    "strangers": World.strangers,
    "budget": World.budget,
    "limits": World.limits,
    "suspend": World.suspend,
    "mode": World.mode,
    "job": World.job,
    "edit_child": World.edit_child,
    "metrics": World.metrics,
    "by_hand": World.by_hand,
}
"""Everything that may happen, by name."""

WEIGHTS: dict[str, float] = {
    "wait": 4.0,
    "kill": 2.0,
    "delete_pod": 2.0,
    "budget": 2.0,
    "lag": 1.5,
    "storm": 2.0,
    "stick": 1.5,
    "by_hand": 2.0,
    "job": 0.4,
    "suspend": 0.7,
    "fair": 0.5,
}
"""How often it happens, where not once as often as the others."""
