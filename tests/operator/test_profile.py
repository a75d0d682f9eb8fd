"""Measures a real HTTP server whose speed is known, and calibrates on what was measured."""

from __future__ import annotations

import pytest

from rljob_operator.completions import ProfileError
from rljob_operator.profile import Load, Profile, profile
from rljob_planner.fit import MeasuredStep, RowKind, fit
from rljob_planner.fit_seconds import fit_seconds
from rljob_planner.hardware import gpu
from rljob_planner.models import model
from rljob_planner.steptime import Engine
from tests.operator.openai_server import Server, Truth, serving

FAST = Truth(step_s=2e-3, sample_s=2e-5)
SMALL = Load(concurrency=(2,), requests=4, prompt_tokens=(32,), response_tokens=16, max_s=30.0)


def engine() -> Engine:
    return Engine(model("Qwen/Qwen3-8B"), gpu("H100-SXM"), 1, "bf16", "bf16")


async def measured(server: Server, load: Load = SMALL, said: list[str] | None = None) -> Profile:
    async with serving(server):
        return await profile(server.url, load, progress=(said if said is not None else []).append)


async def test_calibrated_on_three_concurrencies_it_predicts_those_between() -> None:
    truth = Truth()
    load = Load(concurrency=(1, 4, 16), requests=8, prompt_tokens=(64,), response_tokens=40, max_s=60.0)
    said: list[str] = []
    found = await measured(Server(truth), load, said)
    assert [round(row.running) for row in found.rows] == [1, 4, 16]
    assert found.model == "Qwen/Qwen3-8B"
    assert found.kv_tokens == 123456
    assert found.skipped == ()
    assert len(said) == 7
    fitted = fit(engine(), found.rows)
    assert fitted.residual is not None
    assert fitted.residual < 0.10
    context = 64 + 20.0
    for running in (2, 8, 12):
        row = MeasuredStep("between", RowKind.SERVED, running, 64, 40, context, running / 40, 1.0)
        expected = truth.step(running, running * context, prefilled=running / 40 * 64)
        assert fitted.step_s(row) == pytest.approx(expected, rel=0.10)


async def test_a_row_is_the_servers_own_step() -> None:
    found = await measured(Server(Truth(prompt_token_s=0.0)), Load((4,), 8, (64,), 32, 30.0))
    (row,) = found.rows
    assert row.prompt_tokens == 64
    assert row.response_tokens == 32
    assert row.context_tokens == pytest.approx(64 + 16)
    assert row.measured_s == pytest.approx(Truth().step(4, 4 * 80), rel=0.05)


async def test_a_chunk_of_several_tokens_counts_as_many() -> None:
    truth = Truth(prompt_token_s=0.0)
    found = await measured(Server(truth, chunk=4), Load((2,), 4, (64,), 33, 30.0))
    assert found.rows[0].response_tokens == 33
    assert found.rows[0].measured_s == pytest.approx(truth.step(2, 2 * 80), rel=0.1)


async def test_another_model_than_was_asked_for_is_said() -> None:
    async with serving(Server(FAST)) as server:
        found = await profile(server.url, SMALL, model="Qwen/Qwen3-32B")
        assert "the server has no model Qwen/Qwen3-32B: measured is served, of served" in found.notes
        for known in ("served", "Qwen/Qwen3-8B"):
            assert not (await profile(server.url, SMALL, model=known)).notes


async def test_prompts_are_of_exact_length_and_all_different() -> None:
    server = Server(FAST)
    await measured(server)
    prompts = [tuple(body["prompt"]) for body in server.asked]
    assert {len(p) for p in prompts} == {32}
    assert len(set(prompts)) == len(prompts)


async def test_old_names_of_metrics_do() -> None:
    found = await measured(Server(FAST, old_names=True))
    assert found.kv_tokens == 16000
    assert len(found.rows) == 1


async def test_several_engines_share_the_requests() -> None:
    one = await measured(Server(FAST), Load((8,), 8, (32,), 16, 30.0))
    two = await measured(Server(FAST, engines=2), Load((8,), 8, (32,), 16, 30.0))
    assert two.rows[0].running == pytest.approx(one.rows[0].running / 2, rel=0.2)
    assert two.kv_tokens == one.kv_tokens
    assert any("2 engines" in note for note in two.notes)


async def test_a_server_without_metrics_is_measured_and_it_is_said() -> None:
    found = await measured(Server(FAST, metrics=False))
    assert found.kv_tokens is None
    assert len(found.rows) == 1
    assert any("/metrics" in note for note in found.notes)


