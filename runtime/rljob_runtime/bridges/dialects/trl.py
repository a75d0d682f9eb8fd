"""TRL: ``AsyncGRPOTrainer``, through the callbacks of transformers, so whichever tracker it reports to, or none.

A step of ours is an optimizer step. TRL logs every ``logging_steps`` of them, and means over those, so amounts are multiplied by the
steps since the last log.

Staleness. TRL counts weight updates between the version that a group was scheduled under and the version when the trainer took the
sample from its queue. Two things lie between that and ours:

- Weights are updated every ``weight_sync_steps`` steps, and in between the trainer is ahead of the version that it published: in
  step g by (g − 1) mod ``weight_sync_steps``.
- The data loader is one micro-batch ahead (accelerate hands a batch over when it has the next one), so of the
  ``gradient_accumulation_steps`` micro-batches of a step one was looked at a step before it is trained on. TRL's mean is lower by
  1/``gradient_accumulation_steps``. Its largest is corrected where a step is one micro-batch; else it may be one too low.

What TRL drops is compared as early: with ``max_staleness`` m, samples of staleness m + 1 are trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_runtime.bridges import rules
from rljob_runtime.bridges.dialect import Dialect, Framework, Logged, Rule, Tap, Values
from rljob_runtime.bridges.sink import Sink

_TRAINER = "trl/experimental/async_grpo/async_grpo_trainer.py"
_WORKER = "trl/experimental/async_grpo/async_rollout_worker.py"

_TRAINED = "perf/fwd_bwd_s"
"""A key of each log of training steps, and of no other log."""
_ROWS_OF_SAMPLE = "rollout/samples_per_rollout"
"""Training rows that a conversation became: more than 1 where a turn rewrote what was said before. TRL calls a row a sample."""

_STEPS = "state.steps_since_the_last_log"
_SYNC_STEPS = "args.weight_sync_steps"
_MICRO_BATCHES = "args.gradient_accumulation_steps"
_SAMPLES_OF_GROUP = "args.num_generations"
"""Keys of our own, for what goes along with a log: the trainer's arguments, and its state."""


def _read(arguments: Mapping[str, object]) -> Logged | None:
    """A log of a trainer, with what turns its numbers into ours."""
    logs, state, settings = arguments.get("logs"), arguments.get("state"), arguments.get("args")
    if not isinstance(logs, Mapping) or not getattr(state, "is_world_process_zero", True):
        return None
    arguments_of_use = (_SYNC_STEPS, _MICRO_BATCHES, _SAMPLES_OF_GROUP)
    known: dict[str, object] = {key: getattr(settings, key.removeprefix("args."), None) for key in arguments_of_use}
    step = getattr(state, "global_step", None)
    if isinstance(step, int) and _TRAINED in logs:
        known[_STEPS] = step - _logged_before(getattr(state, "log_history", ()))
    return Logged(logs, step, beside=known)


def _logged_before(history: Sequence[Mapping[str, object]]) -> int:
    """The step of the log of training steps before the one that is being made, which stands last already; 0 if there is none."""
    for entry in reversed(history[:-1]):
        step = entry.get("step")
        if _TRAINED in entry and isinstance(step, int):
            return step
    return 0


def _ahead(sink: Sink, values: Values) -> list[int]:
    """How many steps the trainer was ahead of the version that it published last, in each step since the last log."""
    if sink.step is None:
        raise ValueError("the log has no step")
    first, every = sink.step - round(values[_STEPS]), round(values[_SYNC_STEPS])
    return [done % every for done in range(first, sink.step)]


def _staleness_mean(sink: Sink, values: Values) -> None:
    ahead = _ahead(sink, values)
    logged = values["sample/staleness_mean"] * values[_SYNC_STEPS]
    sink.reporter.staleness_summary(
        mean=logged + sum(ahead) / len(ahead) + 1.0 / values[_MICRO_BATCHES], samples=_samples(sink, values)
    )


