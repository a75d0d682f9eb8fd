"""slime: the asynchronous loop with the fully asynchronous rollout, through slime's own ``log``.

Two processes log: the actor that manages rollouts, and the last pipeline stage of the trainer's first rank. Each has a dialect of its
own, and feeds what it knows. A step of ours is the training on one rollout, ``rollout_batch_size`` groups, however many optimizer steps
that takes; its number plus one is the version.

Staleness. slime's is the version that the engines serve while a rollout is collected, less that of the oldest token of a sample. A
rollout is collected while the trainer trains on the one before, so the trainer is further when it starts: by one step if weights are
updated after each, in general by 1 + (R − 1) mod ``update_weights_interval`` steps for rollout R, and one of slime's versions is
``update_weights_interval`` steps. The first rollout, which nothing was trained before, is what slime says.
"""

from __future__ import annotations

from collections.abc import Mapping

from rljob_runtime.bridges import rules
from rljob_runtime.bridges.dialect import Dialect, Framework, Logged, Rule, Tap, Values
from rljob_runtime.bridges.rules import counted, synced, train_seconds, version_is_step
from rljob_runtime.bridges.sink import Sink

_METRICS = "slime/observability/rollout_metrics.py"
_STALENESS = f"slime/utils/staleness.py; {_METRICS}, log_rollout_data(); train_async.py"
_TRAIN = "slime/observability/train_metric_utils.py"
_ACTOR = "slime/backends/megatron_utils/actor.py"

_STEP_KEY = "rollout/step"
_INTERVAL, _GROUPS, _EACH = "args.update_weights_interval", "args.rollout_batch_size", "args.n_samples_per_prompt"
"""Keys of our own, for the arguments that go along with a log."""
_LENGTH = "rollout/response_lengths"
_WAIT, _SYNC, _SAVE = "perf/train_wait_time", "perf/update_weights_time", "perf/save_model_time"


def _read(arguments: Mapping[str, object]) -> Logged | None:
    """What is logged of a rollout or of the training on it; what is logged of single optimizer steps or of evaluations is not."""
    metrics, settings = arguments.get("metrics"), arguments.get("args")
    if not isinstance(metrics, Mapping):
        return None
    if arguments.get("step_key") != _STEP_KEY:
        return None
    known = {key: getattr(settings, key.removeprefix("args."), None) for key in (_INTERVAL, _GROUPS, _EACH)}
    return Logged(metrics, _rollout(metrics.get(_STEP_KEY), settings), beside=known)


def _rollout(step: object, settings: object) -> int | None:
    """The number of the rollout; under ``--wandb-always-use-train-step`` that of its first optimizer step is logged instead."""
    if not isinstance(step, int) or not getattr(settings, "wandb_always_use_train_step", False):
        return step if isinstance(step, int) else None
    names = ("global_batch_size", "rollout_batch_size", "n_samples_per_prompt")
    sizes = [size for name in names if isinstance(size := getattr(settings, name, None), int) and size > 0]
    if len(sizes) < len(names):
        return None
    batch, groups, each = sizes
    return -(-step * batch // (groups * each))


def _ahead(sink: Sink, values: Values) -> int:
    """By how many steps the trainer is further, when it starts on a rollout, than the version under which that was collected."""
    if sink.step is None:
        raise ValueError("the rollout has no number")
    return 0 if sink.step == 0 else 1 + (sink.step - 1) % round(values[_INTERVAL])


def _staleness_mean(sink: Sink, values: Values) -> None:
    mean = values["rollout/staleness/mean"] * values[_INTERVAL] + _ahead(sink, values)
    sink.reporter.staleness_summary(mean=mean, samples=_samples(sink, values))


def _staleness_max(sink: Sink, values: Values) -> None:
    largest = values["rollout/staleness/max"] * values[_INTERVAL] + _ahead(sink, values)
    sink.reporter.staleness_summary(largest=largest)


def _waited(sink: Sink, values: Values) -> None:
    sink.reporter.waited(max(0.0, values[_WAIT] - values.get(_SYNC, 0.0) - values.get(_SAVE, 0.0)))


def _samples(_: Sink, values: Values) -> float:
    return values[_GROUPS] * values[_EACH]


def _length(values: Values) -> float:
    return values[_LENGTH]


ROLLOUTS = Dialect(
    name="slime rollouts",
    version="85f762da",
    marks=("perf/rollout_time", "rollout/response_len/mean"),
    rules=(
        # Newer versions with the fully asynchronous rollout alone.
        Rule(
            rules.STALENESS,
            ("rollout/staleness/mean", _INTERVAL, _GROUPS, _EACH),
            _staleness_mean,
            _STALENESS,
            always=False,
        ),
        Rule(
            rules.STALENESS_MAX,
            ("rollout/staleness/max", _INTERVAL),
            _staleness_max,
            _STALENESS,
            always=False,
        ),
    ),
)

TRAINER = Dialect(
    name="slime trainer",
    version="028e2909",
    marks=("perf/train_time", _WAIT),
    rules=(
        version_is_step("perf/train_time", f"{_TRAIN}, log_perf_data()", plus=1),
        # The time between two trainings, less what else is done in it.
        Rule(
            rules.WAIT,
            (_WAIT,),
            _waited,
            f"{_ACTOR}, train_actor(); {_TRAIN}, log_perf_data()",
            optional=(_SYNC, _SAVE),
        ),
        train_seconds("perf/train_time", source=f"{_ACTOR}, train_actor()"),
        synced(_SYNC, source=f"{_ACTOR}, update_weights()"),
        *counted((_GROUPS, _EACH, _LENGTH), _length, _samples, f"{_TRAIN}, log_rollout_data()"),
    ),
)

SLIME = Framework(
    name="slime",
    dialects=(ROLLOUTS, TRAINER),
    taps=(
        Tap("slime.observability.logging_utils", "log", _read),
        # The module before it moved.
        Tap("slime.utils.logging_utils", "log", _read),
    ),
)
"""Read from THUDM/slime at the commits that the dialects state."""
