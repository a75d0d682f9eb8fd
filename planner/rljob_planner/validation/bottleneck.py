"""Which side is bound where a row says no more than that.

The answer hangs on GPU-seconds per sample of each side and hardly on the batch, so what such rows leave out is filled with usual
values, said in the note: 512 samples a step, a response a fifth of its cap. An agentic row, known by its task, is filled with what
agents do: of a trajectory's tokens a quarter is generated (the rest are tool results), half of its time passes in its environment
(during which it holds no decode slot), and half of all groups are filtered before they are trained, since all their samples got the
same reward.

One number is learned from the other rows of a family: how much slower samplers are beside trainers than predicted. Stated sides
speak of it, even of one other row; from two on waits and total times relative to each other do as well. GPUs that are lent to samplers while their trainer waits make both sides
finish together; such a row tells that the same split without lending is rollout-bound, and by how much.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from rljob_planner.closedform import predict
from rljob_planner.errors import PlanningError
from rljob_planner.simulate import TrainCost
from rljob_planner.validation.cases import Case, Lengths
from rljob_planner.validation.fit import Unknown, fitted
from rljob_planner.validation.physics import Factors, law_of, mean_of, simulation_input
from rljob_planner.validation.rows import MATCHED, Row
from rljob_planner.validation.setting import ASYNC, Missing, Setting, setting_of
from rljob_planner.validation.side import ROLLOUT, ROLLOUT_FROM, TRAIN, measured_side

FloatArray = NDArray[np.float64]

USUAL = Case("usual", "bottleneck", "usual", prompts_per_step=64, group_size=8, lengths=Lengths(max_response=32768))
_SHARE_OF_CAP = 0.2
_AGENTIC = re.compile(r"agent|terminal|tool|swe|sandbox|multi-turn|browser", re.IGNORECASE)
_GENERATED, _IN_ENVIRONMENT, _TRAINED = 0.25, 0.5, 0.5
_AGENTIC_SHARE_OF_CAP = 0.5
TRAIN_FROM = 1.1
"""Rollout over train rate from which on the trainer is the bound side."""
_MARGIN = 0.1
_RATIO_VARIES, _SIDE_TOLERANCE, _TIME_TOLERANCE = 0.7, 0.1, 0.08


@dataclass(frozen=True)
class Balance:
    """The two sides of a run, in seconds a batch that each takes alone."""

    rollout_s: float
    train_s: float
    lending: float
    """Trainer GPUs over sampler GPUs that may be lent; 0: none are."""

    @property
    def rho(self) -> float:
        """Rollout over train rate."""
        return self.train_s / self.rollout_s

    def relative(self, slower: float) -> tuple[float, float]:
        """Period and the trainer's share of waiting, with samplers ``slower`` times as slow beside trainers."""
        rollout = self.rollout_s * slower
        if self.lending and rollout > self.train_s:
            # Lent GPUs add their share of the time in which the trainer does not use them.
            period = (rollout + self.lending * self.train_s) / (1.0 + self.lending)
            return period, 0.0
        period = max(rollout, self.train_s)
        return period, 1.0 - self.train_s / period


def bottleneck_rows(cases: Sequence[Case]) -> list[Row]:
    """Rows of kind ``bottleneck``."""
    found: dict[str, Row] = {}
    for family in dict.fromkeys(c.family for c in cases):
        balances: dict[str, tuple[Balance, str]] = {}
        members = [c for c in cases if c.family == family]
        for case in members:
            try:
                balances[case.id] = balance_of(case)
            except (Missing, PlanningError) as missing:
                found[case.id] = replace(_bare(case), reason=str(missing))
        for case in members:
            if case.id in balances:
                others = [(c, balances[c.id][0]) for c in members if c is not case and c.id in balances]
                found[case.id] = _row(case, *balances[case.id], others)
    return [found[c.id] for c in cases]


def _bare(case: Case) -> Row:
    return Row(case.id, case.kind, case.family, measured_side(case), "", note=case.notes or None)


def balance_of(case: Case) -> tuple[Balance, str]:
    """The two sides of a row and what was assumed for them; raises ``Missing``."""
    agentic = bool(_AGENTIC.search(case.lengths.task))
    setting = setting_of(
        replace(case, prompts_per_step=case.prompts_per_step or (64 if case.group_size is None else None)),
        defaults=USUAL,
    )
    assumed = list(setting.notes)
    if case.prompts_per_step is None:
        assumed.append("512 samples a step assumed")
    mean = mean_of(setting)
    if mean is None:
        mean = (_AGENTIC_SHARE_OF_CAP if agentic else _SHARE_OF_CAP) * setting.cap_tokens
        assumed.append(f"a mean of {mean:.0f} tokens assumed")
    if agentic:
        assumed.append(
            "an agentic task: a quarter of its tokens generated, half of its time in an environment, half of its groups trained"
        )
    return _sides(setting, mean, agentic), "; ".join(assumed)


