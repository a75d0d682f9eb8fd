"""Who comes first: binary heaps and tournament trees over flat arrays, for the compiled simulator.

A tournament tree holds a value per replica in its leaves and, in every inner node, the smaller (or larger) of its two
children: to change one value costs at most the depth of the tree, and mostly less, since the way up ends where nothing
changes. With many replicas, that is the difference between a cost per sample that grows with their number and one that
hardly does. A tree over n leaves is an array of twice the next power of two; leaf r lies in the second half, at
``first_leaf(tree) + r``, and the root at 1.
"""

from __future__ import annotations

from typing import Any

from rljob_planner._jit import jit

NOTHING = 1 << 62
"""Above every value of a tree."""


@jit
def sift_down(heap: Any, i: int, size: int) -> None:
    """Restore the heap of ``size`` integers below position ``i``."""
    key = heap[i]
    child = 2 * i + 1
    while child < size:
        if child + 1 < size:
            child += int(heap[child + 1] < heap[child])  # without a branch: which child is smaller is a toss-up
        if heap[child] >= key:
            break
        heap[i] = heap[child]
        i, child = child, 2 * child + 1
    heap[i] = key


@jit
def sift_up(heap: Any, i: int) -> None:
    """Restore the heap of integers above position ``i``."""
    key = heap[i]
    while i > 0 and heap[(i - 1) // 2] > key:
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = key


@jit
def push_entry(heap: Any, size: int, time_s: float, order: int, sample: int) -> None:
    """Add an entry to a heap of ``size`` entries, ordered by time and, at one time, by ``order``."""
    i = size
    while i > 0:
        above = heap[(i - 1) // 2]
        if above.time_s < time_s or (above.time_s == time_s and above.order < order):
            break
        heap[i] = above
        i = (i - 1) // 2
    entry = heap[i]
    entry.time_s, entry.order, entry.sample = time_s, order, sample


@jit
def pop_entry(heap: Any, size: int) -> int:
    """Take the first of ``size`` entries away; returns its sample."""
    sample = heap[0].sample
    last = heap[size - 1]
    i, child = 0, 1
    while child < size - 1:
        if child + 1 < size - 1 and (
            heap[child + 1].time_s < heap[child].time_s
            or (heap[child + 1].time_s == heap[child].time_s and heap[child + 1].order < heap[child].order)
        ):
            child += 1
        if last.time_s < heap[child].time_s or (last.time_s == heap[child].time_s and last.order < heap[child].order):
            break
        heap[i] = heap[child]
        i, child = child, 2 * child + 1
    heap[i] = last
    return int(sample)


@jit
def first_leaf(tree: Any) -> int:
    """Where the leaves of a tree begin."""
    return int(tree.size // 2)


@jit
def set_smallest(tree: Any, leaf: int, value: Any) -> None:
    """Give a leaf of a tree of minima another value."""
    tree[leaf] = value
    i = leaf // 2
    while i >= 1:
        least = tree[2 * i + 1] if tree[2 * i + 1] < tree[2 * i] else tree[2 * i]
        if tree[i] == least:
            break
        tree[i] = least
        i //= 2


@jit
def set_largest(tree: Any, leaf: int, value: Any) -> None:
    """Give a leaf of a tree of maxima another value."""
    tree[leaf] = value
    i = leaf // 2
    while i >= 1:
        most = tree[2 * i + 1] if tree[2 * i + 1] > tree[2 * i] else tree[2 * i]
        if tree[i] == most:
            break
        tree[i] = most
        i //= 2


@jit
def smallest(tree: Any) -> int:
    """The leaf with the smallest value, the first of equals."""
    i, leaves = 1, tree.size // 2
    while i < leaves:
        i = 2 * i + int(tree[2 * i + 1] < tree[2 * i])  # without a branch, which could not be foretold
    return int(i)


@jit
def is_tied(tree: Any, leaf: int) -> bool:
    """Whether another leaf has the smallest value too, besides ``leaf``, which ``smallest`` found."""
    tied, i = False, leaf
    while i > 1:
        tied = tied or tree[i ^ 1] == tree[leaf]
        i //= 2
    return tied


@jit
def smallest_above(tree: Any, ceilings: Any, floor: int, stack: Any) -> int:
    """The smallest value among the leaves of ``tree`` whose leaf in ``ceilings`` (a tree of maxima) is above ``floor``; ``NOTHING`` if there is none.

    Of every subtree the half that promises more is looked into first, and a half that can hold nothing better is left out.
    """
    leaves = tree.size // 2
    best = NOTHING
    stack[0] = 1
    size = 1
    while size > 0:
        size -= 1
        i = stack[size]
        if ceilings[i] <= floor or tree[i] >= best:
            continue
        if i >= leaves:
            best = tree[i]
            continue
        first = 2 * i + int(tree[2 * i + 1] < tree[2 * i])
        stack[size] = first ^ 1
        stack[size + 1] = first
        size += 2
    return int(best)
