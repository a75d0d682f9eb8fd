"""The drift bench around its plant: trace files, moves, the dynamic programme, what is scraped, what is judged, what is printed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from dev.bench.drift import clairvoyant
from dev.bench.drift.__main__ import main
from dev.bench.drift.clairvoyant import Model, schedule, smoothed
from dev.bench.drift.effect import effect
from dev.bench.drift.judge import aims
from dev.bench.drift.page import BEGIN, END, page, table
from dev.bench.drift.picture import picture
from dev.bench.drift.plant import Plant
from dev.bench.drift.result import DriftJson, MoveJson, PolicyJson, PolicyName, TraceJson
from dev.bench.drift.scraped import Scraped
from dev.bench.drift.site import Counts, Site
from dev.bench.drift.stage import Stage
from dev.bench.drift.threshold import Threshold, shifted
from dev.bench.drift.traces import NAMES, TraceError, packaged, parse_trace
from rljob_operator.readings import Telemetry
from rljob_planner.split import SamplerSplit, Split, TrainerSplit
from tests.unit.test_drift_plant import laws, plant, run

TRACE = """
steps: 40
meanTokens: [[0, 500], [40, 1500]]
cv: 1.0
max: 8192
job:
  gpus: 16
  accelerator: H100-SXM
  model: {name: Qwen/Qwen3-8B}
  workload: {promptsPerStep: 16, samplesPerPrompt: 4, promptTokens: {mean: 200}}
  staleness: {max: 4, bound: admission}
