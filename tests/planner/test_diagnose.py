from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rljob_planner._diagnosis_json import diagnosis_json
from rljob_planner.advise import Bound, Expected
from rljob_planner.diagnose import diagnose
from rljob_planner.diagnosis_report import diagnosis_report
from rljob_planner.observation import Observation, Seen

QUANTITIES = [f.name for f in fields(Observation) if f.type == "Seen | None"]


def observed(parts: dict[str, Any], of: Observation | None = None) -> Observation:
    return replace(of or Observation(), **parts)


measured = st.one_of(st.none(), st.floats(0, 1e6).map(lambda v: Seen(v, "m")))
observations = st.fixed_dictionaries(dict.fromkeys(QUANTITIES, measured)).map(observed)

WHOLE = Observation(
    window_s=600.0,
    scrapes=40,
    period_s=Seen(20.0, "period"),
    train_s=Seen(12.0, "train"),
    wait_s=Seen(7.0, "wait"),
    sync_s=Seen(0.5, "sync"),
    busy=Seen(1.0, "busy"),
    queue_groups=Seen(0.0, "queue"),
    queue_growth_groups=Seen(0.0, "queue"),
    in_flight=Seen(500.0, "in flight"),
    running=Seen(400.0, "running"),
    waiting=Seen(0.0, "waiting"),
    kv_usage=Seen(0.5, "kv"),
    samples_per_step=Seen(128.0, "samples"),
)


@given(seen=observations, samples=st.one_of(st.none(), st.integers(1, 64)))
def test_whatever_was_measured_makes_a_diagnosis(seen: Observation, samples: int | None) -> None:
    found = diagnose(seen, Expected(period_s=1.0, train_s=0.0), samples_per_prompt=samples)
    for term in found.terms:
        assert term.share is None or 0.0 <= term.share <= 1.0
        assert (term.share is None) <= bool(term.unknown) or term.seconds is not None
    json.dumps(diagnosis_json(found), allow_nan=False)
    assert diagnosis_report(found, "it") is not None
    if seen.wait_s is None or seen.queue_groups is None:
        assert found.bound is Bound.UNKNOWN
        assert not found.sure


@given(missing=st.sampled_from(QUANTITIES))
def test_a_quantity_that_is_missing_changes_no_other(missing: str) -> None:
    whole = {t.name: t for t in diagnose(WHOLE, samples_per_prompt=8).terms}
    part = {t.name: t for t in diagnose(observed({missing: None}, WHOLE), samples_per_prompt=8).terms}
    for name in whole:
        if missing not in ("period_s", f"{name}_s", "busy") and not (
            name in ("other", "generate") and missing.endswith("_s")
        ):
            assert part[name].share == whole[name].share


def test_more_waiting_never_makes_the_trainer_the_bottleneck() -> None:
    bounds = [
        diagnose(
            replace(WHOLE, wait_s=Seen(wait, "wait"), train_s=Seen(20.0 - wait, "train")), samples_per_prompt=8
        ).bound
        for wait in (0.0, 0.5, 1.5, 3.0, 10.0, 19.0)
    ]
    assert bounds == [Bound.BALANCED] * 3 + [Bound.SAMPLERS] * 3


def test_the_same_wait_with_a_full_queue_is_no_fault_of_samplers() -> None:
    full = replace(WHOLE, queue_groups=Seen(64.0, "queue"))
    assert diagnose(full, samples_per_prompt=8).bound is Bound.HANDOVER
    assert diagnose(WHOLE, samples_per_prompt=8).bound is Bound.SAMPLERS


def test_advice_never_promises_more_than_the_wait() -> None:
    found = diagnose(WHOLE, samples_per_prompt=8)
    assert found.advice
    assert all(a.at_most is None or a.at_most <= 0.35 + 1e-9 for a in found.advice)


def test_dropped_groups_are_named() -> None:
    found = diagnose(replace(WHOLE, dropped_groups=Seen(12.0, "dropped")), samples_per_prompt=8)
    assert "12 complete groups were thrown away" in found.advice[-1].because


def test_samplers_that_idle_beside_a_busy_trainer_are_held_back_for_it() -> None:
    held = replace(WHOLE, train_s=Seen(20.0, "train"), wait_s=Seen(0.0, "wait"), busy=Seen(0.5, "busy"))
    found = diagnose(held, samples_per_prompt=8)
    assert found.bound is Bound.TRAINERS
    assert "50% of the time" in found.why[-1]
