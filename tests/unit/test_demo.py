"""What the demo counts and concludes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from dev.controlplane import NodeSpec
from dev.demo.history import JobHistory, Move, label
from dev.demo.ledger import PodLedger
from dev.demo.outcome import (
    Outcome,
    Step,
    StepLog,
    compare,
    cost_s,
    outcome,
    periods,
    staleness_held,
    staleness_summary,
)
from dev.demo.planned import best_split
from dev.demo.timeline import page
from dev.demo.view import LineView, Picture, render, spark
from dev.demo.world import HERE
from dev.emulator.config import load
from rljob_planner.api.spec import RLJobSpec

KEYS = {
    "plan", "bestAtStart", "bestAtEnd", "moves", "gpuBudget", "gpuPeak", "periodStart", "periodBeforeMove", "periodAfterMove",
    "periodIfNeverMoved", "staleness", "stalenessLimit", "stalenessHeld", "saved", "savedInStandardErrors",
}  # fmt: skip
ZERO_S = 1_000_000.0


def split(samplers: int, trainers: int) -> dict[str, Any]:
    return {
        "mode": "async",
        "samplers": {"replicas": samplers, "gpusPerReplica": 1, "tensorParallel": 1, "maxRunning": 64},
        "trainers": {"replicas": trainers, "gpusPerReplica": 8, "dp": 8, "tp": 1, "pp": 1, "ep": 1},
        "inFlight": 512,
    }


def steps(values: Sequence[float], *, t0: float = 0.0, staleness: int = 2) -> list[Step]:
    made, t = [], t0
    for i, period in enumerate(values):
        t += period
        made.append(Step(t, i + 1, period, {staleness: 8}, 3, 100.0, 110.0, 32, 4, 64))
    return made


def move(start: float = 22.0, end: float | None = 30.0, **changes: Any) -> Move:
    made = Move("m1", split(32, 4), split(40, 3), "responses grew", 0.12, ZERO_S + start)
    made.ended_s = None if end is None else ZERO_S + end
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def concluded(**changes: Any) -> Outcome:
    arguments: dict[str, Any] = {
        "live": steps([2.0, 2.1] * 5 + [2.0] * 5 + [1.5, 1.6] * 10),
        "shadow": steps([2.0, 2.1] * 20),
        "moves": [move()],
        "started_s": ZERO_S,
        "plan": {"split": split(32, 4)},
        "best_at_start": split(32, 4),
        "best_at_end": split(40, 3),
        "gpu_budget": 64,
        "gpu_peak": 64,
        "bound": "admission",
        "staleness_limit": 4,
    }
    return outcome(**{**arguments, **changes})


# --- GPUs --------------------------------------------------------------------------------------------------------------------


def pod(name: str, gpus: int, *, node: str | None = None, gated: bool = False, **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", **meta},
        "spec": {
            "containers": [{"resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}, {}],
            **({"nodeName": node} if node else {}),
            **({"schedulingGates": [{"name": "rljob.dev/budget"}]} if gated else {}),
        },
    }


def test_a_pod_holds_gpus_from_its_gate_to_its_end() -> None:
    ledger = PodLedger()
    ledger.reset([pod("a", 8, node="n")])
    assert ledger.held == 8
    ledger.event("ADDED", pod("b", 8, gated=True))
    assert ledger.held == 8, "a gated pod holds nothing"
    ledger.event("MODIFIED", pod("b", 8))
    assert ledger.held == 16, "an ungated one may be bound at any moment"
    ledger.event("MODIFIED", pod("a", 8, node="n", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert ledger.held == 16, "a terminating one holds until it is gone"
    ledger.event("DELETED", pod("a", 8, node="n"))
    assert (ledger.held, ledger.peak) == (8, 16)
    assert [held for _, held in ledger.history] == [8, 16, 8]


def test_a_new_list_forgets_what_is_gone() -> None:
    ledger = PodLedger()
    ledger.reset([pod("a", 8, node="n"), pod("b", 1, node="n")])
    ledger.reset([pod("b", 1, node="n")])
    assert (ledger.held, ledger.peak) == (1, 9)


# --- the job's story ---------------------------------------------------------------------------------------------------------


def status(**changes: Any) -> dict[str, Any]:
    return {"metadata": {"name": "demo"}, "status": {"phase": "Running", "plan": {"split": split(32, 4)}, **changes}}


def test_the_story_is_put_together_from_every_version() -> None:
    history = JobHistory()
    history.reset([{"metadata": {"name": "demo"}}])
    history.event("MODIFIED", status())
    under_way = {
        "id": "m1", "phase": "Announce", "from": split(32, 4), "to": split(40, 3), "reason": "responses grew",
        "predictedGain": 0.12, "startedAt": "2026-01-01T00:00:10Z",
    }  # fmt: skip
    history.event("MODIFIED", status(phase="Rebalancing", rebalance=under_way))
    history.event("MODIFIED", status(phase="Rebalancing", rebalance={**under_way, "phase": "Shrink"}))
    assert history.moving
    committed = {"code": "MoveCommitted", "at": "2026-01-01T00:00:30Z", "message": "done", "costSeconds": 7.5}
    ended = {"lastEndedAt": "2026-01-01T00:00:30Z"}
    history.event("MODIFIED", status(moves=ended, decisions=[committed], plan={"split": split(40, 3)}))
    history.event("MODIFIED", status(moves=ended, decisions=[committed], plan={"split": split(40, 3)}))
    (seen,) = history.moves
    assert seen.committed
    assert (seen.phases, seen.cost_s, seen.predicted_gain) == (["Announce", "Shrink"], 7.5, 0.12)
    assert seen.ended_s is not None
    assert seen.ended_s - seen.started_s == 20
    assert history.phases == ["Running", "Rebalancing", "Running"]
    assert history.plan == {"split": split(32, 4)}, "the first plan"
    assert [d["code"] for d in history.marks] == ["MoveCommitted"]
    assert not history.moving


def test_a_move_that_was_rolled_back_is_not_committed() -> None:
    history = JobHistory()
    under_way = {
        "id": "m1", "phase": "Grow", "from": split(32, 4), "to": split(40, 3), "reason": "r", "predictedGain": 0.1,
        "startedAt": "2026-01-01T00:00:10Z",
    }  # fmt: skip
    history.event("ADDED", status(rebalance=under_way))
    history.event("MODIFIED", status(rebalance={**under_way, "phase": "Shrink", "rollingBack": True}))
    history.event("MODIFIED", status(moves={"lastEndedAt": "2026-01-01T00:01:00Z"}))
    (seen,) = history.moves
    assert seen.ended_s is not None
    assert not seen.committed
    assert seen.phases == ["Grow", "back: Shrink"]


def test_a_split_has_a_name() -> None:
    assert label(split(40, 3)) == "40×1 samplers + 3×8 trainers"
    assert label(None) == "–"


# --- the result --------------------------------------------------------------------------------------------------------------


def test_the_result_has_exactly_its_keys() -> None:
    found = concluded()
    assert set(found.result) == KEYS
    assert set(found.result["moves"][0]) == {"t", "from", "to", "reason", "predictedGain", "measuredCostSeconds"}
    assert found.failures == ()
    assert found.result["moves"][0]["t"] == 22
    assert found.result["periodStart"] == pytest.approx(2.05)
    assert found.result["periodAfterMove"] == pytest.approx(1.55)
    assert found.result["periodIfNeverMoved"] == pytest.approx(2.05)
    assert found.gain == pytest.approx(1 - 1.55 / 2.05)
    assert json.loads(json.dumps(found.result)) == found.result


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({"moves": []}, "no move was committed"),
        ({"moves": [move(rolled_back=True)]}, "no move was committed"),
        ({"gpu_peak": 65}, "pods held 65 GPUs at once, the budget is 64"),
        ({"staleness_limit": 1}, "against a limit of 1 under the bound admission"),
        ({"shadow": steps([1.5, 1.6] * 30)}, "not shorter than without it by more than two standard errors"),
        ({"live": steps([2.0] * 15)}, "not shorter than without it"),
    ],
)
def test_what_was_not_shown_is_said(changes: dict[str, Any], failure: str) -> None:
    assert any(failure in text for text in concluded(**changes).failures)


def test_periods_lie_wholly_inside() -> None:
    assert periods(steps([2.0, 2.0, 2.0, 2.0]), since=2.0, until=6.5) == [2.0, 2.0]
    assert periods(steps([2.0, 2.0]), since=0.5) == [2.0]


def test_two_means_are_compared_in_standard_errors() -> None:
    gain, errors = compare([1.0, 1.2], [2.0, 2.2])
    assert gain == pytest.approx(1 - 1.1 / 2.1)
    assert errors == pytest.approx(1.0 / (0.02**0.5))
    assert compare([], [1.0, 2.0]) == (None, None)


def test_a_move_costs_the_progress_that_its_time_would_have_made() -> None:
    before, during, after = [2.0] * 10, [6.0], [2.0] * 5
    assert cost_s(steps([*before, *during, *after]), move(20.0, 25.0), ZERO_S) == pytest.approx(4.0)
    assert cost_s([], move(), ZERO_S) is None


def test_staleness_is_judged_by_what_its_bound_promises() -> None:
    summary = staleness_summary(
        [*steps([1.0], staleness=1), *steps([1.0] * 18, staleness=3), *steps([1.0], staleness=9)]
    )
    assert summary == {"mean": pytest.approx((1 + 54 + 9) / 20), "p95": 3.0, "max": 9.0}
    assert staleness_held("admission", summary, 4)
    assert not staleness_held("drop", summary, 4)
    assert not staleness_held("admission", None, 4)


def test_the_log_is_read_as_it_grows(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "steps.jsonl")
    log.poll()
    entry = {
        "t": 1.5, "version": 1, "period": None, "staleness": {"0": 8}, "queue": 2, "mean_length": 90.0, "length_now": 95.0,
        "samplers": 32, "trainers": 4, "in_flight": 64, "plant": "live",
    }  # fmt: skip
    first, second = json.dumps(entry), json.dumps({**entry, "plant": "shadow"})
    (tmp_path / "steps.jsonl").write_text(f"{first}\n{second[:20]}")
    log.poll()
    assert (len(log.live), len(log.shadow)) == (1, 0)
    (tmp_path / "steps.jsonl").write_text(f"{first}\n{second}\n")
    log.poll()
    assert (len(log.live), len(log.shadow)) == (1, 1)
    assert log.live[0].staleness == {0: 8}


# --- what people see ---------------------------------------------------------------------------------------------------------


def test_the_page_stands_alone_and_holds_no_markup_of_others() -> None:
    found = concluded()
    marks = [
        {"code": "Move", "at": "1970-01-12T13:47:00Z", "message": "<b>&", "from": split(32, 4), "to": split(40, 3)}
    ]
    text = page(
        title="demo", outcome=found, live=steps([2.0] * 20), shadow=steps([2.5] * 20), moves=[move()], marks=marks,
        started_s=ZERO_S,
    )  # fmt: skip
    assert text.count("<svg") == 5
    assert text.count('class="move"') == 5
    assert "http" not in text.replace("http-equiv", ""), "no other file or site"
    assert "<b>&" not in text
    assert "&lt;b&gt;&amp;" in text
    assert "nan" not in text


def test_the_page_of_a_run_that_never_began() -> None:
    found = concluded(live=[], shadow=[], moves=[])
    text = page(title="demo", outcome=found, live=[], shadow=[], moves=[], marks=[], started_s=ZERO_S)
    assert text.count("<svg") == 5


def picture(**changes: Any) -> Picture:
    return Picture(
        elapsed_s=12.0,
        status={
            "phase": "Rebalancing",
            "split": split(32, 4),
            "rebalance": {"phase": "Drain", "waitingFor": "samplers to finish"},
            "decisions": [{"code": "GainTooSmall", "message": "3 % is under 5 %", "count": 4}],
        },
        state={"started": True, "live": {"version": 7, "queue": 3, "inFlight": 500, "lengthNow": 640.0}},
        gpus_held=64,
        gpu_budget=64,
        period_live=2.0,
        **changes,
    )


def test_the_live_view_shows_everything() -> None:
    console = Console(width=200, record=True, quiet=False, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(render(picture(periods_live=[1.0, 2.0], periods_shadow=[2.0, 4.0], waiting_for="waiting for a move")))
    text = console.export_text()
    for word in (
        "Rebalancing · Drain", "32×1 samplers + 4×8 trainers", "64 of 64", "640 tokens", "3 groups", "500 samples",
        "GainTooSmall ×4", "3 % is under 5 %", "samplers to finish", "waiting for a move",
    ):  # fmt: skip
        assert word in text
    console.print(render(Picture(elapsed_s=0.0)))


def test_plain_lines_say_what_changed_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = LineView()
    for _ in range(3):
        view.show(picture())
    lines = capsys.readouterr().out.splitlines()
    assert sum("phase Rebalancing: Drain" in line for line in lines) == 1
    assert sum("GainTooSmall: 3 % is under 5 %" in line for line in lines) == 1
    assert sum("version 7" in line for line in lines) == 1


def test_a_spark_line_scales_to_its_top() -> None:
    assert spark([0.0, 4.0, 8.0], 8.0) == "▁▅█"
    assert spark([], 0.0) == ""


def test_the_demos_own_files_are_read() -> None:
    spec = RLJobSpec.model_validate(yaml.safe_load((HERE / "job.yaml").read_text())["spec"])
    config = load(HERE / "emulator.yaml")
    assert spec.gpus == 64
    assert spec.workload.response_tokens.mean == config.lengths.trace[0][1], "the job says what is true at its start"
    assert spec.workload.response_tokens.max == config.lengths.max_tokens
    assert spec.workload.response_tokens.cv == config.lengths.cv
    assert config.truth.decode.speed != 1.0
    assert config.truth.train.speed != 1.0


def test_the_best_split_of_the_demos_job_changes_as_responses_grow() -> None:
    spec = yaml.safe_load((HERE / "job.yaml").read_text())["spec"]
    trace = load(HERE / "emulator.yaml").lengths.trace
    nodes = NodeSpec(count=8, gpus_per_node=8)
    first, last = (best_split(spec, mean, nodes) for mean in (trace[0][1], trace[-1][1]))
    assert first["trainers"]["replicas"] > last["trainers"]["replicas"]
