"""Diagnoses of jobs whose truth is known, from scrapes as they would be recorded, and of what a real vLLM showed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rljob_operator.evidence import growth, observation
from rljob_operator.exposition import parse_exposition
from rljob_operator.prometheus import Prometheus
from rljob_operator.recordings import RecordingError, read_recording, record
from rljob_planner.advise import Bound, Expected
from rljob_planner.diagnose import Diagnosis, diagnose
from rljob_planner.observation import Observation, Seen
from tests.operator.composed_scrapes import INTERVAL_S, Truth, compose

RECORDED = Path(__file__).parent / "data" / "scrapes"
ROLLOUT_BOUND = Truth()
TRAIN_BOUND = Truth(train=12.0, wait=0.1, queue=40.0, queue_growth=2.0)


def seen(folder: Path, truth: Truth) -> Observation:
    return observation(read_recording([compose(folder, truth)], INTERVAL_S))


def found(folder: Path, truth: Truth) -> Diagnosis:
    return diagnose(seen(folder, truth), samples_per_prompt=truth.samples_per_group)


def share(diagnosis: Diagnosis, name: str) -> float | None:
    return next(t.share for t in diagnosis.terms if t.name == name)


def test_a_starved_trainer_is_rollout_bound(tmp_path: Path) -> None:
    diagnosis = found(tmp_path, ROLLOUT_BOUND)
    assert diagnosis.bound is Bound.SAMPLERS
    assert diagnosis.sure
    assert diagnosis.period_s == pytest.approx(12.0, rel=0.1)
    assert share(diagnosis, "train") == pytest.approx(0.5, abs=0.06)
    assert share(diagnosis, "wait") == pytest.approx(0.5, abs=0.06)
    assert share(diagnosis, "other") == pytest.approx(0.0, abs=0.08)
    assert share(diagnosis, "sync") == pytest.approx(0.025, abs=0.01)
    assert share(diagnosis, "generate") == pytest.approx(0.975, abs=0.02)
    assert diagnosis.unknown == (
        "sandbox: rljob_environment_seconds is not there: no environment, or none that reports",
    )


def test_every_share_names_the_metric_behind_it(tmp_path: Path) -> None:
    diagnosis = found(tmp_path, ROLLOUT_BOUND)
    evidence = {t.name: " ".join(t.evidence) for t in diagnosis.terms}
    assert "rljob_train_step_seconds_sum" in evidence["train"]
    assert "rljob_trainer_wait_seconds_total" in evidence["wait"]
    assert "rljob_weight_sync_seconds_sum" in evidence["sync"]
    assert "vllm:iteration_tokens_total_count" in evidence["generate"]


@pytest.mark.parametrize(
    ("truth", "first"),
    [
        (Truth(kv_usage=0.97, waiting=50.0), "KV room"),
        (Truth(kv_usage=0.8, preemptions=9), "KV room"),
        (Truth(kv_usage=0.2, in_flight=410), "in-flight cap"),
        (Truth(kv_usage=0.8, waiting=20.0), "move GPUs"),
    ],
)
def test_what_slow_samplers_need_depends_on_their_room(tmp_path: Path, truth: Truth, first: str) -> None:
    diagnosis = found(tmp_path, truth)
    assert first in diagnosis.advice[0].change
    assert diagnosis.advice[0].at_most == pytest.approx(0.5, abs=0.06)


def test_a_growing_queue_behind_a_busy_trainer_is_train_bound(tmp_path: Path) -> None:
    diagnosis = found(tmp_path, TRAIN_BOUND)
    assert diagnosis.bound is Bound.TRAINERS
    assert diagnosis.sure
    assert "the queue grows" in diagnosis.why[-1]
    assert "more GPUs" in diagnosis.advice[0].change


def test_neither_side_waiting_is_balanced(tmp_path: Path) -> None:
    assert found(tmp_path, Truth(wait=0.2, queue=3.0)).bound is Bound.BALANCED


def test_idle_alone_convicts_nobody(tmp_path: Path) -> None:
    """The same wait: rollout-bound with an empty queue, held up with a full one, and unknown without one."""
    waiting = Truth(wait=4.0)
    assert found(tmp_path / "a", waiting).bound is Bound.SAMPLERS
    assert found(tmp_path / "b", Truth(wait=4.0, queue=40.0)).bound is Bound.HANDOVER
    unknown = found(tmp_path / "c", Truth(wait=4.0, without=("rljob_queue_depth_groups",)))
    assert unknown.bound is Bound.UNKNOWN
    assert not unknown.sure
    assert any("points to the samplers" in line for line in unknown.why)
    assert any(line.startswith("queue: rljob_queue_depth_groups") for line in unknown.unknown)


def test_groups_whose_size_is_not_known_leave_it_open(tmp_path: Path) -> None:
    # 5 groups are less than a step of 16; without the size of a group they might be several.
    observed = seen(tmp_path, Truth(queue=5.0))
    assert diagnose(observed, samples_per_prompt=8).bound is Bound.SAMPLERS
    assert diagnose(observed).bound is Bound.UNKNOWN


def test_long_pauses_for_weights_are_the_sync(tmp_path: Path) -> None:
    diagnosis = found(tmp_path, Truth(wait=5.0, sync=4.0))
    assert diagnosis.bound is Bound.WEIGHT_SYNC
    assert share(diagnosis, "sync") == pytest.approx(4 / 11, abs=0.04)
    assert share(diagnosis, "generate") == pytest.approx(1 - 4 / 11, abs=0.04)
    assert "weight sync" in diagnosis.advice[0].change


def test_a_trainer_that_stops_for_the_sync_is_recognised(tmp_path: Path) -> None:
    diagnosis = found(tmp_path, Truth(train=8.0, wait=0.1, other=4.0, sync=4.0, queue=20.0))
    assert diagnosis.bound is Bound.WEIGHT_SYNC
    assert share(diagnosis, "other") == pytest.approx(0.33, abs=0.05)
    assert any("seems to stop" in line for t in diagnosis.terms for line in t.evidence)


def test_what_nobody_explains_is_said(tmp_path: Path) -> None:
    diagnosis = found(tmp_path, Truth(train=6.0, wait=0.2, other=6.0, queue=20.0))
    assert any("besides training and waiting" in a.change for a in diagnosis.advice)


def test_environments_that_gate_the_rollout_are_the_bottleneck(tmp_path: Path) -> None:
    # 128 samples a step of 12 s, each 30 s in its environment: 320 there, 60 run, and 620 wait.
    truth = Truth(environment=30.0, decode=6.0, in_flight=1000, running=60.0, kv_usage=0.1, busy=0.6)
    diagnosis = found(tmp_path, truth)
    assert diagnosis.bound is Bound.SANDBOXES
    assert share(diagnosis, "sandbox") == pytest.approx(30 / 36, abs=0.03)
    assert share(diagnosis, "idle") == pytest.approx(0.4, abs=0.03)
    gated = next(
        re.search(r"and (\d+)% of the samples in flight wait", line) for line in diagnosis.why if "in flight" in line
    )
    assert gated is not None
    assert int(gated[1]) == pytest.approx(62, abs=4)
    assert "environments" in diagnosis.advice[0].change


@pytest.mark.parametrize(
    ("metric", "term"),
    [
        ("rljob_train_step_seconds", "train"),
        ("rljob_trainer_wait_seconds", "wait"),
        ("rljob_weight_sync_seconds", "sync"),
        ("vllm:", "generate"),
        ("rljob_environment_seconds", "sandbox"),
    ],
)
def test_what_is_missing_is_unknown_and_never_zero(tmp_path: Path, metric: str, term: str) -> None:
    diagnosis = found(tmp_path, Truth(environment=5.0, without=(metric,)))
    (part,) = [t for t in diagnosis.terms if t.name == term]
    assert part.share is None
    assert part.unknown
    assert any(line.startswith(term) for line in diagnosis.unknown)


def test_without_the_wait_there_is_no_verdict(tmp_path: Path) -> None:
    diagnosis = found(tmp_path, Truth(without=("rljob_trainer_wait_seconds",)))
    assert diagnosis.bound is Bound.UNKNOWN
    assert diagnosis.advice == ()


def test_a_trainer_that_started_anew_changes_nothing(tmp_path: Path) -> None:
    whole = found(tmp_path / "a", ROLLOUT_BOUND)
    anew = found(tmp_path / "b", Truth(restart_at=9))
    assert anew.bound is whole.bound
    for name in ("train", "wait", "sync"):
        assert share(anew, name) == pytest.approx(share(whole, name), abs=0.06)
    assert any("rljob_trainer_wait_seconds_total started anew" in note for note in anew.notes)


def test_a_counter_that_falls_started_from_zero() -> None:
    assert growth(((0, 10.0), (1, 15.0), (2, 3.0), (3, 4.0))) == (9.0, True)
    assert growth(((0, 10.0),)) == (10.0, False)


def test_a_paused_engine_is_not_believed(tmp_path: Path) -> None:
    observed = seen(tmp_path, Truth(frozen=True))
    assert observed.running is None
    assert observed.kv_usage is None
    assert any("sampler-0 has running requests and made no token" in note for note in observed.notes)


def test_old_names_of_metrics_do(tmp_path: Path) -> None:
    new, old = seen(tmp_path / "a", Truth()), seen(tmp_path / "b", Truth(old_names=True))
    assert old.iteration_s is not None
    assert new.iteration_s is not None
    assert old.iteration_s.value == pytest.approx(new.iteration_s.value)
    assert old.kv_usage is not None
    assert "gpu_cache_usage_perc" in old.kv_usage.metric


def test_two_scrapes_do(tmp_path: Path) -> None:
    folder = compose(tmp_path, ROLLOUT_BOUND)
    first, last = folder / "trainer-0" / "0.txt", folder / "trainer-0" / "19.txt"
    diagnosis = diagnose(observation(read_recording([first, last], 285.0)), samples_per_prompt=8)
    assert diagnosis.bound is Bound.SAMPLERS
    assert diagnosis.period_s == pytest.approx(12.0, rel=0.1)


def test_scrapes_without_times_give_no_rates_and_less_sure_shares(tmp_path: Path) -> None:
    folder = compose(tmp_path, ROLLOUT_BOUND)
    one = observation(read_recording([folder / "trainer-0" / "19.txt"]))
    assert one.period_s is None
    diagnosis = diagnose(one, samples_per_prompt=8)
    assert not diagnosis.sure
    assert diagnosis.period_s == pytest.approx(12.0, rel=0.1)
    assert share(diagnosis, "wait") == pytest.approx(0.5, abs=0.05)
    assert share(diagnosis, "other") is None
    assert any("one scrape" in note for note in diagnosis.notes)


def test_few_steps_are_said_to_be_few(tmp_path: Path) -> None:
    folder = compose(tmp_path, Truth(train=100.0, wait=40.0))
    files = [folder / "trainer-0" / "0.txt", folder / "trainer-0" / "19.txt"]
    assert any("only 2 steps" in note for note in observation(read_recording(files, 285.0)).notes)


def test_times_come_from_the_names_of_files(tmp_path: Path) -> None:
    folder = compose(tmp_path / "a", ROLLOUT_BOUND)
    files = []
    for number in (0, 10, 19):
        path = tmp_path / f"scrape-{1_790_000_000 + 15 * number}.prom"
        path.write_text((folder / "trainer-0" / f"{number}.txt").read_text(encoding="utf-8"), encoding="utf-8")
        files.append(path)
    assert observation(read_recording(files)).window_s == 285.0


def as_range_query(folder: Path) -> dict[str, Any]:
    """The same scrapes as Prometheus would answer a range query."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for pod in sorted(folder.iterdir()):
        for number in range(len(list(pod.iterdir()))):
            for sample in parse_exposition((pod / f"{number}.txt").read_text(encoding="utf-8"), "it"):
                metric = {"__name__": sample.name, **sample.labels, "pod": pod.name}
                row = rows.setdefault((sample.name, json.dumps(metric)), {"metric": metric, "values": []})
                row["values"].append([1_790_000_000 + 15 * number, str(sample.value)])
    return {"status": "success", "data": {"resultType": "matrix", "result": list(rows.values())}}


