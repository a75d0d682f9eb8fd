"""AReaL: the PPO and GRPO trainer, through AReaL's own ``StatsLogger``.

A step of ours is a step of theirs: weights are updated after each, before it is logged, and step g (from 0) publishes version g + 1.

Staleness. AReaL's is the trainer's version less the version of a token, over tokens, in our unit. Ours is that of a sample's first
token. So AReaL's mean is lower by the share of tokens that were generated after an update in mid-response, times the updates: it is
ours only where responses end before the next update. Its largest is that of a first token; AReaL 1.0.4 averages it over micro-batches
and ranks, so it is a lower bound. Nothing in its log bounds either from above, and admission bounds the mean by
``max_head_offpolicyness``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType

from rljob_runtime.bridges.dialect import Dialect, Framework, Logged, Rule, Tap, Values
from rljob_runtime.bridges.rules import (
    STALENESS_MAX,
    counted,
    staleness_mean,
    synced,
    train_seconds,
    version_is_step,
    waited,
)
from rljob_runtime.bridges.sink import Sink

_TRAINER = "areal/trainer/rl_trainer.py"
_ACTOR = "areal/trainer/ppo/actor.py"
_STALENESS = "ppo_actor/update/version_stats/sample_staleness_theta"
_SAMPLES, _TOKENS = "ppo_actor/n_seqs", "ppo_actor/n_valid_tokens"


def _rank(distributed: ModuleType) -> int:
    """The rank of this process in the trainer; 0 where there is one process, as in the single controller."""
    known = distributed.is_available() and distributed.is_initialized()
    return int(distributed.get_rank()) if known else 0


def _read(arguments: Mapping[str, object]) -> Logged | None:
    """What a step is logged with, on the rank that logs; the number of the step is that of the version that it published."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and _rank(distributed) != 0:
        return None
    data, step = arguments.get("data"), arguments.get("global_step")
    if isinstance(data, Mapping):
        return Logged(data, step + 1 if isinstance(step, int) else None)
    # Older versions log a mapping for each mini-batch: the names are shown as those of an unknown set.
    parts = data if isinstance(data, list | tuple) else ()
    return Logged({key: None for part in parts if isinstance(part, Mapping) for key in part}, step)


def _staleness_max(sink: Sink, values: Values) -> None:
    if values.get(f"{_STALENESS}_max__count", 1.0) == 1.0:
        sink.reporter.staleness_summary(largest=values[f"{_STALENESS}_max"])


def _samples(_: Sink, values: Values) -> float:
    return values[_SAMPLES]


def _length(values: Values) -> float:
    return values[_TOKENS] / values[_SAMPLES]


PPO = Dialect(
    name="AReaL PPO",
    version="1.0.4",
    marks=(f"{_STALENESS}_avg", "timeperf/update_weights"),
    rules=(
        version_is_step("timeperf/update_weights", f"{_TRAINER}:768, 1275"),
        staleness_mean(f"{_STALENESS}_avg", f"{_ACTOR}:1093, 1102"),
        Rule(
            STALENESS_MAX,
            (f"{_STALENESS}_max",),
            _staleness_max,
            f"{_ACTOR}:1093, 1103; areal/utils/stats_tracker.py:214",
            optional=(f"{_STALENESS}_max__count",),
        ),
        waited("timeperf/rollout", source=f"{_TRAINER}:601"),
        train_seconds(
            "timeperf/train_step",
            optional=(
                "timeperf/recompute_logp",
                "timeperf/ref_logp",
                "timeperf/teacher_logp",
                "timeperf/compute_advantage",
                "timeperf/critic_values",
                "timeperf/critic_train_step",
            ),
            source=f"{_TRAINER}:626-740",
        ),
        synced("timeperf/update_weights", source=f"{_TRAINER}:760"),
        *counted((_SAMPLES, _TOKENS), _length, _samples, f"{_ACTOR}:279-281"),
    ),
)

AREAL = Framework(
    name="areal",
    dialects=(PPO,),
    taps=(Tap("areal.utils.stats_logger", "StatsLogger.commit", _read),),
)
"""Read from the wheel of areal 1.0.4."""
