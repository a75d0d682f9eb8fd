"""Runs a job's driver and sandboxes in a pass: applies what the status says, sizes the sandboxes anew, says what is wrong.

They start with the samplers and trainers. The driver ends with them; the sandboxes end after the last sampler, whose samples may still
need one.
"""

from __future__ import annotations

from rljob_operator import fleet, gate, sandboxes, status, trouble
from rljob_operator.actions import Actions
from rljob_operator.cluster import ClusterError
from rljob_operator.companions import (
    DRIVER,
    SANDBOX,
    companions,
    driver_name,
    has_sandboxes,
    sandboxes_name,
    unwanted,
)
from rljob_operator.lifecycle import stopping
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.passes import Pass
from rljob_operator.readings import Telemetry
from rljob_operator.status import Fleet, Verdict
from rljob_operator.template import TemplateError
from rljob_operator.view import View
from rljob_planner.api.status import ConditionType

NAME_TAKEN_S = 5.0
"""How soon to look again whether the name of a companion has come free."""


class Companioning:
    """The companions of one job."""

    def __init__(self, actions: Actions, view: View, metrics: OperatorMetrics, uid: str) -> None:
        self._actions = actions
        self._view = view
        self._metrics = metrics
        self._uid = uid

    async def act(self, this: Pass) -> None:
        """Brings the companions to what the persisted status says; what the spec no longer asks for goes."""
        if this.before.split is None or this.targets is None or this.spec.adopts:
            return
        try:
            wished = companions(this.job, drivers=_drivers(this), sandboxes=_sandboxes(this))
            edits = [await self._actions.apply_companion(each) for each in wished]
        except TemplateError as error:
            this.verdicts[ConditionType.PLANNED] = Verdict(False, "InvalidTemplate", str(error))
            return
        except ClusterError as error:
            if not error.rejected:
                raise
            this.verdicts[ConditionType.PLANNED] = trouble.refused(error)
            if trouble.in_the_way(error):
                this.soon(NAME_TAKEN_S)
            return
        for edit in filter(None, edits):
            words = f"{edit} was edited by somebody else and is restored; change the RLJob instead"
            this.said.append(("Warning", "ChildEdited", words))
        for child in unwanted(this.job):
            await self._actions.remove(child)

    def look(self, this: Pass, telemetry: Telemetry | None) -> None:
        """Sizes the sandboxes for the next pass to act on, and says what is wrong with the companions."""
        if this.now.split is None or this.spec.adopts:
            return
        if this.spec.driver is not None:
            self._say(this, "driver", self._fleet(this, DRIVER, _drivers(this)))
        if has_sandboxes(this.job):
            self._size(this, telemetry)
        elif this.now.sandboxes is not None:
            this.update(sandboxes=None)

    def _size(self, this: Pass, telemetry: Telemetry | None) -> None:
        before, spec = this.now.sandboxes, this.spec
        now_fleet = self._fleet(this, SANDBOX, 0 if before is None else before.replicas)
        if stopping(spec, this.now):
            if before is None:
                return
            # Until the samplers are gone their samples may need a sandbox.
            now = before if this.samplers.existing else sandboxes.stopped(before, this.now_s)
        else:
            plan = this.now.plan
            found = sandboxes.need(
                spec,
                telemetry,
                None if plan is None else plan.period.mean,
                0 if before is None else before.replicas,
                now_fleet.ready,
            )
            now = sandboxes.sized(before, found, spec, ready=now_fleet.ready, now_s=this.now_s)
            self._say(this, "sandbox", now_fleet)
        this.update(sandboxes=now)
        if before is None or now.replicas != before.replicas:
            was = "" if before is None else f"from {before.replicas} to {now.replicas}: "
            this.said.append(("Normal", "SandboxesScaled", f"{was}{now.reason}"))
            this.soon(0.0)
        self._metrics.sandboxes(*this.key, wished=now.replicas, ready=now_fleet.ready, busy=now.busy)

    def _fleet(self, this: Pass, role: str, wanted: int) -> Fleet:
        name = driver_name(this.job) if role == DRIVER else sandboxes_name(this.job)
        return fleet.fleet(role, wanted, this.pods, self._view.child(self._uid, "Deployment", name, this.key[0]))

    def _say(self, this: Pass, name: str, found: Fleet) -> None:
        """Trouble of a companion: its pods hold no GPUs, so none of the fleets' conditions counts them."""
        if found.broken:
            words = f"{'; '.join(found.broken[:3])}: look at the logs of the {name} pods"
            this.degradations.append(("PodsBroken", words))
        elif found.refused or found.unschedulable:
            what = found.refused or found.unschedulable
            words = f"a {name} pod can't run: {what}; make spec.{name}.template fit what nodes and namespace have, or make room"
            this.degradations.append(("CompanionNotPlaced", words))
        if name == "driver" and found.ready < found.wanted and this.all_ready:
            words = (
                f"samplers and trainers are ready, the driver is not: kubectl get pods -l {gate.ROLE_LABEL}={DRIVER}"
            )
            this.verdicts.setdefault(ConditionType.READY, Verdict(False, "PodsNotReady", words))


def _drivers(this: Pass) -> int:
    """1 while the job's other pods should be there, else 0."""
    return 0 if this.targets is None or status.nothing_wished(this.targets) else 1


def _sandboxes(this: Pass) -> int:
    return 0 if this.before.sandboxes is None else this.before.sandboxes.replicas