def test_a_dump_of_a_range_query_says_the_same(tmp_path: Path) -> None:
    folder = compose(tmp_path / "a", ROLLOUT_BOUND)
    dump = tmp_path / "range.json"
    dump.write_text(json.dumps([as_range_query(folder)]), encoding="utf-8")
    from_dump, from_text = observation(read_recording([dump])), observation(read_recording([folder], INTERVAL_S))
    assert diagnose(from_dump, samples_per_prompt=8) == diagnose(from_text, samples_per_prompt=8)


async def test_a_live_prometheus_says_the_same(tmp_path: Path) -> None:
    folder = compose(tmp_path, ROLLOUT_BOUND)
    asked: list[str] = []

    async def query(request: web.Request) -> web.Response:
        asked.append(request.query["query"])
        return web.json_response(
            as_range_query(folder)
            if "nobody" not in request.query["query"]
            else {"status": "success", "data": {"result": []}}
        )

    app = web.Application()
    app.router.add_get("/api/v1/query", query)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session:
            prometheus = Prometheus(session, f"http://{host}:{port}")
            live = await record(prometheus, 'rljob_dev_uid="u"', at=1_790_000_300, window_s=300)
            with pytest.raises(RecordingError, match="check that the job's pods are scraped"):
                await record(prometheus, 'rljob_dev_uid="nobody"', at=1_790_000_300, window_s=300)
    finally:
        await runner.cleanup()
    assert 'rljob_dev_uid="u"' in asked[0]
    assert asked[0].endswith("[300000ms]")
    assert diagnose(observation(live), samples_per_prompt=8).bound is Bound.SAMPLERS


