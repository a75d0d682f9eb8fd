"""Gives up the pods of a lost pool in a pass, and says which pool is lost."""

from __future__ import annotations

from collections.abc import Collection

from rljob_operator import pools, status
from rljob_operator.observation import timestamp
from rljob_operator.passes import Pass
from rljob_planner.api.status import DecisionCode, DecisionStatus
from rljob_planner.split import Split


def give_up(this: Pass, after_s: float) -> bool:
    """Takes pools that were lost ``after_s`` seconds ago out of the split, and out of a move under way; whether there was one.

    This is no move: what it takes out is gone already. What is left is whole again, and the next decision may move to a split that
    makes more of it.
    """
    split = this.before.split
    if split is None or not this.lost_pools:
        return False
    used = {pool.name for pool in split.samplers.pools or () if pool.replicas}
    due = [lost for lost in this.lost_pools.values() if lost.since_s is None or this.now_s - lost.since_s >= after_s]
    names = [lost.name for lost in due]
    smaller = pools.without(split, this.spec, names, this.pods)
    if smaller is None:
        _say(this, used, names, after_s)
        return False
    gone = split.samplers.replicas - smaller.samplers.replicas
    words = (
        f"{'; '.join(lost.words() for lost in due if lost.name in used)}: {gone} of {split.samplers.replicas} samplers are given up and the job "
        f"goes on with {smaller.label()}; once the pool is back it is used again"
    )
    move = this.before.rebalance
    if move is not None:

        def rid(of: Split) -> Split:
            return pools.without(of, this.spec, names, this.pods) or of

        this.update(
            rebalance=move.model_copy(update={"from_split": rid(move.from_split), "to_split": rid(move.to_split)})
        )
    decision = DecisionStatus(
        at=timestamp(this.now_s), code=DecisionCode.POOL_LOST, message=words, from_split=split, to_split=smaller
    )
    plan = this.before.plan
    if plan is not None:
        # A job without metrics grows by this alone once there is more room than was planned with.
        room = min(plan.placeable_gpus, this.inventory.placeable_gpus)
        this.update(plan=plan.model_copy(update={"placeable_gpus": room}))
    this.update(split=smaller, decisions=status.remember(this.before.decisions, decision))
    this.said.append(("Warning", "PoolLost", words))
    this.degradations.insert(0, ("PoolLost", words))
    this.soon(0.0)
    return True


def _say(this: Pass, used: set[str], due: Collection[str], after_s: float) -> None:
    """A pool that is lost and in use, or that still holds pods which nobody can end."""
    holding = {pools.pool_name(pod) for pod in this.pods}
    for lost in this.lost_pools.values():
        if lost.name in used:
            rest = (
                f"its samplers are given up {after_s:.0f} s after it was lost, if others are left"
                if lost.name not in due
                else "no other sampler is left to go on with"
            )
        elif lost.name in holding:
            rest = "its pods still count in the budget until they are gone: delete nodes that won't come back"
        else:
            continue
        this.degradations.insert(
            0, ("PoolLost", f"{lost.words()}; {rest}. Bring its nodes back, or set its maxGPUs to 0")
        )