async def test_a_server_that_knows_no_extra_parameters_is_asked_without() -> None:
    server = Server(FAST, strict=True)
    found = await measured(server)
    assert len(found.rows) == 1
    assert "ignore_eos" not in server.asked[-1]
    assert any("ignore_eos" in note for note in found.notes)


async def test_a_level_that_others_disturb_is_left_out() -> None:
    found = await measured(Server(FAST, strangers_per_token=3))
    assert found.rows == ()
    assert "others used the server" in found.skipped[0][1]


async def test_responses_that_are_cut_short_are_no_measurement() -> None:
    with pytest.raises(ProfileError, match="cut a response short"):
        await measured(Server(FAST, finish="abort"))


async def test_what_is_longer_than_the_context_is_left_out() -> None:
    found = await measured(Server(FAST), Load((1,), 2, (32, 4000), 16, 30.0))
    assert len(found.rows) == 1
    assert "2048" in found.skipped[0][1]


async def test_time_ends_it() -> None:
    found = await measured(Server(Truth(step_s=0.05)), Load((1, 2), 1000, (16,), 8, 1.5))
    assert len(found.rows) + len(found.skipped) == 2


async def test_a_server_that_refuses_says_why() -> None:
    with pytest.raises(ProfileError, match="503: it is paused"):
        await measured(Server(FAST, status=503))


async def test_a_server_that_is_not_there_is_an_error() -> None:
    server = Server(FAST)
    async with serving(server):
        gone = server.url
    with pytest.raises(ProfileError, match="cannot reach"):
        await profile(gone, SMALL)


async def test_an_engine_that_counts_is_believed_and_asked_without_streams() -> None:
    truth = Truth(step_s=4e-3, sample_s=0.2e-3, token_s=0.0, prompt_token_s=2e-5)
    server = Server(truth, counters=True)
    found = await measured(server, Load((1, 4, 12), None, (64,), 32, 60.0))
    # The warm-up is a stream, whatever the server counts.
    assert [body["stream"] for body in server.asked[1:]] == [False] * (len(server.asked) - 1)
    *served, alone = found.rows
    assert [round(row.running) for row in served] == [1, 4, 12]
    assert alone.kind is RowKind.PREFILL
    assert alone.measured_s == pytest.approx(truth.step(1, 0, 64))
    told = fit_seconds(found.rows)
    assert told.fitted == ("stepSeconds", "sampleSeconds", "promptTokenSeconds")
    assert told.seconds.sample_s == pytest.approx(truth.sample_s, rel=0.15)
    for running in (2, 8):
        row = MeasuredStep("between", RowKind.SERVED, running, 64, 32, 80.0, running / 32, 1.0)
        assert told.step_s(row) == pytest.approx(truth.step(running, 0, running / 32 * 64), rel=0.05)


async def test_an_engine_that_counts_tells_of_others_too() -> None:
    found = await measured(Server(FAST, counters=True, strangers_per_token=3))
    assert found.rows == ()
    assert "others used the server" in found.skipped[0][1]


async def test_a_whole_answer_that_was_cut_short_is_no_measurement() -> None:
    server = Server(FAST, counters=True)
    async with serving(server):
        server.finish = "length"
        found = await profile(server.url, SMALL)
        assert len(found.rows) == 1
    server = Server(FAST, counters=True, finish="abort")
    with pytest.raises(ProfileError, match="cut a response short"):
        await measured(server)


async def test_rounds_there_and_back_give_the_median_of_each_level() -> None:
    server = Server(FAST, counters=True)
    said: list[str] = []
    found = await measured(server, Load((1, 3), 6, (16,), 12, 60.0, 3), said)
    assert [text.split(": ")[1].split()[0] for text in said[1:]] == ["1", "3", "3", "1", "1", "3"]
    assert [round(row.running) for row in found.rows[:2]] == [1, 3]


async def test_a_chunk_without_text_is_a_token_too() -> None:
    found = await measured(Server(FAST, mute=True), Load((2,), 4, (32,), 24, 30.0))
    assert found.rows[0].response_tokens == 24
    assert found.rows[0].measured_s == pytest.approx(FAST.step(2, 2 * 44), rel=0.3)


async def test_a_counted_level_that_ran_out_of_time_counts_with_what_it_made() -> None:
    truth = Truth(step_s=0.01, sample_s=1e-3, token_s=0.0, prompt_token_s=0.0)
    found = await measured(Server(truth, counters=True), Load((3,), 6, (16,), 1000, 1.5, 1))
    assert [round(row.running) for row in found.rows] == [3]
    assert found.rows[0].measured_s == pytest.approx(truth.step(3, 0), rel=0.05)
    assert found.rows[0].context_tokens < 16 + 500
