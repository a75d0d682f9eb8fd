"""What the run has shown: the figures of ``e2e.json``, and which promises were broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dev.demo.history import Move
from dev.e2e.account import Account, Compared
from dev.e2e.removals import Removal

Json = Mapping[str, Any]


@dataclass
class Fault:
    """Something that was killed, and what came of it."""

    what: str
    """``operator``, ``prometheus`` or ``sampler``."""
    survived: bool = False
    seconds: float | None = None
    """From the kill until all was as before, seconds."""
    versions_meanwhile: int = 0
    """Policy versions that were published while it was away."""
    cut: int = 0
    """Samples that the kill cut."""


@dataclass
class Findings:
    """What was seen."""

    node: str
    gpu_budget: int
    removals_wanted: int
    plan: Json | None = None
    moves: Sequence[Move] = ()
    gpu_peak: int = 0
    account: Account = field(default_factory=Account)
    cut_in_removals: int = 0
    """By the trainer's account, from the first removal to the last."""
    unanswered_in_removals: int = 0
    """By the logs of the servers that were removed."""
    compared_in_removals: Compared = field(default_factory=lambda: Compared(0, 0))
    """Both, server by server."""
    cut_by_log_in_removals: int = 0
    """Samples that the trainer's log names as cut by one of these servers."""
    trainer_restarts: int = 0
    """How often the process that keeps the account was started again."""
    lengths: tuple[float, float] | None = None
    """Mean response in tokens before and after it had grown."""
    removals: Sequence[Removal] = ()
    faults: Sequence[Fault] = ()
    measured: Json = field(default_factory=dict)
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)
    """What went wrong on the way, in words."""


def grown(moves: Sequence[Move]) -> list[Move]:
    """The committed moves that gave the samplers more replicas."""
    return [m for m in moves if m.committed and m.after["samplers"]["replicas"] > m.before["samplers"]["replicas"]]


def broken_promises(found: Findings) -> list[str]:
    """Everything that was promised and is not so, a sentence each; empty if all is well."""
    said = list(found.broken)
    if found.plan is None:
        said.append("there was no plan")
    if not grown(found.moves):
        said.append("responses got longer, and no move that gives more samplers was committed")
    if found.gpu_peak > found.gpu_budget:
        said.append(f"pods held {found.gpu_peak} GPUs at once, the budget is {found.gpu_budget}")
    if found.gpu_peak == 0:
        said.append("no pod was ever seen to hold a GPU: the budget was not watched")
    if found.account.finished == 0:
        said.append("no sample was finished")
    if found.account.lost:
        said.append(f"{found.account.lost} samples were lost")
    if found.account.unaccounted:
        said.append(f"the trainer's account is off by {found.account.unaccounted} samples: {asdict(found.account)}")
    if len(found.removals) < found.removals_wanted:
        said.append(f"{len(found.removals)} of {found.removals_wanted} samplers were removed")
    idle = [removal.name for removal in found.removals if not removal.running]
    if idle:
        said.append(f"removed while they had nothing to lose, which proves nothing: {', '.join(idle)}")
    if found.cut_in_removals:
        said.append(f"{found.cut_in_removals} samples were cut while samplers were removed")
    if found.unanswered_in_removals:
        said.append(f"servers that were removed took {found.unanswered_in_removals} samples that they never answered")
    if not any(removal.how == "move" for removal in found.removals):
        said.append("no sampler was taken by a move: the operator's own drain was not seen")
    if found.trainer_restarts:
        said.append(
            f"the trainer's account was begun anew {found.trainer_restarts} times: what was lost then is not in it"
        )
    if any(fault.what == "sampler" and not fault.cut for fault in found.faults):
        said.append("the sampler that was killed had nothing to lose: it shows nothing about samples")
    for what in ("operator", "prometheus", "sampler"):
        if not any(fault.what == what and fault.survived for fault in found.faults):
            said.append(f"the kill of the {what} was not seen to be survived")
    return said


def result(found: Findings) -> dict[str, Any]:
    """The figures as ``e2e.json`` has them."""
    return {
        "plan": found.plan,
        "moves": [
            {
                "from": move.before,
                "to": move.after,
                "reason": move.reason,
                "predictedGain": move.predicted_gain,
                "phases": move.phases,
                "committed": move.committed,
                "seconds": None if move.ended_s is None else round(move.ended_s - move.started_s, 1),
                "costSeconds": move.cost_s,
            }
            for move in found.moves
        ],
        "gpuBudget": found.gpu_budget,
        "gpuPeak": found.gpu_peak,
        "samplesLost": found.account.lost,
        "samplesCut": found.account.cut,
        "samplesCutByRemovals": found.cut_in_removals,
        "samplesUnansweredByRemovals": found.unanswered_in_removals,
        "account": asdict(found.account),
        "removals": [
            {
                "pod": r.name,
                "how": r.how,
                "running": r.running,
                "seconds": None if r.took_s is None else round(r.took_s, 1),
            }
            for r in found.removals
        ],
        "measured": dict(found.measured),
        "faults": [
            {
                "killed": fault.what,
                "survived": fault.survived,
                "seconds": None if fault.seconds is None else round(fault.seconds, 1),
                "versionsMeanwhile": fault.versions_meanwhile,
                "samplesCut": fault.cut,
            }
            for fault in found.faults
        ],
        "node": found.node,
        "seconds": round(found.seconds, 1),
        "broken": broken_promises(found),
    }
