"""A sampler that anybody deletes leaves the layout at once, and is told to the job as draining until it is gone."""

from __future__ import annotations

import pytest

from rljob_operator.actions import LAYOUT_ANNOTATION
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


def test_a_restart_of_the_operator_in_between_says_the_same_again() -> None:
    with scene() as s:
        victim = sorted(s.names("sampler"))[0]
        s.restart(between=lambda: s.delete(victim))
        s.until(lambda: s.layouts[-1]["draining"] == [victim], within_s=5.0)
        s.until(lambda: len(endpoints(s)) == 8)
        s.judged()
