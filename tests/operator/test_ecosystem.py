"""What others bring to a cluster: queues, other autoscalers, claims, slices, and the words of many vendors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from rljob_operator import (
    adopt,
    children,
    fleet,
    gate,
    planning,
    products,
    queueing,
    rebalance,
    rivals,
    status,
    trouble,
)
from rljob_operator.census import Census
from rljob_operator.cli import app
from rljob_operator.cluster import ClusterError
from rljob_operator.explain import explain
from rljob_operator.explanation import Limit
from rljob_operator.inventory import Inventory, take_inventory
from rljob_operator.rebalance import Deadlines, Observation, PodView
from rljob_operator.status import Fleet, Verdict
from rljob_operator.survey import CLAIMS_LABEL
from rljob_planner.api.spec import RLJob, TargetRef
from rljob_planner.api.status import ConditionType, MovePhase, RLJobStatus
from rljob_planner.hardware import gpu
from rljob_planner.search import Plan
from tests.operator.objects import GPU, SPLIT, UID, job, job_dict, node, pod, spec, template

AMD = "amd.com/gpu"
KUEUE = "kueue.x-k8s.io/admission"
QUEUED = {queueing.QUEUE_LABEL: "team", queueing.PRIORITY_LABEL: "high", "app": "mine"}


def queued_job(**changes: Any) -> RLJob:
    raw = job_dict(**changes)
    return RLJob.model_validate({**raw, "metadata": {**raw["metadata"], "labels": QUEUED}})


def queued_pod(name: str, *gates: str, **options: Any) -> dict[str, Any]:
    found = pod(name, uid=UID, phase="Pending", **options)
    found["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    found["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return found


def inventory(machines: list[dict[str, Any]], pods: Any = (), /, **changes: Any) -> Inventory:
    return take_inventory(spec(**changes), UID, machines, list(pods), [], [job_dict(**changes)])


# Products


@pytest.mark.parametrize(
    ("labels", "resource", "product", "known"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, GPU, "NVIDIA-H100-80GB-HBM3", "h100-sxm-80gb"),
        (
            {"nvidia.com/gpu.product": "NVIDIA-H200", "cloud.google.com/gke-accelerator": "nvidia-l4"},
            GPU,
            "NVIDIA-H200",
            "h200-sxm-141gb",
        ),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, AMD, "AMD_Instinct_MI300X_OAM", "mi300x"),
        ({"beta.amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, AMD, "AMD_Instinct_MI300X_OAM", "mi300x"),
        ({"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}, GPU, "A100-SXM-40GB", "a100-sxm-40gb"),
        ({"cloud.google.com/gke-accelerator": "nvidia-a100-80gb"}, GPU, "A100-SXM4-80GB", "a100-sxm-80gb"),
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}, GPU, "H100-SXM", "h100-sxm-80gb"),
        ({"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"}, GPU, "H200-SXM", "h200-sxm-141gb"),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, GPU, "nvidia-l4", "l4"),
        ({"karpenter.k8s.aws/instance-gpu-name": "h100"}, GPU, "h100", "h100-sxm-80gb"),
        (
            {"karpenter.k8s.aws/instance-gpu-name": "a100", "karpenter.k8s.aws/instance-gpu-memory": "40960"},
            GPU,
            "A100-SXM-40GB",
            "a100-sxm-40gb",
        ),
        (
            {"eks.amazonaws.com/instance-gpu-name": "a100", "eks.amazonaws.com/instance-gpu-memory": "81920"},
            GPU,
            "A100-SXM4-80GB",
            "a100-sxm-80gb",
        ),
        ({"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"}, GPU, "H100-SXM", "h100-sxm-80gb"),
        ({"node.kubernetes.io/instance-type": "Standard_NC40ads_H100_v5"}, GPU, "H100-NVL", "h100-nvl-94gb"),
        ({"node.kubernetes.io/instance-type": "Standard_ND96isr_MI300X_v5"}, AMD, "AMD-Instinct-MI300X", "mi300x"),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, GPU, "H100-SXM", "h100-sxm-80gb"),
        ({"node.kubernetes.io/instance-type": "p5en.48xlarge"}, GPU, "H200-SXM", "h200-sxm-141gb"),
        ({"node.kubernetes.io/instance-type": "g6e.12xlarge"}, GPU, "L40S", "l40s"),
    ],
)
def test_what_vendors_and_clouds_call_a_gpu_is_a_gpu_that_the_planner_knows(
    labels: dict[str, str], resource: str, product: str, known: str
) -> None:
    assert products.product_of(labels, resource) == product
    assert gpu(product).name == known


def test_a_node_that_does_not_name_its_gpu_has_no_product_and_an_unknown_name_is_passed_on() -> None:
    assert products.product_of({"accelerator": "nvidia"}, GPU) is None
    assert products.product_of({"node.kubernetes.io/instance-type": "m5.large"}, GPU) is None
    assert products.product_of({"cloud.google.com/gke-accelerator": "nvidia-x9"}, GPU) == "nvidia-x9"


def test_the_product_of_an_amd_node_reaches_the_plan() -> None:
    labels = {"nvidia.com/gpu.product": "", "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
    nodes = [node(name, labels=labels, resource=AMD) for name in ("a", "b")]
    found = inventory(nodes, nodes={"gpuResource": AMD})
    assert found.sampler_accelerator == found.trainer_accelerator == "AMD_Instinct_MI300X_OAM"
    assert [room.free_gpus for room in found.rooms] == [8, 8]


# What is no whole GPU


@pytest.mark.parametrize(
    ("labels", "resource", "words"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}, GPU, "counts MIG slices"),
        ({"cloud.google.com/gke-gpu-partition-size": "1g.10gb"}, GPU, "counts MIG slices (1g.10gb)"),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}, GPU, "counts shared GPUs"),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}, GPU, "4 times each"),
        ({"nvidia.com/gpu.sharing-strategy": "mps"}, GPU, "counts shared GPUs (mps)"),
        ({"nvidia.com/gpu.replicas": "2"}, GPU, "counts shared GPUs (H100-SXM, 2 times each)"),
        ({"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}, GPU, "counts shared GPUs (time-sharing)"),
        ({"cloud.google.com/gke-max-shared-clients-per-gpu": "3"}, GPU, "3 times each"),
        ({"amd.com/compute-memory-partition": "cpx_nps4"}, AMD, "counts partitions of GPUs (cpx_nps4)"),
    ],
)
def test_slices_and_shares_are_no_gpus(labels: dict[str, str], resource: str, words: str) -> None:
    shared = node("shared", 32, labels=labels, resource=resource)
    found = inventory([node("whole", resource=resource), shared], nodes={"gpuResource": resource})
    assert [room.node for room in found.rooms] == ["whole"]
    (note,) = [note for note in found.notes if note.startswith("node shared ")]
    assert words in note
    assert f"as {resource}" in note
    assert "needs whole GPUs" in note


@pytest.mark.parametrize(
    ("labels", "resource"),
    [
        ({"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1"}, GPU),
        ({"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, GPU),
        ({"amd.com/compute-memory-partition": "spx_nps1"}, AMD),
        ({"amd.com/compute-partitioning-supported": "true"}, AMD),
    ],
)
def test_what_could_be_shared_and_is_not_counts(labels: dict[str, str], resource: str) -> None:
    assert products.not_whole(labels, resource) is None


def test_what_runs_on_a_node_stays_when_it_comes_to_share_its_gpus() -> None:
    shared = node("shared", 16, labels={"nvidia.com/gpu.sharing-strategy": "mps"})
    found = inventory([shared], [pod("s", 2, node="shared", uid=UID)])
    assert [(room.free_gpus, room.samplers, room.trainers) for room in found.rooms] == [(2, True, False)]


def test_a_job_whose_nodes_all_share_their_gpus_is_told_why_it_does_not_fit() -> None:
    found = inventory([node(name, labels={"nvidia.com/gpu.sharing-strategy": "mps"}) for name in ("a", "b")])
    verdict = planning.first_plan(spec(), found)
    assert isinstance(verdict, Verdict)
    assert verdict.reason == "DoesNotFit"
    assert "nodes a and b count shared GPUs (mps) as nvidia.com/gpu" in verdict.message


# Claims


CLAIMING: dict[str, Any] = {"resourceClaims": [{"name": "device", "resourceClaimTemplateName": "one"}]}


def test_a_node_on_which_a_claim_may_hold_a_gpu_is_not_used() -> None:
    others = [pod("claims", 0, node="a", **CLAIMING), pod("plain", 3, node="b")]
    found = inventory([node("a"), node("b")], others)
    assert [(room.node, room.free_gpus) for room in found.rooms] == [("b", 5)]
    (note,) = [note for note in found.notes if "claims" in note]
    assert note.startswith("node a has pods of others with resource claims, which may hold any of its GPUs")
    assert f"{CLAIMS_LABEL}=no-gpus" in note


def test_an_administrator_may_say_that_claims_hold_no_gpus() -> None:
    others = [pod("claims", 0, node="a", **CLAIMING)]
    found = inventory([node("a", labels={CLAIMS_LABEL: "no-gpus"})], others)
    assert [room.free_gpus for room in found.rooms] == [8]
    assert found.notes == ()


def test_claims_that_have_ended_or_wait_close_no_node() -> None:
    ended = pod("ended", 0, node="a", phase="Succeeded", **CLAIMING)
    assert Census([ended, pod("waits", 0, **CLAIMING)]).with_claims("a", UID) == 0


def test_what_runs_beside_a_claim_stays() -> None:
    found = inventory(
        [node("a")], [pod("claims", 0, node="a", **CLAIMING), pod("t", 8, node="a", uid=UID, role="trainer")]
    )
    assert [(room.free_gpus, room.samplers, room.trainers) for room in found.rooms] == [(8, False, True)]


def test_a_node_whose_gpus_a_dra_driver_publishes_offers_none() -> None:
    found = inventory([node("a", None)], nodes={"selector": {"nvidia.com/gpu.product": "H100-SXM"}})
    assert found.rooms == ()
    assert "node a has no allocatable nvidia.com/gpu" in found.notes


@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_a_template_that_claims_devices_is_refused(where: str) -> None:
    claiming = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpus"}]}}
    made = job(sampler={"template": template(**{where: [claiming]})})
    with pytest.raises(children.TemplateError, match=r"container c: resources\.claims .* ask for devices by extended"):
        children.sampler_workload(made, SPLIT, 1)


def test_a_template_with_claims_of_its_pod_is_refused() -> None:
    made = job(trainer={"template": template(**CLAIMING)})
    with pytest.raises(children.TemplateError, match=r"spec\.trainer\.template\.spec\.resourceClaims"):
        children.trainer_workload(made, SPLIT, 1)


# Replicas wider than a node


def test_a_replica_wider_than_any_node_is_refused_and_says_what_would_be_needed() -> None:
    found = planning.first_plan(
        spec(sampler={"gpusPerReplica": 16}), inventory([node("a"), node("b")], sampler={"gpusPerReplica": 16})
    )
    assert isinstance(found, Verdict)
    assert (found.status, found.reason) == (False, "WiderThanANode")
    assert "a sampler replica of 16 GPUs is wider than any node" in found.message
    assert "the widest has 8" in found.message
    assert "LeaderWorkerSet" in found.message
    assert "spec.sampler.gpusPerReplica: 8 or less" in found.message


def test_a_node_that_counts_slices_is_no_wide_node() -> None:
    sliced = node("sliced", 56, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"})
    wide = {"sampler": {"gpusPerReplica": 16}}
    seen = inventory([node("a"), sliced], **wide)
    assert seen.widest == {"sampler": 8, "trainer": 8}
    found = planning.first_plan(spec(**wide), seen)
    assert isinstance(found, Verdict)
    assert found.reason == "WiderThanANode"
    assert "the widest has 8" in found.message
    assert inventory([sliced]).widest == {"sampler": 0, "trainer": 0}


def test_wide_nodes_that_are_taken_are_another_matter() -> None:
    taken = [pod("other", 6, node="a"), pod("another", 6, node="b")]
    found = planning.first_plan(spec(), inventory([node("a"), node("b")], taken))
    assert isinstance(found, Verdict)
    assert found.reason == "DoesNotFit"


def test_a_trainer_wider_than_a_node_is_told_to_use_more_pods() -> None:
    wide = {"trainer": {"gpusPerReplica": 16}}
    found = planning.first_plan(spec(**wide), inventory([node("a"), node("b")], **wide))
    assert isinstance(found, Verdict)
    assert "trainer pods work together across nodes" in found.message


def test_the_command_line_says_the_same_of_a_replica_wider_than_a_node() -> None:
    wide = job_dict(gpus=32, sampler={"gpusPerReplica": 16})
    result = CliRunner().invoke(app, ["plan", "-", "--accelerator", "H100-SXM"], input=json.dumps(wide))
    assert result.exit_code != 0
    assert "a sampler replica of 16 GPUs is wider than any node" in result.stderr
    assert "LeaderWorkerSet" in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--tensor-parallel-size=4"], "an engine of 4 GPUs (--tensor-parallel-size 4) in a pod that has 2"),
        (["-tp", "2", "-pp", "2"], "an engine of 4 GPUs (--tensor-parallel-size 2, --pipeline-parallel-size 2)"),
        (["--tensor-parallel-size=$(RLJOB_TENSOR_PARALLEL)", "--pipeline-parallel-size=2"], "an engine of 4 GPUs"),
        (["--data-parallel-size", "4"], "an engine of 4 GPUs"),
        (
            ["--tp-size", "4", "--data-parallel-size", "4", "--enable-dp-attention"],
            "an engine of 4 GPUs (--tensor-parallel-size 4)",
        ),
        (["--nnodes=2"], "spans pods"),
        (["--headless"], "spans pods"),
    ],
)
def test_an_engine_wider_than_its_pod_is_refused(args: list[str], words: str) -> None:
    engine = template(containers=[{"name": "vllm", "image": "i", "args": args}])
    with pytest.raises(children.TemplateError) as caught:
        children.sampler_workload(job(sampler={"template": engine}), SPLIT, 1)
    assert words in str(caught.value)
    assert "LeaderWorkerSet" in str(caught.value)


@pytest.mark.parametrize(
    "args",
    [
        ["--tensor-parallel-size=$(RLJOB_TENSOR_PARALLEL)"],
        ["--tensor-parallel-size=2"],
        ["--data-parallel-size=2", "--nnodes=1"],
        # SGLang's attention in data parallel divides the GPUs of tensor parallelism.
        ["--tp-size", "2", "--data-parallel-size", "2", "--enable-dp-attention"],
        ["--enable-dp-attention", "--tp-size=$(RLJOB_TENSOR_PARALLEL)", "--data-parallel-size=8"],
        ["--tensor-parallel-size", "$(WIDTH)"],
    ],
)
def test_an_engine_that_its_pod_holds_is_not_refused(args: list[str]) -> None:
    engine = template(containers=[{"name": "vllm", "image": "i", "args": args}])
    children.sampler_workload(job(sampler={"template": engine}), SPLIT, 1)


# Groups can't be adopted


def test_a_workload_of_a_leader_worker_set_is_not_adopted() -> None:
    workload = {
        "metadata": {"name": "lws-0", "labels": {"leaderworkerset.sigs.k8s.io/name": "lws"}},
        "spec": {"replicas": 2, "template": template()},
    }
    found = adopt.read_side(spec(), "sampler", TargetRef(kind="StatefulSet", name="lws-0"), workload)
    assert isinstance(found, Verdict)
    assert found.reason == "TargetIsAGroup"
    assert "LeaderWorkerSet lws" in found.message


# Other autoscalers


def test_an_autoscaler_that_keda_made_is_seen_by_what_it_scales() -> None:
    keda = {
        "metadata": {
            "name": "keda-hpa-rollouts",
            "labels": {"app.kubernetes.io/managed-by": "keda-operator", "scaledobject.keda.sh/name": "rollouts"},
            "ownerReferences": [{"kind": "ScaledObject", "name": "rollouts"}],
        },
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "mine-samplers"}},
    }
    other = {"metadata": {"name": "x"}, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "mine"}}}
    found = rivals.rivals_of(job(), [other, keda])
    assert [(rival.role, rival.name) for rival in found] == [("sampler", "keda-hpa-rollouts")]
    assert "one of KEDA's goes with its ScaledObject" in rivals.words(found, "rl")


# Kueue


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_a_queue_goes_to_the_workloads_and_pods_that_hold_gpus_and_to_nothing_else(kind: str) -> None:
    made = queued_job(trainer={"kind": kind, "resize": "restart"})
    handed_on = {queueing.QUEUE_LABEL: "team", queueing.PRIORITY_LABEL: "high"}
    for workload in (children.sampler_workload(made, SPLIT, 1), children.trainer_workload(made, SPLIT, 1)):
        for metadata in (workload["metadata"], workload["spec"]["template"]["metadata"]):
            assert handed_on.items() <= metadata["labels"].items()
            assert "app" not in metadata["labels"]
        assert not handed_on.keys() & workload["spec"]["selector"]["matchLabels"].keys()
    for other in (*children.services(made), children.layout_config_map(made, "")):
        assert not handed_on.keys() & other["metadata"]["labels"].keys()
    for trial in children.trial_pods(made, SPLIT):
        assert handed_on.items() <= trial["metadata"]["labels"].items()


def test_a_job_of_no_queue_has_the_pods_that_it_had() -> None:
    labels = children.sampler_workload(job(), SPLIT, 1)["spec"]["template"]["metadata"]["labels"]
    assert not [key for key in labels if "kueue" in key]


def test_a_template_that_names_another_queue_is_refused() -> None:
    other = {**template(), "metadata": {"labels": {queueing.QUEUE_LABEL: "other"}}}
    with pytest.raises(
        children.TemplateError, match=r"kueue\.x-k8s\.io/queue-name to 'other', but the RLJob's own label to 'team'"
    ):
        children.sampler_workload(queued_job(sampler={"template": other}), SPLIT, 1)


@pytest.mark.parametrize(
    ("trainer", "refused"),
    [
        ({"kind": "StatefulSet"}, True),
        ({"kind": "StatefulSet", "resize": "restart"}, False),
        ({"kind": "StatefulSet", "resize": "fixed"}, False),
        ({"kind": "Deployment"}, False),
    ],
)
def test_a_stateful_set_in_a_queue_may_only_change_through_zero(trainer: dict[str, str], refused: bool) -> None:
    assert queueing.refusal(job(trainer=trainer)) is None
    made = queued_job(trainer=trainer)
    if not refused:
        children.trainer_workload(made, SPLIT, 1)
        return
    with pytest.raises(children.TemplateError, match=r"trainer\.resize: restart .*or trainer\.kind: Deployment"):
        children.trainer_workload(made, SPLIT, 1)


def test_a_pod_waits_in_a_queue_once_the_budget_lets_it_go() -> None:
    assert queueing.waits_at(queued_pod("both", KUEUE, "rljob.dev/budget")) is None
    assert queueing.waits_at(queued_pod("one", KUEUE)) == KUEUE
    assert queueing.waits_at(queued_pod("none")) is None
    assert queueing.waits_at(queued_pod("bound", KUEUE, node="a")) is None
    assert queueing.waits_at(queued_pod("going", KUEUE, terminating=True)) is None


def test_a_pod_that_waits_in_a_queue_counts_in_the_budget_and_on_no_node() -> None:
    waiting = [queued_pod("s", KUEUE)]
    found = fleet.fleet("sampler", 1, waiting, None)
    assert (found.bound, found.gated, found.queued) == (0, 0, (KUEUE,))
    assert gate.held_gpus(waiting, GPU) == 1
    both = [*waiting, queued_pod("t", KUEUE, "rljob.dev/budget")]
    assert gate.pods_to_lift(both, budget=1, gpu_resource=GPU, wanted={"sampler": 2}) == ()
    assert inventory([node("a")], waiting).rooms[0].free_gpus == 8


def test_pods_of_others_that_wait_in_a_queue_take_nothing() -> None:
    theirs = pod("other", 4, phase="Pending", schedulingGates=[{"name": KUEUE}])
    found = inventory([node("a")], [theirs])
    assert (found.rooms[0].free_gpus, found.notes) == (8, ())


FULL = Fleet(wanted=4, existing=4, bound=4, ready=4)


def test_the_condition_says_that_pods_wait_for_the_queue_and_what_to_do() -> None:
    waiting = replace(FULL, bound=2, ready=2, queued=(KUEUE, KUEUE))
    verdict = status.scheduled(waiting, FULL, 32, 32, namespace="rl", queue="team")
    assert (verdict.status, verdict.reason) == (False, "WaitingForKueue")
    assert "2 pods wait at Kueue's gate, in queue team: kubectl -n rl get workloads" in verdict.message
    shown = status.conditions((), {ConditionType.SCHEDULED: verdict}, generation=1, now_s=0.0)
    found = explain("mine", "rl", spec(), RLJobStatus(conditions=shown, split=SPLIT))
    limit = next(each for each in found.limits if each.binds)
    assert limit.limit is Limit.PLACEMENT
    assert "WaitingForKueue" in limit.why
    assert limit.unblock is not None
    assert "Raise the quota" in limit.unblock
    assert not status.events((), shown), "every job in a queue passes through it"


def test_a_gate_that_nobody_knows_is_named() -> None:
    verdict = status.scheduled(replace(FULL, bound=3, queued=("example.com/hold",)), FULL, 32, 32)
    assert verdict.reason == "WaitingForGate"
    assert "example.com/hold" in verdict.message


def test_what_a_webhook_refuses_is_not_taken_for_a_name_that_is_taken() -> None:
    told = (
        'admission webhook "vstatefulset.kb.io" denied the request: spec.replicas: Invalid value: 3: field is immutable'
    )
    assert not trouble.in_the_way(ClusterError(403, "Forbidden", told))
    assert trouble.in_the_way(ClusterError(422, "Invalid", "spec.selector: Invalid value: field is immutable"))


# A move whose pods wait in a queue


DEADLINES = Deadlines(acknowledge_s=60, drain_s=60, gone_s=60, ready_s=60)


def seen(now_s: float, ready: dict[str, int], queued: dict[str, int], broken: int = 0) -> Observation:
    pods = [PodView(f"{role}-{i}", role, ready=True) for role, count in ready.items() for i in range(count)]
    pods += [PodView(f"{role}-q{i}", role, False, waits_at=KUEUE) for role, n in queued.items() for i in range(n)]
    pods += [PodView(f"broken-{i}", "sampler", ready=False) for i in range(broken)]
    return Observation(now_s=now_s, pods=tuple(pods), published_generation=1, acknowledged_generation=1)


def sized(samplers: int, trainers: int) -> Any:
    return rebalance.with_replicas(SPLIT, samplers, trainers)


def growing(before: Any, after: Any) -> Any:
    move = rebalance.start(
        before=before,
        after=after,
        reason="test",
        predicted_gain=0.1,
        observation=seen(0.0, {}, {}),
        deadlines=DEADLINES,
    )
    return move.model_copy(update={"phase": MovePhase.GROW, "deadline": rebalance.timestamp(60.0)})


def keep(_split: Any) -> bool:
    return True


def test_a_move_says_that_its_pods_wait_in_a_queue() -> None:
    move = growing(sized(8, 2), sized(12, 1))
    step = rebalance.advance(move, seen(10.0, {"sampler": 9, "trainer": 1}, {"sampler": 3}), DEADLINES, keeps=keep)
    assert step.move is not None
    assert step.move.waiting_for.startswith("pods to be ready: 3 of 12 samplers")
    assert "they wait at Kueue's gate for quota: kubectl get workloads" in step.move.waiting_for


def test_a_move_that_a_queue_holds_up_goes_on_with_what_it_got() -> None:
    move = growing(sized(8, 2), sized(12, 1))
    step = rebalance.advance(move, seen(61.0, {"sampler": 9, "trainer": 1}, {"sampler": 3}), DEADLINES, keeps=keep)
    assert step.move is not None
    assert not step.move.rolling_back, "the trainer that left would wait in the same queue"
    assert (step.move.to_split.samplers.replicas, step.move.to_split.trainers.replicas) == (9, 1)


def test_a_move_that_got_nothing_from_its_queue_ends_where_it_began() -> None:
    move = growing(sized(8, 2), sized(12, 2))
    step = rebalance.advance(move, seen(61.0, {"sampler": 8, "trainer": 2}, {"sampler": 4}), DEADLINES, keeps=keep)
    assert step.move is not None
    assert step.move.rolling_back
    assert step.move.to_split.same_shape(sized(8, 2))
    assert "Kueue's gate" in step.move.reason


def test_a_move_with_another_trouble_beside_the_queue_rolls_back_as_ever() -> None:
    move = growing(sized(8, 2), sized(12, 1))
    step = rebalance.advance(
        move, seen(61.0, {"sampler": 9, "trainer": 1}, {"sampler": 2}, broken=1), DEADLINES, keeps=keep
    )
    assert step.move is not None
    assert step.move.rolling_back
    assert step.move.to_split.same_shape(sized(8, 2))


def test_the_plan_of_a_job_on_whole_gpus_is_a_plan() -> None:
    found = planning.first_plan(spec(), inventory([node(name) for name in "abcd"]))
    assert isinstance(found, Plan)
