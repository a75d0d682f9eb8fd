"""What one pass over a job has gathered and decided so far: the value that its steps hand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rljob_operator import eligibility, gate, planning, pools, status
from rljob_operator.cluster import Json
from rljob_operator.inventory import Inventory, QuotaRoom
from rljob_operator.lifecycle import Workloads
from rljob_operator.pools import Lost
from rljob_operator.rebalance import Targets
from rljob_operator.rivals import Rival
from rljob_operator.status import Fleet, Verdict
from rljob_planner.api.pools import SamplerPool
from rljob_planner.api.spec import RLJob, RLJobSpec
from rljob_planner.api.status import ConditionType, RLJobStatus
from rljob_planner.split import Split


@dataclass
class Pass:
    """What one pass has gathered; ``now`` is the status as it will be written."""

    job: RLJob
    raw: Json
    before: RLJobStatus
    now: RLJobStatus
    now_s: float
    pods: list[Json]
    take_inventory: Callable[[], Inventory]
    """Surveys all nodes and pods of the cluster; asked through ``inventory``."""
    samplers: Fleet
    trainers: Fleet
    targets: Targets | None
    """Replicas wished by the persisted status; None while there is no split."""
    workloads: Workloads = (None, None)
    """The samplers' and the trainers' workload as the view shows them."""
    rivals: tuple[Rival, ...] = ()
    """Other autoscalers that scale the job's workloads."""
    lost_pools: Mapping[str, Lost] = field(default_factory=dict)
    """Pools of ``sampler.pools`` without a ready node, by name."""
    degradations: list[tuple[str, str]] = field(default_factory=list)
    """What needs a person although the split is all right: reason and message for ``Degraded``, the worst first."""
    verdicts: dict[ConditionType, Verdict] = field(default_factory=dict)
    said: list[tuple[str, str, str]] = field(default_factory=list)
    """Events to post: type, reason, message."""
    again_s: float | None = None
    """When the next pass should run at the latest, None for the idle tick."""
    others_plan_first: Callable[[], bool] = lambda: False
    """Whether jobs that come before this one on the same nodes still have their first turn to plan."""
    has_quotas: bool = False
    """Whether ResourceQuotas stand in the job's namespace."""
    promise: Callable[[dict[str, Any]], None] = lambda _: None
    """Makes a split count for the other jobs from the moment when it is chosen; given the fields of the status that say it."""

    @property
    def spec(self) -> RLJobSpec:
        """The job's spec."""
        return self.job.spec

    def update(self, **fields: Any) -> None:
        """Changes the status to be written; GPUs that it takes are taken from now on."""
        self.now = self.now.model_copy(update=fields)
        if fields.keys() & {"split", "rebalance"}:
            taken = {"phase", "split", "rebalance", "conditions"}
            self.promise(self.now.model_dump(mode="json", by_alias=True, exclude_none=True, include=taken))

    def soon(self, delay_s: float) -> None:
        """Asks for the next pass within ``delay_s``."""
        self.again_s = delay_s if self.again_s is None else min(self.again_s, delay_s)

    @cached_property
    def inventory(self) -> Inventory:
        """What the job may use, surveyed once and only in passes that plan or decide."""
        return self.take_inventory()

    @property
    def quota(self) -> QuotaRoom | None:
        """The tightest ResourceQuota that covers the job's pods; None if there is none."""
        return self.inventory.quota if self.has_quotas else None

    def still_holds(self, split: Split) -> bool:
        """Whether a split that was chosen some time ago would still fit, now that others may have chosen theirs."""
        before = self.inventory
        del self.inventory
        same = (before.rooms, before.budget) == (self.inventory.rooms, self.inventory.budget)
        return same or planning.packs(split, self.inventory)

    @property
    def uid(self) -> str:
        """The uid of the RLJob."""
        return str(self.raw["metadata"]["uid"])

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name of the job, the labels of its metrics."""
        meta = self.raw["metadata"]
        return str(meta["namespace"]), str(meta["name"])

    @property
    def generation(self) -> int:
        """Generation of the spec that this pass reads."""
        return int(self.raw["metadata"].get("generation", 0))

    @property
    def lasting_pods(self) -> list[Json]:
        """The pods without those of lost pools that are being deleted and may never end: nothing waits for them."""
        lost = pools.given_up(self.pods, self.lost_pools)
        return [pod for pod in self.pods if gate.name_of(pod) not in lost]

    def pins(self, pods: Sequence[Json]) -> Mapping[str, SamplerPool]:
        """The pool of each sampler whose gate the persisted status grants, by uid."""
        split = self.before.split if self.before.rebalance is None else self.before.rebalance.to_split
        return {} if split is None else pools.pins(self.spec, split, pods, self.before.grants, self.lost_pools)

    @property
    def gpu_resources(self) -> frozenset[str]:
        """The extended resources that count the job's GPUs."""
        return eligibility.gpu_resources(self.spec)

    @property
    def held_gpus(self) -> int:
        """GPUs that the job's pods hold."""
        return gate.held_gpus(self.pods, self.gpu_resources)

    @property
    def all_ready(self) -> bool:
        """Whether every wished pod is ready, and there is one."""
        wanted = self.targets
        return (
            wanted is not None
            and not status.nothing_wished(wanted)
            and self.samplers.ready >= wanted.samplers
            and self.trainers.ready >= wanted.trainers
        )

    @property
    def some_exist(self) -> bool:
        """Whether any pod of the job is there, terminating ones included."""
        return self.samplers.existing + self.trainers.existing > 0

    def ready_names(self, role: str) -> frozenset[str]:
        """Names of the pods of a role that are ready and stay."""
        return frozenset(
            gate.name_of(pod)
            for pod in self.pods
            if gate.role_of(pod) == role and gate.is_ready(pod) and not gate.is_terminating(pod)
        )