def _sides(setting: Setting, mean_tokens: float, agentic: bool) -> Balance:
    asynchronous = replace(setting, mode=ASYNC)
    law = law_of(round(mean_tokens, 1), setting.cap_tokens)
    inp = simulation_input(asynchronous, law, Factors.packaged())
    samples = inp.prompts_per_step * inp.samples_per_prompt
    train_s = inp.train.step_s(samples, inp.prompt_tokens, law)
    if agentic:
        generated = law_of(round(_GENERATED * mean_tokens, 1), setting.cap_tokens)
        in_flight = setting.case.workers or setting.samples
        running = max(1, round(in_flight * (1.0 - _IN_ENVIRONMENT)))
        turns_tokens = (1.0 - _GENERATED) * mean_tokens
        decode = replace(
            inp.decode,
            prefill_s_per_sample=inp.decode.prefill_s_per_sample
            + setting.engine.prefill_s(turns_tokens) / Factors.packaged().sampler,
        )
        inp = replace(
            inp,
            lengths=generated,
            in_flight_cap=max(setting.group, running),
            decode=decode,
            prompt_tokens=int(inp.prompt_tokens + 0.5 * turns_tokens),
        )
    rollout_rate = predict(
        replace(inp, mode=ASYNC, bound="none", queue_capacity=None, train=TrainCost(0.0, 1e-12))
    ).rollout_rate
    rollout_s = samples / rollout_rate / (_TRAINED if agentic else 1.0)
    lending = (
        setting.trainer.gpus / (setting.replicas * setting.engine.tensor_parallel)
        if "lending" in (setting.case.placement or "")
        else 0.0
    )
    return Balance(rollout_s, train_s, lending)


def _row(case: Case, balance: Balance, assumed: str, others: Sequence[tuple[Case, Balance]]) -> Row:
    row = _bare(case)
    usable = [(c, b) for c, b in others if measured_side(c) is not None or c.value("relative_total_time")]
    slower = _slower(usable) if usable else None
    note = "; ".join(x for x in (assumed, case.notes) if x)
    plain = _side(balance, 1.0)
    calibrated = None if slower is None else _side(balance, slower)
    return replace(
        row,
        predicted=calibrated or plain,
        plain_side=plain,
        calibrated=calibrated,
        note=f"rollout over train rate {balance.rho / (slower or 1.0):.2f}; {note}",
    )


def _side(balance: Balance, slower: float) -> str:
    if balance.lending and balance.rho < slower:
        return MATCHED
    ratio = balance.rho / slower
    return ROLLOUT if ratio <= 1.0 - ROLLOUT_FROM else TRAIN if ratio >= TRAIN_FROM else MATCHED


def _slower(others: Sequence[tuple[Case, Balance]]) -> float:
    """How much slower samplers are beside trainers than predicted, as other rows have it."""

    def residuals(x: FloatArray) -> FloatArray:
        slower, found = math.exp(x[0]), []
        for case, balance in others:
            ratio = math.log(balance.rho / slower)
            side, wait = measured_side(case), case.value("trainer_wait_frac")
            if wait is not None and wait > 0 and len(others) > 1:
                found.append((ratio - math.log(1.0 - min(wait, 0.99))) / _SIDE_TOLERANCE)
            elif side == ROLLOUT or (side == MATCHED and balance.lending):
                found.append(max(0.0, ratio - math.log(1.0 - ROLLOUT_FROM) + _MARGIN) / _SIDE_TOLERANCE)
            elif side == TRAIN:
                found.append(min(0.0, ratio - math.log(TRAIN_FROM) - _MARGIN) / _SIDE_TOLERANCE)
            elif side == MATCHED:
                found.append(ratio / _SIDE_TOLERANCE)
        for (a, first), (b, second) in combinations(others, 2):
            measured = a.value("relative_total_time"), b.value("relative_total_time")
            if measured[0] and measured[1]:
                predicted = first.relative(slower)[0] / second.relative(slower)[0]
                found.append(math.log(predicted / (measured[0] / measured[1])) / _TIME_TOLERANCE)
        return np.array(found)

    return math.exp(fitted([Unknown(0.0, _RATIO_VARIES, -3.0, 3.0)], residuals)[0])
