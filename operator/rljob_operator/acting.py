"""Does what a persisted status says should be done: publishes the layout, applies the children, lifts the gates."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable
from dataclasses import replace

from rljob_operator import children, gate, lifecycle, pools, rebalance, trouble
from rljob_operator.actions import Actions
from rljob_operator.cluster import ClusterError, Json
from rljob_operator.engines import ENGINES
from rljob_operator.layout import Layout, LayoutPhase, layout_of
from rljob_operator.lifecycle import stopping
from rljob_operator.observation import epoch_s
from rljob_operator.passes import Pass
from rljob_operator.rebalance import Targets, announced
from rljob_operator.rivals import left_alone
from rljob_operator.status import Verdict, nothing_wished
from rljob_planner.api.status import ConditionType, MovePhase, Phase
from rljob_planner.split import Split

AT_ONCE_S = 0.0

SOON_S = 1.0
"""How soon to look again where the view and the API server differ."""

JOIN_S = 30.0
"""Samplers that are ready wait so long for others that still start, to join the layout together: groups that carry weights can't grow in place,
so each new layout may cost the job a regroup."""

NAME_TAKEN_S = 5.0
"""How soon to look again whether the name of a child has come free."""


class Acting:
    """What one job's passes do to the cluster."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    async def act(self, this: Pass) -> None:
        """Does what the persisted status says should be done."""
        split, move = this.before.split, this.before.rebalance
        if split is None or this.targets is None:
            return
        try:
            await self._publish(this)
            if not await self._actions.touch(this.pods):
                this.soon(SOON_S)
            lost = pools.doomed(this.pods, this.lost_pools)
            if move is None or move.phase in (MovePhase.GROW, MovePhase.VERIFY):
                await self._actions.price_victims(this.pods, lost)
            else:
                await self._actions.price_victims(this.pods, (*move.victims, *lost), move.drained)
            await self._apply(this, move.to_split if move else split, this.targets)
        except ClusterError as error:
            if not error.rejected:
                raise
            if error.reason == trouble.NAME_TAKEN:
                with contextlib.suppress(children.TemplateError):
                    error = trouble.taken(await self._actions.strangers(this.job, split))
            this.verdicts[ConditionType.PLANNED] = trouble.refused(error)
            if trouble.in_the_way(error):
                # The end of what belongs to another job wakes that job and not this one.
                this.soon(NAME_TAKEN_S)
        if not stopping(this.spec, this.before):
            await self._lift(this, _liftable(this, this.targets))

    async def _apply(self, this: Pass, split: Split, targets: Targets) -> None:
        """Brings the children to their desired state; what is to go goes also where that can't be."""
        if stopping(this.spec, this.before):
            await self._actions.scale(this.job, this.workloads, targets)
            return
        move = this.before.rebalance
        targets = left_alone(targets, this.rivals, *this.workloads)
        try:
            applied = await self._actions.apply_children(
                this.job,
                split,
                targets,
                hold_templates=move is not None and move.phase not in (MovePhase.GROW, MovePhase.VERIFY),
            )
        except children.TemplateError as error:
            this.verdicts[ConditionType.PLANNED] = Verdict(False, "InvalidTemplate", str(error))
        except ClusterError as error:
            if error.rejected:
                await self._actions.scale(this.job, this.workloads, targets, down_only=True)
            raise
        else:
            for edit in applied.edits:
                words = f"{edit} was edited by somebody else and is restored; change the RLJob instead"
                this.said.append(("Warning", "ChildEdited", words))
            for name in applied.held:
                words = f"the new template of {name} is applied once the pods that leave in the move under way are gone"
                this.said.append(("Normal", "TemplateHeld", words))
            return
        await self._actions.scale(this.job, this.workloads, targets, down_only=True)

    async def _lift(self, this: Pass, targets: Targets) -> None:
        """Lifts the gates that the status grants, then grants what there is room for: the next pass lifts it."""
        granted = this.before.grants
        # Lifts that the view shows already cost no question.
        if gate.unlifted_grants(this.pods, granted) and not await self._actions.lift_gates(
            this.job, this.gpu_resources, granted, this.pins
        ):
            this.soon(SOON_S)
        # The view wakes the job when GPUs come free; asking the API server until then would only load it.
        if self._actions.liftable(this.job, targets, this.gpu_resources, this.pods, granted):
            grants = await self._actions.grant(this.job, targets, this.gpu_resources, granted)
            this.soon(SOON_S if grants == granted else AT_ONCE_S)
        else:
            lifted = {gate.uid_of(pod) for pod in this.pods if not gate.is_gated(pod)}
            grants = tuple(uid for uid in granted if uid not in lifted)
        this.update(grants=grants)

    async def _publish(self, this: Pass) -> None:
        """Publishes the layout if it says something new; only then does its generation grow."""
        split, move, targets = this.before.split, this.before.rebalance, this.targets
        assert split is not None
        assert targets is not None
        live = self._actions.published(this.job)
        generation = 0 if live is None else int(live["generation"])
        samplers = [pod for pod in this.pods if gate.role_of(pod) == gate.SAMPLER]
        checkpoint = rebalance.wants_checkpoint(move)
        if stopping(this.spec, this.before):
            if live is not None and nothing_wished(targets):
                # The last pods go: nobody is left to read of it.
                return
            phase, told, draining = LayoutPhase.DRAINING, targets, tuple(gate.name_of(pod) for pod in samplers)
            checkpoint = lifecycle.wants_checkpoint(this.spec, this.before)
        elif move is not None and move.restart and move.phase is MovePhase.GROW:
            # What starts now reads this first, and a StatefulSet's new pods have the names of those that left.
            phase, told, draining = LayoutPhase.RESIZING, announced(split, move), ()
        elif move is None or move.phase is MovePhase.VERIFY:
            phase, told, draining = LayoutPhase.STEADY, announced(split, move), ()
        else:
            phase, told, draining = LayoutPhase.DRAINING, announced(split, move), move.victims
        # What an eviction or somebody's hand takes is told as what a move takes is: its server finishes what runs and refuses what comes.
        leaving = (gate.name_of(pod) for pod in samplers if gate.is_terminating(pod) and gate.is_held(pod))
        draining = (*draining, *leaving)
        if live is not None and (phase is not LayoutPhase.STEADY or not this.all_ready):
            # New endpoints come with the generation that ends a move or a start; until then some may only leave.
            known = {endpoint["pod"] for endpoint in live["samplers"]["endpoints"]}
            if phase is not LayoutPhase.STEADY or not self._may_join(this, samplers, known):
                samplers = [pod for pod in samplers if gate.name_of(pod) in known]
        wished = layout_of(
            generation=generation,
            phase=phase,
            split=move.to_split if move else split,
            sampler_pods=samplers,
            trainers_replicas=told.trainers,
            samplers_replicas=told.samplers,
            draining=draining,
            max_staleness=this.spec.staleness.max,
            in_flight_cap=split.in_flight if move is None else move.to_split.in_flight,
            rendezvous=children.rendezvous(this.job),
            checkpoint=checkpoint,
            engine=ENGINES[this.spec.sampler.engine],
        )
        if live is not None and _says_nothing_new(live, wished, this.pods):
            if json.loads(wished.to_json()) != live:
                await self._actions.publish_layout(this.job, wished.to_json(), generation, None)
            return
        generation = max(generation, this.before.layout_generation) + 1
        text = replace(wished, generation=generation).to_json()
        await self._actions.publish_layout(this.job, text, generation, this.pods)

    def _may_join(self, this: Pass, samplers: Iterable[Json], known: Collection[str]) -> bool:
        """Whether samplers that replace lost ones join although others still start: one may never come, and those that serve wait for nobody.

        They do once one of them has waited for ``JOIN_S``, and at once where no other serves.
        """
        if this.before.rebalance is not None or this.before.phase is not Phase.RUNNING:
            return False
        ready = [pod for pod in samplers if gate.is_ready(pod) and not gate.is_terminating(pod)]
        waiting = [pod for pod in ready if gate.name_of(pod) not in known]
        if len(waiting) in (0, len(ready)):
            return bool(waiting)
        # A kubelet need not say since when.
        since = min(epoch_s(gate.ready_at(pod) or pod["metadata"]["creationTimestamp"]) for pod in waiting)
        left_s = since + JOIN_S - this.now_s
        if left_s > 0.0:
            this.soon(left_s)
        return left_s <= 0.0


def _says_nothing_new(live: Json, wished: Layout, pods: Iterable[Json]) -> bool:
    """Whether a layout differs from the published one at most by pods that were draining and are gone by now.

    That is written down, but it is no news that a trainer would have to acknowledge, so that the generation stays.
    """
    there = {gate.name_of(pod) for pod in pods}
    said = json.loads(wished.to_json())
    still = [name for name in live.get("draining") or () if name in there or name in said["draining"]]
    return bool({**live, "draining": still} == said)


def _liftable(this: Pass, targets: Targets) -> Targets:
    """The pods that may be lifted now: of a job that starts no sampler before all trainers are there.

    Samplers would be bound wherever they fit, and leave no node with room for a pod as wide as a trainer.
    """
    trainers = sum(gate.role_of(pod) == gate.TRAINER and not gate.is_terminating(pod) for pod in this.pods)
    starts = this.before.phase in (Phase.PENDING, Phase.PLANNED, Phase.STARTING, Phase.SUSPENDED)
    if starts and trainers < targets.trainers and not any(gate.is_held(pod) for pod in this.pods):
        return Targets(0, targets.trainers)
    return targets
