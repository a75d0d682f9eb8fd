"""Answers the moves that people ask for: starts them by the same transaction as all others, or refuses them and says what to do.

An answer and the move that it starts are written in one status, so that there is no moment at which a restart could start it twice.
What is decided here only changes the status to be written: the next pass acts on it.
"""

from __future__ import annotations

import logging

from rljob_operator import byhand, planning, rivals, status
from rljob_operator.byhand import MoveRequest, Unreadable
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.moves import Moves
from rljob_operator.passes import Pass
from rljob_operator.rebalance import timestamp
from rljob_operator.replanning import Replanner
from rljob_operator.status import Verdict, rounded
from rljob_planner.api.requests import RequestOutcome
from rljob_planner.api.spec import Objective
from rljob_planner.api.status import DecisionCode, DecisionStatus, MoveCause
from rljob_planner.durations import seconds
from rljob_planner.search import Plan
from rljob_planner.split import Split

logger = logging.getLogger(__name__)


class Asked:
    """The moves that people ask for, of one job."""

    def __init__(self, metrics: OperatorMetrics, moves: Moves, replanner: Replanner) -> None:
        self._metrics = metrics
        self._moves = moves
        self._replanner = replanner

    async def look(self, this: Pass, published_generation: int) -> bool:
        """Carries out what is asked for, if something is; returns whether a move began."""
        request = unanswered(this)
        if not isinstance(request, MoveRequest):
            return False
        why = byhand.objection(this.spec, this.now, request, uid=this.uid, now_s=this.now_s, quota=this.quota)
        if why is not None:
            refuse(this, request, why)
            return False
        split = this.before.split
        assert split is not None
        if byhand.wished(split, request).same_shape(split):
            answer(this, request, RequestOutcome.DONE, f"{split.label()} is in force already")
            return False
        found = await self._possible(this, split, request, published_generation)
        if isinstance(found, str):
            refuse(this, request, found)
            return False
        plan, gain = found
        self._start(this, split, plan, request, gain, published_generation)
        return True

    async def _possible(
        self, this: Pass, split: Split, request: MoveRequest, generation: int
    ) -> tuple[Plan, float | None] | str:
        """The plan with the replicas that are asked for and its gain, or why there is none.

        Between the look at what other jobs took and the start of the move there must be no await.
        """
        if this.rivals:
            return rivals.words(this.rivals, this.key[0])
        if not this.all_ready:
            ready = status.ready(this.samplers, this.trainers, this.key[1])
            return f"pods are not ready, and a move begins with whole sides: {ready.message}; ask again once they are"
        wish = byhand.wished(split, request)
        if not planning.packs(wish, this.inventory):
            return f"{wish.label()} find no place on the nodes as they are: ask for fewer, or free or add nodes"
        found = await self._replanner.of(this, split, wish)
        if isinstance(found, Verdict):
            return f"the planner knows no way to run {wish.label()}: {found.message}"
        if not found.split.same_shape(wish):
            return f"the planner finds {found.split.label()} in place of {wish.label()}: ask for that"
        gain = await self._gain(this, split, found)
        if not this.still_holds(found.split):
            return f"another job took what {wish.label()} need while that was weighed: ask again"
        homeless = self._moves.homeless(this, found.split, generation)
        if homeless:
            return (
                f"{homeless} of the pods that would come find no node with enough free GPUs, whichever pods leave: the GPUs are scattered. "
                "Delete pods of the side that shrinks on one node, so that they are made anew elsewhere, or add a node"
            )
        return found, gain

    async def _gain(self, this: Pass, split: Split, found: Plan) -> float | None:
        """Fraction of the period (of a step's GPU-seconds, if cost is the objective) that a plan saves; None if unknown."""
        present = await self._replanner.of(this, split, split)
        if isinstance(present, Verdict) or not present.split.same_shape(split) or not present.period.mean > 0:
            return None
        ratio = found.period.mean / present.period.mean
        if this.spec.objective is Objective.COST:
            ratio *= found.split.gpus / present.split.gpus
        return 1.0 - ratio

    def _start(
        self, this: Pass, split: Split, found: Plan, request: MoveRequest, gain: float | None, published_generation: int
    ) -> None:
        who = request.by or "somebody"
        expected = "" if gain is None else f", {-gain:+.1%}"
        reason = f"{split.label()} → {found.split.label()} by hand, as {who} asked; {seconds(found.period.mean)} a step expected{expected}"
        decision = DecisionStatus(
            at=timestamp(this.now_s),
            code=DecisionCode.MOVE_BY_HAND,
            message=reason,
            from_split=split,
            to_split=found.split,
            predicted_gain=rounded(gain),
        )
        this.update(
            decisions=status.remember(this.now.decisions, decision), plan=planning.plan_status(found, this.now_s)
        )
        answer(this, request, RequestOutcome.ACCEPTED, reason)
        self._metrics.decided(*this.key, DecisionCode.MOVE_BY_HAND, gain)
        self._moves.start(
            this,
            found.split,
            reason,
            gain or 0.0,
            published_generation,
            cause=MoveCause.BY_HAND,
            request=request.id,
        )
        logger.info("%s/%s: %s: %s", *this.key, DecisionCode.MOVE_BY_HAND, reason)


def unanswered(this: Pass) -> MoveRequest | Unreadable | None:
    """The request on the job, if it was not answered yet."""
    request = byhand.read(this.raw["metadata"])
    if request is None or byhand.answer_to(this.now.moves, request.id) is not None:
        return None
    return request


def finish(this: Pass) -> None:
    """Ends the requests whose moves are over, and refuses one that this pass met in a state in which it can't be carried out."""
    ended = byhand.concluded(this.now, this.now_s, "spec.suspend ended it" if this.spec.suspend else "")
    if ended != this.now.moves:
        this.update(moves=ended)
    request = unanswered(this)
    if request is None:
        return
    if isinstance(request, Unreadable):
        refuse(this, request, request.why)
        return
    why = byhand.objection(this.spec, this.now, request, uid=this.uid, now_s=this.now_s)
    if why is not None:
        refuse(this, request, why)


def refuse(this: Pass, request: MoveRequest | Unreadable, why: str) -> None:
    """Says that a request is not carried out, and what to do."""
    answer(this, request, RequestOutcome.REFUSED, why)
    this.said.append(("Warning", "MoveRefused", f"the move that was asked for is refused: {why}"))


def answer(this: Pass, request: MoveRequest | Unreadable, outcome: RequestOutcome, message: str) -> None:
    """Puts the answer to a request into the status to be written."""
    this.update(moves=byhand.remembered(this.now.moves, byhand.answered(request, outcome, message, this.now_s)))
