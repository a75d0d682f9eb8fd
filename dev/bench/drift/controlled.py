"""The operator itself on a trace: its real passes, decisions and moves, in virtual time, on a cluster in memory around the plant.

Nothing of the operator is copied or stubbed here. It is told of nodes and pods by a cluster that behaves as Kubernetes does,
reads metrics that are scraped from the plant, writes a layout that the plant obeys a few seconds later, and does not know the truth. The trace
begins when the job's first layout is complete, since start-up is the same for every policy.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from dev.bench.drift.plant import Plant, Wanted
from dev.bench.drift.scraped import Scraped
from dev.bench.drift.site import Counts
from dev.bench.drift.stage import FOREVER_S, HOUR_S, Outcome, Say, Stage
from dev.virtual.cluster import NAMESPACE, VirtualCluster
from dev.virtual.machines import Pace, gpus_asked
from dev.virtual.operator import PROMETHEUS, VirtualOperator, unknown
from dev.virtual.store import Json
from dev.virtual.workloads import is_ready
from rljob_operator.config import Config
from rljob_operator.edges import Question
from rljob_operator.readings import Telemetry
from rljob_planner.split import Split

LAYOUT_LAG_S = 5.0
"""From a layout's publication until the job's containers see the file, which the operator hastens."""
LONGEST_START_S = 6 * 3600.0
CHUNK_S = 600.0
"""Virtual seconds between two looks at whether the trace is over."""
ROLE, UID = "rljob.dev/role", "rljob.dev/uid"


class ControlledError(RuntimeError):
    """The operator did not bring the job up, or raised what is no answer of an API server."""


@dataclass
class Controlled:
    """One job under the operator."""

    stage: Stage
    cluster: VirtualCluster
    name: str
    plant: Plant | None = None
    scraped: Scraped | None = None
    origin_s: float = 0.0
    """Epoch seconds of the plant's time 0."""
    gpu_s: float = 0.0
    moves: list[tuple[int, Counts]] = field(default_factory=list)
    start: Counts | None = None
    decisions: list[tuple[int, str, str]] = field(default_factory=list)
    """Policy version, code and message of each decision that says something new."""
    _pods: dict[str, tuple[str, bool, bool, int]] = field(default_factory=dict)
    """Pod → role, ready, holds GPUs, how many."""
    _moving: bool = False
    _said: tuple[str, str] = ("", "")
    _layout: str = ""

    # --- what the cluster shows to the plant -----------------------------------------------------------------------------------

    def seen(self, event: str, plural: str, obj: Json) -> None:
        """Follow the cluster: pods, the layout, the job's status."""
        meta = obj["metadata"]
        if plural == "pods" and ROLE in (meta.get("labels") or {}):
            self._pod(event, meta, obj)
        elif plural == "configmaps" and meta["name"] == f"{self.name}-layout" and event != "DELETED":
            text = obj["data"]["layout.json"]
            if text != self._layout:
                self._layout = text
                self.cluster.clock.after(LAYOUT_LAG_S, self._see, json.loads(text))
        elif plural == "rljobs" and meta["name"] == self.name:
            self._status(obj.get("status") or {})

    def _pod(self, event: str, meta: Json, pod: Json) -> None:
        self.sync()
        gone = event == "DELETED"
        ready = not gone and is_ready(pod) and not meta.get("deletionTimestamp")
        held = not gone and bool(pod["spec"].get("nodeName"))
        role = str(meta["labels"][ROLE])
        before = self._pods.get(meta["name"])
        if gone:
            self._pods.pop(meta["name"], None)
        else:
            self._pods[meta["name"]] = (role, ready, held, sum(gpus_asked(pod["spec"]).values()))
        if self.plant is not None and (before is None or before[1] != ready):
            self._tell_pods()

    def _ready(self, role: str) -> list[str]:
        return [name for name, (kind, ready, _, _) in self._pods.items() if kind == role and ready]

    def _tell_pods(self) -> None:
        assert self.plant is not None
        self.plant.set_samplers(self._ready("sampler"))
        self.plant.set_trainers(self._ready("trainer"))

    def _see(self, layout: dict[str, Any]) -> None:
        samplers, trainers = layout["samplers"], layout["trainers"]
        wanted = Wanted(
            generation=int(layout["generation"]),
            trainers=int(trainers["replicas"]),
            samplers=frozenset(endpoint["pod"] for endpoint in samplers["endpoints"]),
            draining=frozenset(layout["draining"]),
            in_flight=int(layout["inFlightCap"]),
        )
        if self.plant is None:
            whole = len(wanted.samplers) == samplers["replicas"] and len(self._ready("trainer")) == wanted.trainers
            if not whole or layout["phase"] != "steady":
                return
            self._begin(Counts(len(wanted.samplers), wanted.trainers, wanted.in_flight))
        assert self.plant is not None
        self.sync()
        self.plant.see(wanted)

    def _begin(self, counts: Counts) -> None:
        job = self.cluster.job(self.name)
        assert job is not None
        split = Split.model_validate(job["status"]["split"])
        start = self.stage.start
        same = (
            split.samplers.gpus_per_replica == start.samplers.gpus_per_replica
            and split.samplers.max_running == start.samplers.max_running
            and split.trainers.gpus_per_replica == start.trainers.gpus_per_replica
        )
        self.plant = self.stage.plant(None if same else split)
        self.scraped = Scraped(self.plant, Config().scrape_s)
        self.origin_s, self.start = self.cluster.clock.now_s, counts
        self._tell_pods()

    def _status(self, status: Json) -> None:
        self.sync()
        version = 0 if self.plant is None else self.plant.version
        move = status.get("rebalance")
        if move and not self._moving:
            to = Split.model_validate(move["to"])
            self.moves.append((version, Counts.of(to)))
        self._moving = bool(move)
        decisions = status.get("decisions") or ()
        if decisions:
            said = (str(decisions[-1]["code"]), str(decisions[-1].get("message", "")))
            if said[0] != self._said[0]:
                self.decisions.append((version, *said))
            self._said = said

    # --- time ------------------------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Seconds since the plant's start."""
        return self.cluster.clock.now_s - self.origin_s

    def sync(self) -> None:
        """Bring the plant to the clock's time; the pods held GPUs until then."""
        if self.plant is None or self.scraped is None:
            return
        before = self.plant.now_s
        self.scraped.advance(self.now_s)
        held = sum(gpus for _, _, holds, gpus in self._pods.values() if holds)
        self.gpu_s += (self.plant.now_s - before) * held

    async def observe(self, url: str, question: Question) -> Telemetry:
        """The metrics, as the operator asks for them."""
        if self.plant is None or self.scraped is None:
            return await unknown(url, question)
        self.sync()
        return self.scraped.telemetry(
            at=question.now_s,
            now_s=question.now_s - self.origin_s,
            since_s=None if question.since_s is None else question.since_s - self.origin_s,
            window_s=question.window_s,
            sampler_pods=question.sampler_pods,
            trainer_pods=question.trainer_pods,
        )


