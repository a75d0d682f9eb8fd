"""Which pods have to go so that the pods that come find room. Pure.

GPUs that are freed one here and one there are worth nothing to a pod that needs four on one node. So the pods that leave are chosen
node by node: each pod that comes takes the node where the fewest have to go for it. Nodes cost independently of each other, and
a second pod on a node never costs less than the first, so that taking the cheapest place each time finds room for as many as can be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljob_operator.observation import PodView


@dataclass(frozen=True)
class Coming:
    """The pods that a move adds."""

    pods: int
    gpus: int
    """GPUs of one of them, all on one node."""
    free: Mapping[str, int]
    """GPUs that are free for them on each node that they may use, in devices."""


@dataclass(frozen=True)
class Vacated:
    """The pods that leave, and for how many of those that come they make room."""

    leaving: tuple[PodView, ...]
    unplaced: int
    """Pods that come and find no node with enough free GPUs."""


def vacate(candidates: Sequence[PodView], count: int, width: int, coming: Coming) -> Vacated:
    """Chooses ``count`` of the candidates, each of ``width`` GPUs and the most dispensable first, so that there is room for what comes.

    Pods that are not ready leave in any case: a scale-down removes them first whatever it was asked.
    """
    leaving = [pod for pod in candidates if not pod.ready][:count]
    free: defaultdict[str, int] = defaultdict(int, coming.free)
    on: defaultdict[str, list[PodView]] = defaultdict(list)
    for pod in candidates:
        if pod.node in coming.free:
            if pod in leaving:
                free[str(pod.node)] += width
            else:
                on[str(pod.node)].append(pod)
    rank = {pod.name: place for place, pod in enumerate(candidates)}

    def lacking(node: str) -> int:
        return max(0, -(-(coming.gpus - free[node]) // width))

    unplaced = coming.pods
    while unplaced:
        possible = [
            (lack, sum(rank[pod.name] for pod in on[node][:lack]), node)
            for node in coming.free
            if (lack := lacking(node)) <= min(len(on[node]), count - len(leaving))
        ]
        if not possible:
            break
        lack, _, node = min(possible)
        leaving += on[node][:lack]
        del on[node][:lack]
        free[node] += lack * width - coming.gpus
        unplaced -= 1
    chosen = {pod.name for pod in leaving}
    rest = [pod for pod in candidates if pod.name not in chosen]
    return Vacated((*leaving, *rest[: max(0, count - len(leaving))]), unplaced)
