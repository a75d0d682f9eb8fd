"""The emulator's edge: metrics pages, the volume's lag, configuration, faults, and the plant that never moves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from dev.emulator.cluster import LayoutVolume, PodState, pod_state
from dev.emulator.config import EmulatorConfig, faults_of, parse
from dev.emulator.emulation import Emulation
from dev.emulator.exposition import shares
from dev.emulator.server import application
from rljob_planner.api.spec import Bound
from tests.unit.emulator_job import layout_text, workload

CONFIG: dict[str, Any] = {
    "seed": 3,
    "layout_lag_s": 2.0,
    "lengths": {"trace": [[0, 100], [30, 200]], "cv": 0.5, "max_tokens": 2000},
    "truth": {
        "weight_sync_s": 0.1,
        "decode": {
            "fixed_s": 0.01, "weights_s": 0, "per_context_token_s": 0, "per_sample_s": 0, "prefill_per_token_s": 0,
            "kv_tokens_per_gpu": 100_000, "weights_kv_tokens": 4_000, "noise": 0.05,
        },
        "train": {"fixed_s": 1.0, "per_token_gpu_s": 0.0, "noise": 0.05, "regroup_s": 2.0},
    },
}  # fmt: skip

# As recorded from vLLM 0.32: name → (kind, labels of its series).
VLLM = {
    "vllm:num_requests_running": ("gauge", {"engine", "model_name"}),
    "vllm:num_requests_waiting": ("gauge", {"engine", "model_name"}),
    "vllm:num_requests_waiting_by_reason": ("gauge", {"engine", "model_name", "reason"}),
    "vllm:kv_cache_usage_perc": ("gauge", {"engine", "model_name"}),
    "vllm:num_preemptions": ("counter", {"engine", "model_name"}),
    "vllm:prompt_tokens": ("counter", {"engine", "model_name"}),
    "vllm:generation_tokens": ("counter", {"engine", "model_name"}),
    "vllm:request_success": ("counter", {"engine", "finished_reason", "model_name"}),
    "vllm:request_generation_tokens": ("histogram", {"engine", "model_name"}),
    "vllm:time_to_first_token_seconds": ("histogram", {"engine", "model_name"}),
    "vllm:inter_token_latency_seconds": ("histogram", {"engine", "model_name"}),
}


def config(**changes: Any) -> EmulatorConfig:
    return parse(yaml.safe_dump({**CONFIG, **changes}))


def pods(samplers: int = 2, trainers: int = 1, touched: int = 1) -> dict[str, PodState]:
    fleet = {f"s-{i}": PodState("sampler", True, touched) for i in range(samplers)}
    fleet |= {f"t-{i}": PodState("trainer", True, touched) for i in range(trainers)}
    return fleet


class Driven:
    """An emulation with a clock of its own."""

    def __init__(
        self, *, shadow: bool = False, conf: EmulatorConfig | None = None, bound: Bound = Bound.ADMISSION
    ) -> None:
        self.lines: list[dict[str, Any]] = []
        self.emulation = Emulation(
            conf or config(), workload(bound=bound), "tiny", shadow=shadow,
            log=lambda line: self.lines.append(json.loads(line)),
        )  # fmt: skip
        self.now = 1000.0

    def go(self, seconds: float, fleet: Mapping[str, PodState], text: str | None) -> None:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.emulation.observe(fleet, text, self.now)

    def metric(self, pod: str, name: str) -> float | None:
        page = self.emulation.page(pod)
        assert page is not None
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                if sample.name == name:
                    return sample.value
        return None


def test_a_sampler_shows_what_vllm_shows() -> None:
    driven = Driven()
    driven.go(30, pods(), layout_text())
    page = driven.emulation.page("s-0")
    assert page is not None
    families = {f.name: f for f in text_string_to_metric_families(page.decode())}
    for name, (kind, labels) in VLLM.items():
        assert families[name].type == kind
        assert {frozenset(s.labels) - {"le"} for s in families[name].samples} == {frozenset(labels)}
    info = families["vllm:cache_config_info"].samples[0]
    assert (info.labels["kv_cache_size_tokens"], info.labels["num_gpu_blocks"], info.labels["block_size"]) == (
        "96000", "6000", "16",
    )  # fmt: skip
    pod = driven.emulation.plant.fleet.get("s-0")
    assert pod is not None
    assert driven.metric("s-0", "vllm:num_requests_running") == pod.running > 0
    assert driven.metric("s-0", "vllm:request_generation_tokens_count") == pod.finished > 0
    count = driven.metric("s-0", "vllm:inter_token_latency_seconds_count")
    total = driven.metric("s-0", "vllm:inter_token_latency_seconds_sum")
    assert count
    assert total
    # 10 ms an iteration, and a pause of 0.1 s about once a second.
    assert 0.0095 < total / count < 0.0125
    generated = driven.metric("s-0", "vllm:generation_tokens_total")
    first = driven.metric("s-0", "vllm:time_to_first_token_seconds_count")
    assert generated
    assert first
    # No gap before a sample's first token, which those that have just begun have not had.
    assert count == pytest.approx(generated - first, abs=pod.running)


def test_buckets_are_cumulative_and_end_with_the_count() -> None:
    driven = Driven()
    driven.go(30, pods(), layout_text())
    page = driven.emulation.page("s-1")
    assert page is not None
    for family in text_string_to_metric_families(page.decode()):
        if family.type == "histogram":
            buckets = [s.value for s in family.samples if s.name.endswith("_bucket")]
            count = next(s.value for s in family.samples if s.name.endswith("_count"))
            assert buckets == sorted(buckets)
            assert buckets[-1] == count


def test_waiting_samples_wait_at_the_engines() -> None:
    assert shares(7, 3) == [3, 2, 2]
    assert shares(0, 2) == [0, 0]
    driven = Driven(bound=Bound.NONE)
    driven.go(20, pods(), layout_text(cap=64, max_running=4))
    waiting = [driven.metric(f"s-{i}", "vllm:num_requests_waiting") for i in range(2)]
    assert sum(w or 0 for w in waiting) == len(driven.emulation.plant.waiting) > 0


def test_the_trainer_reports_through_the_runtime() -> None:
    driven = Driven()
    driven.go(40, pods(trainers=2), layout_text(trainers=2))
    plant = driven.emulation.plant
    assert driven.metric("t-0", "rljob_policy_version") == plant.trainer.version > 3
    assert driven.metric("t-0", "rljob_trained_samples_total") == 16 * plant.trainer.version
    assert driven.metric("t-0", "rljob_inflight_samples") == plant.in_flight
    assert driven.metric("t-0", "rljob_layout_generation") == 1
    assert driven.metric("t-1", "rljob_layout_generation") == 1
    assert driven.metric("t-1", "rljob_policy_version") is None, "one voice"


def test_another_rank_0_goes_on_from_the_version_with_new_counters() -> None:
    driven = Driven()
    driven.go(30, pods(trainers=2), layout_text(trainers=2))
    version = driven.emulation.plant.trainer.version
    gone = pods(trainers=2) | {"t-0": PodState("trainer", False, 1)}
    driven.go(1, gone, layout_text(trainers=2))
    assert driven.metric("t-1", "rljob_policy_version") == version
    assert driven.metric("t-1", "rljob_trained_samples_total") == 0
    assert driven.emulation.page("t-0") is None


def test_the_loop_starts_when_all_pods_of_the_layout_are_ready() -> None:
    driven = Driven()
    driven.go(5, pods(samplers=1), layout_text())
    assert not driven.emulation.started
    assert driven.metric("t-0", "rljob_policy_version") == 0
    assert driven.metric("s-0", "vllm:num_requests_running") == 0
    driven.go(1, pods(), layout_text())
    assert driven.emulation.started


def test_the_loop_starts_without_the_last_pods_in_the_end() -> None:
    driven = Driven(conf=config(start_timeout_s=20))
    driven.go(15, pods(samplers=1), layout_text())
    assert not driven.emulation.started
    driven.go(15, pods(samplers=1), layout_text())
    assert driven.emulation.started


def test_the_shadow_keeps_the_first_split() -> None:
    driven = Driven(shadow=True)
    driven.go(20, pods(), layout_text())
    driven.go(40, pods(samplers=1), layout_text(2, samplers=["s-0"]))
    live = [line for line in driven.lines if line["plant"] == "live"]
    shadow = [line for line in driven.lines if line["plant"] == "shadow"]
    assert {line["samplers"] for line in shadow} == {2}
    assert {line["samplers"] for line in live} == {1, 2}
    together = min(len(live), len(shadow), 5)
    assert [line["t"] for line in live[:together]] == [line["t"] for line in shadow[:together]]
    state = driven.emulation.state()
    assert state["live"]["t"] == state["shadow"]["t"]


def test_a_machine_that_was_too_busy_leaves_time_out() -> None:
    driven = Driven(shadow=True)
    driven.go(10, pods(), layout_text())
    before = driven.emulation.plant.t
    driven.now += 100.0
    driven.emulation.observe(pods(), layout_text(), driven.now)
    assert driven.emulation.plant.t == pytest.approx(before + 5.0, abs=0.11)
    assert driven.emulation.shadow is not None
    assert driven.emulation.shadow.t == driven.emulation.plant.t


# --- volume ------------------------------------------------------------------------------------------------------------------


def test_a_volume_lags_less_when_a_pod_is_touched() -> None:
    volume = LayoutVolume(lag_s=2.0, untouched_lag_s=60.0)
    volume.wrote(layout_text(1), 0.0)
    assert volume.poll(-1, 1.9) is None
    first = volume.poll(-1, 2.0)
    assert first is not None, "a pod that starts mounts what is there"
    volume.wrote(layout_text(2), 10.0)
    assert volume.poll(1, 60.0) is None
    second = volume.poll(2, 60.1)
    assert second is not None
    assert second.generation == 2
    volume.wrote(layout_text(3), 100.0)
    assert volume.poll(2, 159.9) is None
    assert volume.poll(2, 160.0) is not None


def test_a_volume_never_goes_back() -> None:
    volume = LayoutVolume(lag_s=2.0, untouched_lag_s=60.0)
    volume.wrote(layout_text(1), 0.0)
    volume.poll(-1, 5.0)
    volume.wrote(layout_text(2), 10.0)
    volume.wrote(layout_text(3), 11.0)
    arrived = volume.poll(3, 13.0)
    assert arrived is not None
    assert arrived.generation == 3
    assert volume.poll(3, 1000.0) is None


def test_a_layout_that_cannot_be_followed_is_passed_over() -> None:
    volume = LayoutVolume(lag_s=0.0, untouched_lag_s=0.0)
    volume.wrote("{", 0.0)
    assert volume.poll(-1, 10.0) is None


def test_a_pod_is_ready_until_its_deletion_begins() -> None:
    pod: dict[str, Any] = {
        "metadata": {
            "name": "s-0",
            "labels": {"rljob.dev/role": "sampler"},
            "annotations": {"rljob.dev/layout-generation": "7"},
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert pod_state(pod) == PodState("sampler", True, 7)
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not pod_state(pod).ready
    del pod["metadata"]["annotations"]
    assert pod_state(pod).touched == -1
    assert pod_state({"metadata": {"name": "x"}}) == PodState("", False, -1)


# --- faults and configuration ------------------------------------------------------------------------------------------------


def test_a_role_can_fall_silent() -> None:
    driven = Driven()
    driven.go(10, pods(), layout_text())
    driven.emulation.faults = faults_of({"silent_roles": ["sampler"]})
    assert driven.emulation.page("s-0") is None
    assert driven.emulation.page("t-0") is not None
    driven.emulation.faults = faults_of({})
    assert driven.emulation.page("s-0") is not None


def test_a_lagging_volume_and_a_deaf_trainer() -> None:
    driven = Driven()
    driven.go(20, pods(), layout_text())
    driven.emulation.faults = faults_of({"layout_lag_s": 90})
    driven.go(89, pods(touched=2), layout_text(2))
    assert driven.metric("t-0", "rljob_layout_generation") == 1
    driven.go(5, pods(touched=2), layout_text(2))
    assert driven.metric("t-0", "rljob_layout_generation") == 2
    driven.emulation.faults = faults_of({"acknowledge_after_s": None})
    driven.go(60, pods(touched=3), layout_text(3))
    assert driven.metric("t-0", "rljob_layout_generation") == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown key 'colour'"),
        ({"lengths": {"trace": [[0, 1]], "cv": 1}}, "lengths: max_tokens is missing"),
        ({"truth": {"decode": {}, "train": {}}}, r"truth\.decode: fixed_s is missing"),
        ({"truth": 3}, "truth is missing or not a mapping"),
        ({"faults": {"silence": True}}, "faults: unknown key 'silence'"),
    ],
)
def test_a_wrong_configuration_names_the_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**change)


async def test_the_server_answers_for_ready_pods_alone() -> None:
    driven = Driven()
    driven.go(5, pods() | {"s-1": PodState("sampler", False, 1)}, layout_text(samplers=["s-0"]))
    async with TestClient(TestServer(application(driven.emulation, "team"))) as client:
        assert (await client.get("/pods/team/s-0/metrics")).status == 200
        for path in ("/pods/team/s-1/metrics", "/pods/team/nobody/metrics", "/pods/other/s-0/metrics"):
            assert (await client.get(path)).status == 503
        answer = await client.post("/faults", json={"silent_roles": ["trainer"]})
        assert (await answer.json())["silent_roles"] == ["trainer"]
        assert (await client.get("/pods/team/t-0/metrics")).status == 503
        assert (await client.post("/faults", json={"colour": 1})).status == 400
        assert (await (await client.get("/state")).json())["started"] is True