"""
SHAPE = Split(
    mode="async",
    samplers=SamplerSplit(replicas=8, gpus_per_replica=1, tensor_parallel=1, max_running=64),
    trainers=TrainerSplit(replicas=2, gpus_per_replica=4, dp=8, tp=1, pp=1, ep=1),
    in_flight=64,
)


# --- traces --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_packaged_traces_are_runs_with_a_job_that_starts_as_the_trace_does(name: str) -> None:
    found = packaged(name)
    assert found.spec.workload.steps == found.steps
    assert found.spec.workload.response_tokens.mean == round(found.mean_tokens[0])
    assert found.trace.description
    assert found.shortened(0.25).mean_tokens[-1] == pytest.approx(found.mean_tokens[-1])


def test_a_trace_is_linear_between_its_points_and_constant_outside() -> None:
    found = parse_trace(TRACE.replace("[[0, 500], [40, 1500]]", "[[10, 500], [20, 1500]]"), "mine.yaml")
    assert found.name == "mine"
    assert [found.mean_tokens[step] for step in (0, 10, 15, 20, 40)] == [500, 500, 1000, 1500, 1500]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("steps: 40", "steps: 0", "steps: Input should be greater than or equal to 1"),
        ("[[0, 500], [40, 1500]]", "[[40, 500], [0, 1500]]", "the steps must rise, as in [[0, 1500], [400, 6000]]"),
        ("max: 8192", "max: 1200", "raise max or lower meanTokens"),
        ("max: 8192", "", "write the cap on a response in tokens, such as max: 32768"),
        ("cv: 1.0", "cv: 1.0\nenvironmentSeconds: [[0, 5]]", "job.workload.environment: {turns: 8}"),
        ("gpus: 16", "gpus: 1", "job.gpus"),
        ("job:", "jobs:", "job: Field required"),
        ("meanTokens:", "meanToken:", "meanTokens: Field required"),
        ("TRACE", "", ""),
    ],
)
def test_what_is_wrong_with_a_trace_is_said_with_what_to_write(old: str, new: str, said: str) -> None:
    if not said:
        with pytest.raises(TraceError, match="holds one mapping"):
            parse_trace("[]", "x.yaml")
        return
    with pytest.raises(TraceError) as caught:
        parse_trace(TRACE.replace(old, new), "x.yaml")
    assert said in str(caught.value)


def test_a_trace_may_hold_a_whole_rljob_and_state_its_own_lengths() -> None:
    text = TRACE.replace(
        "job:\n", "job:\n  apiVersion: rljob.dev/v1alpha1\n  kind: RLJob\n  metadata: {name: mine}\n  spec:\n", 1
    )
    head, spec = text.split("  spec:\n")
    indented = "\n".join(f"  {line}" for line in spec.splitlines())
    indented = indented.replace(
        "promptTokens: {mean: 200}", "promptTokens: {mean: 200}, responseTokens: {mean: 900, max: 8192}"
    )
    found = parse_trace(f"{head}  spec:\n{indented}\n", "x.yaml")
    assert found.metadata["name"] == "mine"
    assert found.spec.workload.response_tokens.mean == 900
    assert found.mean_tokens[0] == 500


# --- moves ---------------------------------------------------------------------------------------------------------------------


def test_a_move_waits_for_the_boundary_the_drain_the_start_and_the_next_boundary() -> None:
    costs = {"samplerStart": 50, "trainerStart": 40, "gone": 10, "regroup": 5}
    of = run(steps=4000, workload={"promptsPerStep": 4}, costs=costs)
    site = Site(of, Plant(of, laws(), most_replicas=9, most_in_flight=64), SHAPE, Counts(8, 2, 8))
    site.advance(100.0)
    began, version, held = site.plant.now_s, site.plant.version, site.gpu_s
    assert held == 16 * 100
    site.move(Counts(4, 3, 8))
    # gone 10 s + start 40 s + at most a step of 12 s twice, a drain of 10 s, and looks of 5 s at either end
    assert 50 <= site.plant.now_s - began <= 95
    assert site.counts == Counts(4, 3, 8)
    assert site.moves == [(version, Counts(4, 3, 8))]
    assert len(site.plant.samplers) == 4
    assert site.plant.lost_tokens == 0
    assert site.gpu_s - held == pytest.approx(16 * (site.plant.now_s - began))
    site.advance(site.plant.now_s + 20.0)
    assert site.plant.halted_s == pytest.approx(5.0)


def test_what_still_runs_at_the_drain_timeout_is_lost_and_done_again() -> None:
    of = run(steps=4000, workload={"promptsPerStep": 4}, meanTokens=[[0, 300]], sampler={"drainTimeout": "60s"})
    site = Site(of, Plant(of, laws(), most_replicas=9, most_in_flight=64), SHAPE, Counts(8, 2, 8))
    site.advance(10.0)
    site.move(Counts(4, 3, 8))
    assert site.plant.lost_tokens > 0


def test_the_autoscaler_moves_one_trainer_for_its_worth_of_samplers_and_keeps_to_minima() -> None:
    stage = Stage.of(parse_trace(TRACE, "x.yaml"))
    counts = Counts.of(stage.start)
    more, less = shifted(stage, counts, 1), shifted(stage, Counts(1, 1, 64), -1)
    assert more is None or (more.trainers == counts.trainers + 1 and more.gpus(stage.start) <= 16)
    assert less is None
    site = Site(stage.run, stage.plant(), stage.start, counts)
    policy = Threshold(stage, site)
    for _ in range(12):
        site.advance(policy.look())
    assert len(site.moves) <= 1  # it rests after a move


# --- the dynamic programme -----------------------------------------------------------------------------------------------------


def _brute(model: Model) -> float:
    """The cheapest way through every step, by trying all."""
    splits, steps = model.periods_s.shape
    passed = np.concatenate([np.zeros((splits, 1)), np.cumsum(model.periods_s, axis=1)], axis=1)

    def cheapest(step: int, at: int) -> float:
        if step >= steps:
            return 0.0
        options = [float(model.periods_s[at, step]) + cheapest(step + 1, at)]
        for other in range(splits):
            if other != at:
                cost, arrival = clairvoyant._move(model, passed, at, other, step, 1.0)
                options.append(cost + cheapest(arrival, other))
        return min(options)

    return min(cheapest(0, at) for at in range(splits))


@pytest.mark.parametrize("seed", range(6))
def test_the_programme_finds_what_trying_all_schedules_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps, splits = 8, 3
    model = Model(
        tuple(Counts(8 - i, 1 + i, 64) for i in range(splits)),
        rng.uniform(5, 30, (splits, steps)),
        rng.uniform(5, 40, (splits, splits, steps)),
        rng.uniform(0, 5, (splits, splits)),
    )
    total, found = schedule(model)
    assert total == pytest.approx(_brute(model))
    assert found[0][0] == 0
    assert [step for step, _ in found] == sorted(step for step, _ in found)
    assert schedule(model, start=2)[0] >= total


def test_a_schedule_moves_once_where_the_balance_turns_and_never_where_moves_cost_more_than_they_save() -> None:
    periods = np.array([[10.0] * 50 + [20.0] * 50, [20.0] * 50 + [10.0] * 50])
    counts = (Counts(6, 1, 64), Counts(2, 2, 64))
    cheap = Model(counts, periods, np.full((2, 2, 100), 30.0), np.zeros((2, 2)))
    total, found = schedule(cheap)
    assert [split for _, split in found] == [0, 1]
    assert abs(found[1][0] - 50) <= 3
    assert total < 1100
    dear = Model(counts, periods, np.full((2, 2, 100), 30.0), np.full((2, 2), 5000.0))
    assert schedule(dear)[1] in ([(0, 0)], [(0, 1)])


def test_smoothing_keeps_the_sum_of_a_constant_and_shortens_at_the_ends() -> None:
    assert smoothed(np.full(20, 3.0)).tolist() == pytest.approx([3.0] * 20)
    assert smoothed(np.arange(5.0), 3).tolist() == pytest.approx([0.5, 1, 2, 3, 3.5])


# --- what makes the best split move --------------------------------------------------------------------------------------------


def _model(first: float, second: float, turn: float, steps: int) -> Model:
    """Two splits, of which the first is the better one until the lengths have changed."""
    share = np.linspace(0.0, 1.0, steps)
    periods = np.array([first + 0 * share, second + turn * share])
    counts = (Counts(4, 3, 64), Counts(8, 2, 64))
    return Model(counts, periods, np.zeros((2, 2, steps)), np.zeros((2, 2)))


def test_the_effect_names_what_a_token_costs_more_and_where_the_best_split_goes() -> None:
    grown = Stage.of(
        parse_trace(
            TRACE.replace("[[0, 500], [40, 1500]]", "[[0, 500], [39, 7000]]").replace("cv: 1.0", "cv: 0.3"), "x"
        )
    )
    said = effect(grown, _model(10.0, 12.0, -6.0, grown.steps))
    assert said.startswith("the best split goes 3 → 2 trainers by step")
    assert "decoding reads longer contexts (sampling +" in said
    assert "attention's quadratic share of training grows (training +" in said
    assert effect(grown, _model(10.0, 12.0, 0.0, grown.steps)).startswith("nothing moves it: 3 trainers stay best")
    shrunk = Stage.of(parse_trace(TRACE.replace("[[0, 500], [40, 1500]]", "[[0, 4000], [39, 500]]"), "x"))
    assert "shorter contexts (sampling -" in effect(shrunk, _model(10.0, 12.0, -6.0, shrunk.steps))
    flat = Stage.of(parse_trace(TRACE.replace("[[0, 500], [40, 1500]]", "[[0, 500]]"), "x"))
    assert effect(flat, _model(10.0, 12.0, 0.0, flat.steps)).endswith("nor does what a token costs on either side")


# --- metrics -------------------------------------------------------------------------------------------------------------------


def test_what_is_scraped_is_what_happened_and_unknown_before() -> None:
    of = run(steps=500, cv=1.0, meanTokens=[[0, 50]], workload={"promptsPerStep": 4, "samplesPerPrompt": 4})
    p = plant(of, laws(iteration_s=np.full(65, 0.5)), samplers=2, cap=64)
    scraped = Scraped(p, 15.0)

    def asked(now_s: float, since_s: float, samplers: tuple[str, ...] = ("s0", "s1")) -> Telemetry:
        return scraped.telemetry(
            at=1e9, now_s=now_s, since_s=since_s, window_s=600.0, sampler_pods=samplers, trainer_pods=["t0"]
        )

    early = asked(1.0, 0.0)
    assert not early.policy_version.known
    assert early.missing
    scraped.advance(2000.0)
    now = asked(2000.0, 0.0)
    record = p.record()
    last = record.published_s <= 1995
    window = record.periods_s[last & (record.published_s > 1400)]
    assert now.period_s.value == pytest.approx(window.mean(), rel=0.05)
    assert now.iteration_s.value == pytest.approx(0.5, rel=0.05)
    assert now.train_step_s.value == pytest.approx(2.0)
    assert now.response_lengths.value is not None
    assert now.response_lengths.value.mean_tokens == pytest.approx(50, rel=0.15)
    assert now.layout_generation.value == 1
    assert now.steps_in_window.value == pytest.approx(len(window), abs=1)
    assert now.missing == ()
    fresh = asked(2000.0, 1980.0)
    assert fresh.window_s == 0
    assert not fresh.period_s.known
    assert fresh.policy_version.known
    other = asked(2000.0, 0.0, ("s0", "s1", "new"))
    assert not other.running.known
    assert other.missing


def test_noise_changes_slowly_and_has_mean_one() -> None:
    of = run(steps=500, noise=0.2)
    scraped = Scraped(plant(of, laws()), 15.0)
    factors = np.array([scraped._factor(3, at) for at in np.arange(0, 600 * 400, 60.0)])
    assert factors.mean() == pytest.approx(1.0, abs=0.03)
    assert np.log(factors).std() == pytest.approx(0.2, rel=0.2)
    assert np.abs(np.diff(np.log(factors))).max() < 0.25


# --- judging and printing ------------------------------------------------------------------------------------------------------


def _row(policy: PolicyName, seconds: float, moves: int = 0, late: int = 0) -> PolicyJson:
    move = MoveJson(step=0, samplers=8, trainers=2)
    return PolicyJson(
        policy=policy, total_seconds=seconds, ratio_to_clairvoyant=seconds / 1000, moves=moves, gpu_hours=1, max_staleness=5,
        mean_staleness=2, worst_mean_staleness=3, start=move, end=move,
        move_steps=[MoveJson(step=late, samplers=4, trainers=3)] * moves, periods=[(5, 20.0), (10, 30.0)],
    )  # fmt: skip


def _rows(ours: float, start: float, **changes: int) -> dict[PolicyName, PolicyJson]:
    totals = {
        PolicyName.RLJOB: ours, PolicyName.STATIC_BEST: 1005.0, PolicyName.STATIC_START: start,
        PolicyName.THRESHOLD: start, PolicyName.CLAIRVOYANT: 1000.0,
    }  # fmt: skip
    return {
        name: _row(name, seconds, **(changes if name is PolicyName.RLJOB else {})) for name, seconds in totals.items()
    }


@pytest.mark.parametrize(
    ("ours", "start", "missed"),
    [
        (1014.0, 1100.0, set()),
        (1040.0, 1100.0, {"within 3 % of the clairvoyant", "within 1 % of the best static split in hindsight"}),
        (1014.0, 1010.0, set()),
        (
            1029.0,
            1010.0,
            {
                "within 1 % of the split of step 0",
                "within 1 % of the queue-depth autoscaler",
                "within 1 % of the best static split in hindsight",
            },
        ),
    ],
)
def test_aims_depend_on_what_there_was_to_gain(ours: float, start: float, missed: set[str]) -> None:
    found = aims(_rows(ours, start), stationary=False, first_is_best=False)
    assert {aim.aim for aim in found if not aim.met} == missed


def test_a_stationary_trace_allows_no_move_from_the_best_split_and_two_early_ones_else() -> None:
    def missed(first_is_best: bool, **changes: int) -> list[str]:
        found = aims(_rows(1000.0, 1005.0, **changes), stationary=True, first_is_best=first_is_best)
        return [aim.aim for aim in found if not aim.met]

    assert missed(True) == []
    assert missed(True, moves=1, late=3) == ["no move, since the first split is the best"]
    assert missed(False, moves=2, late=49) == []
    assert missed(False, moves=2, late=50) == ["no move from step 50 on"]
    assert missed(False, moves=3, late=80) == ["at most two moves", "no move from step 50 on"]


def test_the_output_has_the_promised_keys() -> None:
    trace = TraceJson(
        name="x", effect="nothing", policies=list(_rows(1000.0, 1005.0).values()), steps=10, aims=[], decisions={}
    )
    printed = json.loads(DriftJson(traces=[trace], seconds=1.0).model_dump_json(by_alias=True))
    assert {"name", "effect", "policies"} <= printed["traces"][0].keys()
    promised = {"policy", "totalSeconds", "ratioToClairvoyant", "moves", "gpuHours", "maxStaleness"}
    assert all(promised <= policy.keys() for policy in printed["traces"][0]["policies"])
    assert {policy["policy"] for policy in printed["traces"][0]["policies"]} == {
        "rljob", "staticBest", "staticStart", "threshold", "clairvoyant",
    }  # fmt: skip
    assert "clairvoyant" in table(trace)


def test_results_become_a_picture_and_the_tables_of_a_page(tmp_path: Path) -> None:
    rows = list(_rows(1000.0, 1005.0, moves=1, late=4).values())
    trace = TraceJson(name="x<y", effect="nothing", policies=rows, steps=10, aims=[], decisions={})
    drawing = ElementTree.fromstring(picture([trace, trace]))
    lines = drawing.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2 * 2 * 3
    written = page(f"before\n{BEGIN}\nof last year\n{END}\nafter\n", [trace])
    assert "last year" not in written
    assert written.startswith("before\n")
    assert written.endswith(f"{END}\nafter\n")
    assert "| rljob | 1,000 | 1.000 | 1 |" in written
    assert page(written, [trace]) == written
    with pytest.raises(ValueError, match="no place for results"):
        page("nothing", [trace])
    kept = tmp_path / "kept.json"
    kept.write_text(DriftJson(traces=[trace], seconds=1.0).model_dump_json(by_alias=True), encoding="utf-8")
    assert main(["--read", str(kept), "--picture", str(tmp_path / "x.svg")]) == 0
    assert (tmp_path / "x.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_trace_of_ones_own_runs_under_all_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(TRACE, encoding="utf-8")
    assert main(["--trace", str(path), "-o", "json"]) == 0
    (trace,) = json.loads(capsys.readouterr().out)["traces"]
    assert trace["name"] == "own"
    assert trace["effect"]
    totals = {policy["policy"]: policy["totalSeconds"] for policy in trace["policies"]}
    assert all(totals["clairvoyant"] <= total + 1e-6 for name, total in totals.items() if name != "rljob")
    assert totals["rljob"] < 1.3 * totals["staticBest"]
    assert trace["decisions"]


def test_a_file_that_is_not_there_is_an_error_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", "nowhere.yaml"]) == 1
    assert "nowhere.yaml: cannot be read" in capsys.readouterr().err


def test_counts_of_all_pairs_stay_in_the_budget() -> None:
    stage = Stage.of(parse_trace(TRACE, "x.yaml"))
    for samplers, trainers in itertools.product(range(1, 9), range(1, 3)):
        after = shifted(stage, Counts(samplers, trainers, 64), 1)
        assert after is None or after.gpus(stage.start) <= stage.run.spec.gpus
