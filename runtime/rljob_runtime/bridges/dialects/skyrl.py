"""SkyRL, fully asynchronous: ``FullyAsyncRayPPOTrainer`` through SkyRL's own ``Tracking``.

Staleness is the step that trains a group less the step that was in training when the group was submitted. Step g trains on version
g − 1 and publishes version g, so the difference is that of the versions: our unit, as far as a group's first token follows its
submission. A group that is submitted after a synchronisation, but before the step's number is counted up, is given one too many.
"""

from __future__ import annotations

from rljob_runtime.bridges.dialect import Dialect, Framework, Tap
from rljob_runtime.bridges.rules import (
    counted,
    queue,
    staleness_max,
    staleness_mean,
    synced,
    train_seconds,
    version,
    waited,
)
from rljob_runtime.bridges.taps import mapping

_TRAINER = "skyrl/train/fully_async_trainer.py"
_KEPT = "generate_kept/avg_num_tokens"
"""Logged where groups of equal rewards are dropped (``sample_full_batch``): the mean without ``_kept`` is over those as well."""

FULLY_ASYNC = Dialect(
    name="SkyRL fully async",
    version="0.4.0",
    marks=("async/staleness_max", "async/staleness_mean"),
    rules=(
        # Weights are synchronised before the step is logged.
        version("trainer/global_step", f"{_TRAINER}:613"),
        staleness_mean("async/staleness_mean", f"{_TRAINER}:1124, 1008"),
        staleness_max("async/staleness_max", f"{_TRAINER}:1125, 1008"),
        queue("async/gen_buffer_qsize_at_wait_start", f"{_TRAINER}:808"),
        waited("timing/wait_for_generation_buffer", source=f"{_TRAINER}:809"),
        train_seconds("timing/convert_to_training_input", "timing/run_training", source=f"{_TRAINER}:582, 590"),
        synced("timing/sync_weights", source=f"{_TRAINER}:597"),
        # Sequences of the batch, before it is padded; of as many responses, unless trajectories are trained turn by turn.
        *counted(
            ("generate/batch_num_seq", "generate/avg_num_tokens"),
            lambda values: values.get(_KEPT, values["generate/avg_num_tokens"]),
            lambda _, values: values["generate/batch_num_seq"],
            f"skyrl/train/trainer.py:977, skyrl/train/generators/utils.py:502, {_TRAINER}:1072",
            optional=(_KEPT,),
        ),
    ),
)

SKYRL = Framework(
    name="skyrl",
    dialects=(FULLY_ASYNC,),
    taps=(
        Tap("skyrl.train.utils.tracking", "Tracking.log", mapping("data", "step")),
        # The package's name up to 0.3.
        Tap("skyrl_train.utils.tracking", "Tracking.log", mapping("data", "step")),
    ),
)
"""Read from the wheel of skyrl 0.4.0."""