def _staleness_max(sink: Sink, values: Values) -> None:
    looked_early = 1 if values[_MICRO_BATCHES] == 1 else 0
    logged = values["sample/staleness_max"] * values[_SYNC_STEPS]
    sink.reporter.staleness_summary(largest=logged + max(_ahead(sink, values)) + looked_early)


def _waited(sink: Sink, values: Values) -> None:
    sink.reporter.waited(values["perf/rollout_wait_s"] * values[_STEPS])


def _samples(_: Sink, values: Values) -> float:
    return values["batch/samples_per_step"] * values[_STEPS] / values.get(_ROWS_OF_SAMPLE, 1.0)


def _length(values: Values) -> float:
    rows = values["batch/samples_per_step"] / values.get(_ROWS_OF_SAMPLE, 1.0)
    return values["batch/trained_tokens_per_step"] / rows


def _groups(key: str, values: Values) -> float:
    return values[key] / values[_SAMPLES_OF_GROUP] / values.get(_ROWS_OF_SAMPLE, 1.0)


def _queue(sink: Sink, values: Values) -> None:
    sink.reporter.queue(_groups("sample/rollout_queue_size", values))


def _dropped(sink: Sink, values: Values) -> None:
    sink.reporter.dropped(_groups("sample/dropped_stale_total", values))


ASYNC_GRPO = Dialect(
    name="TRL AsyncGRPO",
    version="1.16.0",
    marks=("sample/staleness_mean", "perf/rollout_wait_s"),
    rules=(
        rules.version_is_step(_TRAINED, f"{_TRAINER}:1645"),
        Rule(
            rules.STALENESS,
            ("sample/staleness_mean", "batch/samples_per_step", _STEPS, _SYNC_STEPS, _MICRO_BATCHES),
            _staleness_mean,
            f"{_TRAINER}:367, 386; {_WORKER}:626",
            optional=(_ROWS_OF_SAMPLE,),
        ),
        Rule(
            rules.STALENESS_MAX,
            ("sample/staleness_max", _STEPS, _SYNC_STEPS, _MICRO_BATCHES),
            _staleness_max,
            f"{_TRAINER}:367, 387",
        ),
        Rule(rules.WAIT, ("perf/rollout_wait_s", _STEPS), _waited, f"{_TRAINER}:355, 1656"),
        rules.train_seconds(_TRAINED, "perf/optimizer_s", source=f"{_TRAINER}:1645-1647"),
        # From the call that pauses the samplers to the one that lets them go on; only where weights were updated since the last log.
        rules.synced("perf/weight_sync_s", source=f"{_TRAINER}:1745"),
        *rules.counted(
            ("batch/samples_per_step", "batch/trained_tokens_per_step", _STEPS),
            _length,
            _samples,
            f"{_TRAINER}:1650-1651",
            optional=(_ROWS_OF_SAMPLE,),
        ),
        Rule(
            rules.QUEUE,
            ("sample/rollout_queue_size", _SAMPLES_OF_GROUP),
            _queue,
            f"{_TRAINER}:382",
            optional=(_ROWS_OF_SAMPLE,),
        ),
        # Only from the worker that is TRL's own.
        rules.in_flight("rollout/inflight", f"{_WORKER}:754", always=False),
        Rule(
            rules.DROPPED,
            ("sample/dropped_stale_total", _SAMPLES_OF_GROUP),
            _dropped,
            f"{_TRAINER}:371",
            optional=(_ROWS_OF_SAMPLE,),
            always=False,
        ),
    ),
)

TRL = Framework(
    name="trl",
    dialects=(ASYNC_GRPO,),
    taps=(Tap("transformers.trainer_callback", "CallbackHandler.on_log", _read),),
)
"""Read from the wheel of trl 1.16.0, and run on the CPU with transformers 5.19.0 and accelerate 1.15.0."""