def run_controlled(stage: Stage, say: Say = lambda _: None) -> tuple[Outcome, Controlled]:
    """The trace under the operator; raises ``ControlledError``."""
    run, costs = stage.run, stage.run.trace.costs

    def start_s(pod: Json) -> float:
        # All pods of the job's first layout are there at once: start-up is no part of the comparison.
        if controlled.plant is None:
            return 1.0
        return costs.sampler_start if pod["metadata"]["labels"].get(ROLE) == "sampler" else costs.trainer_start

    cluster = VirtualCluster(seed=run.trace.seed & 0xFFFF, pace=Pace(start_s=start_s, stop_s=lambda _: costs.gone))
    options = {} if run.spec.accelerator is None else {"product": run.spec.accelerator}
    cluster.add_nodes(math.ceil(run.spec.gpus / 8), min(8, run.spec.gpus), **options)
    name = str(run.metadata["name"])
    controlled = Controlled(stage, cluster, name)
    cluster.store.watch(controlled.seen)
    manifest = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": run.raw_spec,
    }
    cluster.create_job(manifest)
    operator = VirtualOperator(cluster, observe=controlled.observe, config=Config(prometheus_url=PROMETHEUS)).start()
    clock = cluster.clock
    if not clock.run_while(lambda: controlled.plant is None, until_s=clock.now_s + LONGEST_START_S):
        job = cluster.job(name) or {}
        said = [c.get("message", "") for c in (job.get("status") or {}).get("conditions") or ()]
        raise ControlledError(
            f"{run.name}: the operator did not start the job: {'; '.join([*said, *operator.failures[:2]])}"
        )
    plant = controlled.plant
    assert plant is not None
    limit_s = FOREVER_S if run.trace.hours is None else run.trace.hours * HOUR_S
    told = 0
    while not plant.complete and controlled.now_s < limit_s:
        clock.run_until(controlled.origin_s + min(limit_s, controlled.now_s + CHUNK_S))
        controlled.sync()
        if plant.version >= told + max(1, run.steps // 10):
            told = plant.version
            say(f"step {plant.version} of {run.steps}, {len(controlled.moves)} moves")
    operator.kill()
    if operator.failures:
        raise ControlledError(f"{run.name}: the operator's code failed: {operator.failures[0]}")
    assert controlled.start is not None
    return stage.outcome(plant, controlled.gpu_s, tuple(controlled.moves), controlled.start), controlled
