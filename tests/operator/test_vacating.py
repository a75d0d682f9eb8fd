"""Pods leave so that those that come find room on one node, as far as any choice of pods can."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.observation import Observation, PodView
from rljob_operator.vacating import Coming, vacate
from rljob_operator.victims import unplaced, victims
from tests.operator.scene import split


def pod(name: str, node: str, *, ready: bool = True) -> PodView:
    return PodView(name, "sampler", ready=ready, node=node)


def spread(*counts: int) -> list[PodView]:
    return [pod(f"{chr(97 + node)}{i}", chr(97 + node)) for node, count in enumerate(counts) for i in range(count)]


def placed(leaving: tuple[PodView, ...], width: int, coming: Coming) -> int:
    """Pods that fit once these have left, by a count of its own."""
    free = {node: gpus + width * sum(p.node == node for p in leaving) for node, gpus in coming.free.items()}
    return min(coming.pods, sum(gpus // coming.gpus for gpus in free.values()))


def test_pods_leave_the_node_where_the_fewest_have_to() -> None:
    coming = Coming(pods=1, gpus=4, free={"a": 0, "b": 1, "c": 0})
    found = vacate(spread(8, 7, 8), 4, 1, coming)
    assert [p.node for p in found.leaving].count("b") >= 3
    assert found.unplaced == 0


def test_pods_that_are_not_ready_leave_first_whatever_room_they_make() -> None:
    pods = [pod("sick", "z", ready=False), *spread(8, 8)]
    found = vacate(pods, 4, 1, Coming(1, 4, {"a": 0, "b": 0, "z": 0}))
    assert found.leaving[0].name == "sick"
    assert found.unplaced == 1, "three more on one node are too few"


def test_a_wide_pod_that_leaves_makes_room_for_many() -> None:
    found = vacate([pod("t0", "a"), pod("t1", "b")], 1, 8, Coming(8, 1, {"a": 0, "b": 0}))
    assert (len(found.leaving), found.unplaced) == (1, 0)


def test_nothing_has_to_leave_for_what_fits_already() -> None:
    found = vacate(spread(2, 2), 1, 1, Coming(1, 4, {"a": 0, "b": 6}))
    assert (found.leaving[0].name, found.unplaced) == ("a0", 0), "then the most dispensable leaves"


def test_a_node_that_the_newcomers_may_not_use_makes_no_room() -> None:
    assert vacate(spread(8), 4, 1, Coming(1, 4, {"elsewhere": 0})).unplaced == 1


@settings(max_examples=120, deadline=None)
@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    free=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    count=st.integers(1, 6),
    width=st.integers(1, 3),
    pods=st.integers(1, 3),
    gpus=st.integers(1, 6),
)
def test_no_other_choice_would_place_more(
    counts: list[int], free: list[int], count: int, width: int, pods: int, gpus: int
) -> None:
    candidates = spread(*counts)
    count = min(count, len(candidates))
    coming = Coming(pods, gpus, {chr(97 + node): free[node] for node in range(len(counts))})
    found = vacate(candidates, count, width, coming)
    assert len({p.name for p in found.leaving}) == count
    assert placed(found.leaving, width, coming) == pods - found.unplaced
    best = max(placed(choice, width, coming) for choice in combinations(candidates, count))
    assert pods - found.unplaced == best


def test_victims_are_named_by_the_room_they_make_and_only_where_that_is_known() -> None:
    before, after = split(8, 2), split(4, 3)
    pods = tuple(PodView(f"s{i}", "sampler", ready=True, created_s=float(i), node="ab"[i % 2]) for i in range(8))
    seen = Observation(0.0, pods, 1, 1, running_by_pod={f"s{i}": float(i) for i in range(8)})
    assert victims(before, after, seen) == ("s0", "s1", "s2", "s3"), "those that run the least"
    known = Observation(0.0, pods, 1, 1, running_by_pod=seen.running_by_pod, free=lambda _role: {"a": 0, "b": 0})
    assert victims(before, after, known) == ("s0", "s2", "s4", "s6")
    assert unplaced(before, after, known) == 0
    assert unplaced(split(8, 2), split(6, 3), known) == 1
    assert unplaced(split(8, 2), split(6, 3), seen) == 0, "unknown is no reason to refuse"