def test_what_a_real_vllm_showed_is_read() -> None:
    files = [RECORDED / f"vllm-0.32-metrics-{when}.txt" for when in ("idle", "under-load")]
    observed = observation(read_recording(files, 60.0))
    assert observed.iteration_s is not None
    assert observed.iteration_s.value == pytest.approx(44.6 / 16230, rel=0.01)
    assert observed.tokens_per_s is not None
    assert observed.tokens_per_s.value == pytest.approx(16266 / 60, rel=0.01)
    assert observed.busy is not None
    assert observed.busy.value == pytest.approx(4944 * (44.6 / 16230) / 60, rel=0.01)
    assert observed.samplers == 1
    diagnosis = diagnose(observed)
    assert diagnosis.bound is Bound.UNKNOWN
    assert share(diagnosis, "train") is None


def test_the_model_stands_beside_what_was_measured() -> None:
    observed = Observation(
        period_s=Seen(20.0, "p"),
        train_s=Seen(15.0, "t"),
        wait_s=Seen(1.0, "w"),
        environment_s=Seen(9.0, "e"),
        iteration_s=Seen(0.021, "i"),
    )
    diagnosis = diagnose(
        observed, Expected(period_s=12.0, train_s=10.0, sync_s=1.0, environment_s=5.0, iteration_s=0.02)
    )
    by_name = {c.name: c for c in diagnosis.compared}
    assert list(by_name) == ["period", "training of a step", "environment of a sample", "decode step"]
    assert by_name["training of a step"].ratio == 1.5
    assert "MFU" in by_name["training of a step"].meaning
    assert by_name["decode step"].meaning == ""


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.txt", "what is this {", "no Prometheus exposition text"),
        ("a.txt", "node_load1 3\n", r"no rljob_\* or vllm:\* metric"),
        ("a.json", "{", "no JSON"),
        (
            "a.json",
            '{"data": {"result": [{"metric": {"__name__": "rljob_policy_version"}, "values": [[1]]}]}}',
            "query_range",
        ),
        ("a.json", "{}", "metric in it"),
    ],
)
def test_what_is_no_recording_says_why(tmp_path: Path, name: str, text: str, why: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecordingError, match=why):
        read_recording([path])


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no such file"):
        read_recording([tmp_path / "none.txt"])
