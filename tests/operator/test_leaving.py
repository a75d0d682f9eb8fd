"""A sampler that anybody deletes leaves the layout at once, and is told to the job as draining until it is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from rljob_operator import gate
from rljob_operator.acting import JOIN_S
from rljob_operator.actions import LAYOUT_ANNOTATION
from rljob_operator.gate import is_ready, is_terminating
from tests.operator.scene import Scene, scene, split

AT_ONCE_S = 1.0
"""A pass after the event: far less than any tick."""


def endpoints(s: Scene) -> set[str]:
    return {endpoint["pod"] for endpoint in s.layouts[-1]["samplers"]["endpoints"]}


def touched(s: Scene, names: set[str]) -> set[str | None]:
    """The generations of the layout of which these pods were told."""
    found = (p["metadata"] for p in s.pods() if p["metadata"]["name"] in names)
    return {(meta.get("annotations") or {}).get(LAYOUT_ANNOTATION) for meta in found}


def test_a_sampler_that_is_deleted_by_hand_drains_at_once() -> None:
    with scene() as s:
        victim = sorted(s.names("sampler"))[3]
        assert victim in endpoints(s)
        before = s.layouts[-1]["generation"]
        others = {p["metadata"]["name"] for p in s.pods()} - {victim}
        s.delete(victim)
        s.until(lambda: victim not in endpoints(s), within_s=AT_ONCE_S)
        told = s.layouts[-1]
        assert (told["phase"], told["draining"], told["generation"]) == ("steady", [victim], before + 1)
        assert any(p["metadata"]["name"] == victim for p in s.pods("sampler")), "said while it still runs"
        # Touched, so that their kubelets renew the file at once instead of within a minute.
        s.until(lambda: touched(s, others) == {str(before + 1)}, within_s=AT_ONCE_S)

        s.until(lambda: all(p["metadata"]["name"] != victim for p in s.pods("sampler")))
        s.until(lambda: s.layouts[-1]["draining"] == [], within_s=AT_ONCE_S)
        # That it is gone is written down, and is no news of its own, which trainers would have to acknowledge.
        assert s.layouts[-1]["generation"] == before + 1
        s.until(lambda: endpoints(s) == s.names("sampler"))
        assert len(endpoints(s)) == 8
        assert s.layouts[-1]["draining"] == []
        assert s.layouts[-1]["generation"] == before + 2
        s.judged()


def test_several_that_are_evicted_one_after_the_other_are_all_told() -> None:
    with scene() as s:
        first, second = sorted(s.names("sampler"))[:2]
        s.delete(first)
        s.until(lambda: s.layouts[-1]["draining"] == [first], within_s=AT_ONCE_S)
        s.delete(second)
        s.until(lambda: s.layouts[-1]["draining"] == [first, second], within_s=AT_ONCE_S)
        assert not {first, second} & endpoints(s)
        s.until(lambda: len(endpoints(s)) == 8)
        s.judged()


@pytest.mark.parametrize("phase", ["Announce", "Drain", "Shrink", "Grow", "Verify"])
def test_one_that_is_deleted_in_mid_move_is_told_beside_the_victims(phase: str) -> None:
    with scene() as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase(phase))
        victims = set(s.going["victims"])
        other = sorted(s.names("sampler") - victims)[0]
        s.delete(other)
        s.until(lambda: other in s.layouts[-1]["draining"], within_s=AT_ONCE_S)
        assert other not in endpoints(s)
        s.settled(4, 3)
        s.until(lambda: endpoints(s) == s.names("sampler"))
        assert s.layouts[-1]["draining"] == []


def serving(s: Scene) -> set[str]:
    """Names of the samplers that are ready and stay."""
    return {p["metadata"]["name"] for p in s.pods("sampler") if is_ready(p) and not is_terminating(p)}


def slow_to_start(s: Scene, pods: int) -> None:
    """From now on so many new pods take half an hour to start, and all after them the usual time."""
    pace, slow = s.cluster.machines.pace, list[str]()

    def start_s(pod: Mapping[str, Any]) -> float:
        if len(slow) < pods:
            slow.append(pod["metadata"]["name"])
            return 1800.0
        return pace.start_s(pod)

    s.cluster.machines.pace = replace(pace, start_s=start_s)


def test_replacements_that_are_ready_wait_for_others_and_not_for_ever() -> None:
    with scene() as s:
        victims = sorted(s.names("sampler"))[:2]
        slow_to_start(s, 1)
        for victim in victims:
            s.delete(victim)
        s.until(lambda: len(endpoints(s)) == 6)
        one = s.until(lambda: serving(s) - endpoints(s))
        began = s.cluster.clock.now_s
        s.until(lambda: one <= endpoints(s), within_s=JOIN_S + AT_ONCE_S)
        assert s.cluster.clock.now_s - began >= JOIN_S - AT_ONCE_S, "no new layout for each that starts"
        assert len(endpoints(s)) == 7
        s.until(lambda: len(endpoints(s)) == 8, within_s=3600.0)
        s.judged()


def test_a_pod_that_does_not_say_since_when_it_is_ready_joins_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "ready_at", lambda pod: None)
    with scene() as s:
        slow_to_start(s, 1)
        for victim in sorted(s.names("sampler"))[:2]:
            s.delete(victim)
        s.until(lambda: len(endpoints(s)) == 6)
        one = s.until(lambda: serving(s) - endpoints(s))
        s.until(lambda: one <= endpoints(s), within_s=JOIN_S + AT_ONCE_S)
        s.judged()


def test_replacements_wait_for_nobody_where_none_serves() -> None:
    with scene() as s:
        slow_to_start(s, 1)
        for victim in s.names("sampler"):
            s.delete(victim)
        s.until(lambda: not endpoints(s))
        s.until(lambda: serving(s))
        s.until(lambda: endpoints(s), within_s=AT_ONCE_S)
        s.until(lambda: len(endpoints(s)) == 7, within_s=JOIN_S + 60.0)
        s.judged()


def test_a_restart_of_the_operator_in_between_says_the_same_again() -> None:
    with scene() as s:
        victim = sorted(s.names("sampler"))[0]
        s.restart(between=lambda: s.delete(victim))
        s.until(lambda: s.layouts[-1]["draining"] == [victim], within_s=5.0)
        s.until(lambda: len(endpoints(s)) == 8)
        s.judged()
