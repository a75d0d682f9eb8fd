"""What a reader should know before believing a prediction: the row contradicts itself, or no such run can exist.

Such a row is still answered, since formulas answer it; but a step time of a model that does not fit into its GPUs is a number and
not a run, and has to say so.
"""

from __future__ import annotations

import re
from contextlib import suppress

from rljob_planner.errors import PlanningError
from rljob_planner.hardware import training_constants
from rljob_planner.memory import free_bytes_per_gpu
from rljob_planner.validation.cases import Case
from rljob_planner.validation.setting import Missing, Setting, setting_of

_PLACEMENTS = {"colocated", "disaggregated", "sync", "async"}
_WITH_PLACEMENTS = {"labelled", "hybrid", "lending", "synchronous", "asynchronous"}
_RUNS = ("step_time", "throughput", "bottleneck", "speedup")
_GB = 1e9


def doubts(case: Case) -> tuple[str, ...]:
    """Sentences for the row's note; empty for almost every row."""
    found = [*case.remarks, *_contradictions(case)]
    if case.kind in _RUNS:
        with suppress(Missing, PlanningError):
            found.extend(_memory(setting_of(case)))
    return tuple(found)


def _contradictions(case: Case) -> list[str]:
    found = []
    lengths = case.lengths
    for name in ("response", "prompt", "total_seq"):
        mean, most = getattr(lengths, f"mean_{name}"), getattr(lengths, f"max_{name}")
        if mean is not None and most is not None and mean > most:
            found.append(f"contradiction: lengths.mean_{name} {mean:g} is above lengths.max_{name} {most}")
    prompts, group, samples = case.prompts_per_step, case.group_size, case.samples_per_step
    if prompts is not None and group is not None and samples is not None and prompts * group != samples:
        found.append(
            f"contradiction: prompts_per_step {prompts} × group_size {group} is {prompts * group}, not samples_per_step {samples}: "
            f"{prompts * group} taken"
        )
    if case.placement is None:
        return found
    words = set(re.findall(r"[a-z]+", case.placement.lower()))
    if not words & {"colocated", "disaggregated"}:
        found.append(f"placement {case.placement!r} names neither colocated nor disaggregated: taken as disaggregated")
    elif strange := words - _PLACEMENTS - _WITH_PLACEMENTS:
        found.append(f"placement {case.placement!r}: {', '.join(sorted(strange))} not known, passed over")
    total, rollout, train = case.n_gpus, case.rollout_gpus, case.train_gpus
    if "colocated" not in words and None not in (total, rollout, train):
        assert total is not None
        assert rollout is not None
        assert train is not None
        if rollout + train > total:
            found.append(
                f"contradiction: rollout_gpus {rollout} + train_gpus {train} are more than n_gpus {total}: n_gpus passed over"
            )
    return found


def _memory(setting: Setting) -> list[str]:
    """Whether both sides hold the model: samplers at the width that is taken for them, trainers if they shard it over all of theirs."""
    found = []
    engine, gpu = setting.engine, setting.setup.gpu
    if free_bytes_per_gpu(engine) <= 0:
        found.append(
            f"does not fit in memory: a sampler's GPU would hold {engine.weight_bytes_per_gpu / _GB:.0f} GB of {engine.format.name} weights "
            f"at tensor parallelism {engine.tensor_parallel}, and has {engine.gpu.memory_bytes / _GB:.0f} GB"
        )
    gpus = setting.trainer.gpus
    weights = setting.model.weight_bytes(2.0) / gpus
    state = training_constants().state_bytes_per_parameter * setting.model.parameters / gpus
    if weights > gpu.memory_bytes:
        found.append(
            f"does not fit in memory: bf16 weights of {weights / _GB:.0f} GB for each of {gpus} trainer GPUs, which have "
            f"{gpu.memory_bytes / _GB:.0f} GB"
        )
    elif state > gpu.memory_bytes:
        found.append(
            f"trainers fit only with state kept in host memory: {state / _GB:.0f} GB of weights, gradients and optimizer for each of {gpus} "
            f"GPUs, which have {gpu.memory_bytes / _GB:.0f} GB"
        )
    return found
