from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_planner.placement import Room, default_rooms, frontier, packs, placeable_gpus, rooms_of

ROOMS = st.lists(
    st.builds(
        Room,
        node=st.just("n"),
        free_gpus=st.integers(0, 8),
        accelerator=st.none(),
        samplers=st.booleans(),
        trainers=st.booleans(),
    ),
    max_size=4,
)
WIDTH = st.sampled_from([1, 2, 3, 4, 8])


def tried_out(rooms: list[Room], sampler_gpus: int, samplers: int, trainer_gpus: int, trainers: int) -> bool:
    """Puts each replica on each node in turn."""

    @cache
    def fits(free: tuple[int, ...], samplers: int, trainers: int) -> bool:
        if not samplers and not trainers:
            return True
        size = trainer_gpus if trainers else sampler_gpus
        left = (samplers, trainers - 1) if trainers else (samplers - 1, 0)
        return any(
            left_free >= size
            and (room.trainers if trainers else room.samplers)
            and fits((*free[:i], left_free - size, *free[i + 1 :]), *left)
            for i, (left_free, room) in enumerate(zip(free, rooms, strict=True))
        )

    return fits(tuple(room.free_gpus for room in rooms), samplers, trainers)


@given(rooms=ROOMS, sampler_gpus=WIDTH, samplers=st.integers(0, 6), trainer_gpus=WIDTH, trainers=st.integers(0, 4))
def test_packing_agrees_with_trying_every_place(
    rooms: list[Room], sampler_gpus: int, samplers: int, trainer_gpus: int, trainers: int
) -> None:
    assert packs(rooms, sampler_gpus, samplers, trainer_gpus, trainers) == tried_out(
        rooms, sampler_gpus, samplers, trainer_gpus, trainers
    )


@given(rooms=ROOMS, sampler_gpus=WIDTH, trainer_gpus=WIDTH)
def test_more_trainers_never_leave_more_room_for_samplers(
    rooms: list[Room], sampler_gpus: int, trainer_gpus: int
) -> None:
    best = frontier(rooms, sampler_gpus, trainer_gpus).tolist()
    assert best == sorted(best, reverse=True)
    assert best[-1] >= 0


@given(rooms=ROOMS, sampler_gpus=WIDTH, trainer_gpus=WIDTH, budget=st.integers(1, 40))
def test_placeable_gpus_are_those_of_the_best_split_within_the_budget(
    rooms: list[Room], sampler_gpus: int, trainer_gpus: int, budget: int
) -> None:
    held = [
        s * sampler_gpus + t * trainer_gpus
        for t in range(budget // trainer_gpus + 1)
        for s in range((budget - t * trainer_gpus) // sampler_gpus + 1)
        if packs(rooms, sampler_gpus, s, trainer_gpus, t)
    ]
    assert placeable_gpus(rooms, sampler_gpus, trainer_gpus, budget) == max(held)


@given(
    count=st.integers(1, 40), free=st.integers(1, 16), sampler_gpus=WIDTH, trainer_gpus=WIDTH, most=st.integers(0, 60)
)
def test_many_equal_nodes_are_packed_as_one_by_one(
    count: int, free: int, sampler_gpus: int, trainer_gpus: int, most: int
) -> None:
    one = [(free - b * trainer_gpus) // sampler_gpus for b in range(free // trainer_gpus + 1)]
    best = {0: 0}
    for _ in range(count):
        grown: dict[int, int] = {}
        for trainers, samplers in best.items():
            for more, left in enumerate(one):
                grown[trainers + more] = max(grown.get(trainers + more, 0), samplers + left)
        best = grown
    rooms = [Room(f"n{i}", free) for i in range(count)]
    found = frontier(rooms, sampler_gpus, trainer_gpus, most).tolist()
    assert found == [best[t] for t in sorted(best)][: most + 1]


def test_a_node_that_lacks_two_gpus_holds_no_trainer_of_eight() -> None:
    rooms = (*rooms_of("7x8"), Room("last", 6))
    assert not packs(rooms, 2, 0, 8, 8)
    assert packs(rooms, 2, 3, 8, 7)
    assert placeable_gpus(rooms, 8, 8, 64) == 56
    assert placeable_gpus(rooms, 2, 8, 64) == 62


def test_roles_keep_to_their_nodes() -> None:
    rooms = (Room("a", 8, samplers=False), Room("b", 8, trainers=False))
    assert packs(rooms, 1, 8, 8, 1)
    assert not packs(rooms, 1, 9, 8, 1)
    assert not packs(rooms, 1, 0, 8, 2)


def test_a_thousand_nodes_are_packed_as_exactly() -> None:
    rooms = (*rooms_of("1000x8"), *rooms_of("200x6"))
    best = frontier(rooms, 2, 8)
    assert len(best) == 1001
    assert best[0] == 1000 * 4 + 200 * 3
    assert best[1000] == 600


def test_nodes_are_written_as_nodes_times_gpus() -> None:
    assert [room.free_gpus for room in rooms_of("2x8,1x4")] == [8, 8, 4]
    assert len({room.node for room in rooms_of("2x8, 3×4")}) == 5
    assert rooms_of("1x8", "H200")[0].accelerator == "H200"


@pytest.mark.parametrize("text", ["", "8", "8x", "x8", "8x8x8", "0x8", "8x0", "-1x8", "8x8;2x4", "1e9x8"])
def test_nodes_that_make_no_sense_are_an_error_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="8x8"):
        rooms_of(text)


@pytest.mark.parametrize(("gpus", "sizes"), [(16, [8, 8]), (20, [8, 8, 4]), (3, [3])])
def test_without_nodes_the_budget_comes_in_nodes_of_eight(gpus: int, sizes: list[int]) -> None:
    assert [room.free_gpus for room in default_rooms(gpus)] == sizes
