"""The parts of the tiny GRPO job that need no torch: task, advantages, staleness, admission, and what an answer of vLLM is taken for."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_grpo.admission import Admission, Limits
from tiny_grpo.plots import read, table
from tiny_grpo.sampler import BusyError, CutError, RefusedError, ending, read_choice
from tiny_grpo.samples import Group, Sample, Span, advantages
from tiny_grpo.task import EOS, FIRST_NUMBER, VOCABULARY, Kind, LengthTrace, problem, reward


def words(tokens: tuple[int, ...]) -> str:
    return " ".join(VOCABULARY[t] for t in tokens)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Kind.COPY, "17 72 97 08 32 <eos>"),
        (Kind.REVERSE, "32 08 97 72 17 <eos>"),
        (Kind.SORT, "08 17 32 72 97 <eos>"),
    ],
)
def test_a_problem_and_its_answer(kind: Kind, answer: str) -> None:
    made = problem(kind, 5, random.Random(1))
    assert words(made.prompt) == f"{kind.value} 17 72 97 08 32 >"
    assert words(made.target) == answer


def test_counting_keeps_the_prompt_short() -> None:
    made = problem(Kind.COUNT, 40, random.Random(0))
    assert len(made.prompt) == 4
    assert len(made.target) == 41
    numbers = [int(VOCABULARY[t]) for t in made.target[:-1]]
    assert numbers == list(range(numbers[0], numbers[0] + 40))
    assert words(made.prompt) == f"count {numbers[0]:02d} {numbers[-1]:02d} >"


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("length", [1, 2, 100])
def test_every_length_that_a_trace_may_ask_for(kind: Kind, length: int) -> None:
    made = problem(kind, length, random.Random(3))
    assert len(made.target) == length + 1
    assert made.max_tokens > len(made.target)
    assert len(made.prompt) + made.max_tokens <= 256


def test_reward_of_the_right_answer_is_one_and_of_none_zero() -> None:
    assert reward((5, 6, 7, EOS), (5, 6, 7, EOS)) == 1.0
    assert reward((5, 6, 7, EOS), ()) == 0.0
    assert reward((5, 6), (8, 9)) == 0.0


def test_one_number_too_many_costs_itself_alone() -> None:
    target = tuple(range(10))
    assert reward(target, (99, *target)) == pytest.approx(20 / 21)
    assert reward(target, target[:5]) == pytest.approx(10 / 15)
    assert reward(target, target[::-1]) == pytest.approx(2 / 20)


def test_lengths_follow_the_trace() -> None:
    trace = LengthTrace("0:10,100:10,200:40")
    assert [trace.mean(v) for v in (0, 50, 100, 150, 200, 500)] == [10, 10, 10, 25, 40, 40]
    rng = random.Random(0)
    drawn = [trace.draw(500, rng) for _ in range(2000)]
    assert (min(drawn), max(drawn)) == (20, 60)
    assert sum(drawn) / len(drawn) == pytest.approx(40, rel=0.02)
    assert LengthTrace("12").mean(7) == 12


@pytest.mark.parametrize("text", ["", "a", "0:0", "0:12,0:13", "5:12,3:13", "0:101", "0:12,", "0.5:3"])
def test_a_trace_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="length trace"):
        LengthTrace(text)


def test_advantages_are_against_the_group() -> None:
    assert advantages([0.5, 0.5, 0.5]) == [0.0, 0.0, 0.0]
    low, high = advantages([0.0, 1.0])
    assert high == pytest.approx(1.0, rel=1e-3)
    assert low == -high


def test_staleness_goes_by_the_first_token() -> None:
    sample = Sample((5, 6, 7, EOS), (-1.0,) * 4, (Span(3, 1), Span(5, 3)), 1.0)
    assert sample.staleness(6) == 3
    assert sample.token_staleness(6) == pytest.approx((1 * 3 + 3 * 1) / 4)


LIMITS = Limits(prompts_per_step=2, samples_per_prompt=4, steps=10, max_staleness=1)


def group(number: int = 0) -> Group:
    return Group(problem(Kind.COUNT, number + 1, random.Random(0)), ())


def started(admission: Admission) -> int:
    count = 0
    while admission.may_start():
        admission.start()
        count += 1
    return count


def test_groups_start_until_the_limit_and_again_with_each_version() -> None:
    admission = Admission(LIMITS, version=0)
    assert started(admission) == 4
    admission.version = 1
    assert started(admission) == 2


def test_on_policy_a_step_s_groups_start_at_once_and_no_more() -> None:
    admission = Admission(replace(LIMITS, max_staleness=0), version=0)
    assert started(admission) == 2


def test_no_group_starts_that_no_step_would_take() -> None:
    admission = Admission(replace(LIMITS, max_staleness=8), version=0)
    assert started(admission) == 18
    admission.version = 7
    assert started(admission) == 2
    admission.version = 10
    assert started(admission) == 0


def test_a_trainer_that_resumes_starts_groups_for_the_versions_that_are_left() -> None:
    admission = Admission(LIMITS, version=9)
    assert started(admission) == 2


def test_the_oldest_groups_are_taken_and_only_a_whole_step_s() -> None:
    admission = Admission(LIMITS, version=0)
    first, second, third = group(1), group(2), group(3)
    admission.complete(first)
    assert admission.take(timeout_s=0) is None
    admission.complete(second)
    admission.complete(third)
    assert admission.take(timeout_s=0) == [first, second]
    assert admission.queued == 1


PROBLEM = problem(Kind.SORT, 2, random.Random(0))


def choice(**changed: Any) -> dict[str, Any]:
    return {
        "finish_reason": "stop",
        "token_ids": list(PROBLEM.target),
        "weight_versions": [{"version": "4", "start": 0, "end": 2}, {"version": "5", "start": 2, "end": 3}],
        "logprobs": {"content": [{"logprob": -0.1}, {"logprob": -0.2}, {"logprob": -0.3}]},
        **changed,
    }


def test_a_whole_answer_carries_who_wrote_which_tokens() -> None:
    sample = read_choice("s0", PROBLEM, choice())
    assert sample.spans == (Span(4, 2), Span(5, 1))
    assert sample.logprobs == (-0.1, -0.2, -0.3)
    assert sample.reward == 1.0


def test_an_answer_that_was_broken_off_is_a_cut() -> None:
    with pytest.raises(CutError, match="s0 broke off: finish_reason abort"):
        read_choice("s0", PROBLEM, choice(finish_reason="abort"))


def test_an_answer_that_was_never_begun_is_a_refusal() -> None:
    with pytest.raises(RefusedError, match="s0 takes no more"):
        read_choice("s0", PROBLEM, choice(finish_reason="abort", token_ids=[], weight_versions=None, logprobs=None))


def test_an_answer_by_the_first_weights_is_no_sample_of_any_version() -> None:
    with pytest.raises(RefusedError, match="the weights it was started with"):
        read_choice("s0", PROBLEM, choice(weight_versions=[{"version": "default", "start": 0, "end": 3}]))


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (503, "queue is full", BusyError),
        (429, "", BusyError),
        (500, '{"message": "cannot schedule new futures after shutdown"}', RefusedError),
        (403, "Scale-out endpoints are disabled", RefusedError),
        (500, "EngineCore encountered an issue", CutError),
    ],
)
def test_what_an_http_status_says_of_a_sample(status: int, text: str, kind: type[Exception]) -> None:
    assert ending(status, text) is kind


def test_every_number_has_a_token() -> None:
    assert VOCABULARY[FIRST_NUMBER] == "00"
    assert len(VOCABULARY) == FIRST_NUMBER + 100
    assert len(set(VOCABULARY)) == len(VOCABULARY)


ROOT = Path(__file__).parents[2]


def test_the_published_numbers_are_those_that_were_measured() -> None:
    runs = read(ROOT / "examples" / "tiny-grpo" / "measured.csv")
    assert table(runs) in (ROOT / "docs" / "tiny-grpo.md").read_text()
    assert list(runs) == [0, 1, 4]
    assert len({len(seeds) for seeds in runs.values()}) == 1


def test_runs_of_different_lengths_are_not_compared(tmp_path: Path) -> None:
    lines = (ROOT / "examples" / "tiny-grpo" / "measured.csv").read_text().splitlines()
    (tmp_path / "cut.csv").write_text("\n".join(lines[:-5]) + "\n")
    with pytest.raises(ValueError, match="can't be compared"):
        read(tmp_path / "cut.csv")
