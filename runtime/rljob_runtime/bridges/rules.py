"""The rows that the tables of dialects are made of: one constructor for each thing that a job can say about itself.

Units are converted here and nowhere else. What needs more than a sum, a product or a quotient of logged numbers is not a row.
"""

from __future__ import annotations

from collections.abc import Callable

from rljob_runtime.bridges.dialect import Rule, Values
from rljob_runtime.bridges.sink import Sink

VERSION = "rljob_policy_version"
QUEUE = "rljob_queue_depth_groups"
IN_FLIGHT = "rljob_inflight_samples"
STALENESS = "rljob_sample_staleness_versions"
STALENESS_MAX = "rljob_sample_staleness_max_versions"
TRAIN_STEP = "rljob_train_step_seconds"
WAIT = "rljob_trainer_wait_seconds_total"
SYNC = "rljob_weight_sync_seconds"
SAMPLES = "rljob_trained_samples_total"
TOKENS = "rljob_trained_tokens_total"
DROPPED = "rljob_dropped_groups_total"
RESPONSE = "rljob_response_tokens"

Count = Callable[[Sink, Values], float | None]
"""How many samples something is about; None if unknown."""


def version(key: str, source: str, *, plus: int = 0) -> Rule:
    """``key`` plus ``plus`` is the number of the policy version that was published last."""

    def feed(sink: Sink, values: Values) -> None:
        sink.reporter.published(round(values[key]) + plus)

    return Rule(VERSION, (key,), feed, source)


def version_is_step(mark: str, source: str, *, plus: int = 0) -> Rule:
    """The step under which ``mark`` is logged, plus ``plus``, is the policy version that was published last."""

    def feed(sink: Sink, _: Values) -> None:
        if sink.step is not None:
            sink.reporter.published(sink.step + plus)

    return Rule(VERSION, (mark,), feed, source)


def staleness_mean(key: str, source: str, *, plus: float = 0.0) -> Rule:
    """``key`` plus ``plus`` is the mean staleness of the samples of a step, in policy versions.

    A step counts as one observation: what is known is a mean, so there are no quantiles.
    """

    def feed(sink: Sink, values: Values) -> None:
        sink.reporter.staleness_summary(mean=max(0.0, values[key] + plus))

    return Rule(STALENESS, (key,), feed, source)


def staleness_max(key: str, source: str, *, plus: float = 0.0) -> Rule:
    """``key`` plus ``plus`` is the largest staleness of the samples of a step, in policy versions."""

    def feed(sink: Sink, values: Values) -> None:
        sink.reporter.staleness_summary(largest=max(0.0, values[key] + plus))

    return Rule(STALENESS_MAX, (key,), feed, source)


def train_seconds(*parts: str, source: str, optional: tuple[str, ...] = (), less: tuple[str, ...] = ()) -> Rule:
    """A step trains for the sum of ``parts`` and of those of ``optional`` that are logged, less ``less``, in seconds.

    Neither the wait for samples nor the weight sync may be in what remains.
    """

    def feed(sink: Sink, values: Values) -> None:
        total_s = sum(values[key] for key in parts) + sum(values.get(key, 0.0) for key in optional)
        sink.reporter.trained_for(max(0.0, total_s - sum(values[key] for key in less)))

    return Rule(TRAIN_STEP, (*parts, *less), feed, source, optional)


def waited(*keys: str, source: str, optional: tuple[str, ...] = ()) -> Rule:
    """The trainer waited for samples for the sum of ``keys`` and of those of ``optional`` that are logged, in seconds."""

    def feed(sink: Sink, values: Values) -> None:
        sink.reporter.waited(sum(values[key] for key in keys) + sum(values.get(key, 0.0) for key in optional))

    return Rule(WAIT, keys, feed, source, optional)


def synced(*keys: str, source: str) -> Rule:
    """Samplers paused for the sum of ``keys`` to take a policy version, in seconds."""

    def feed(sink: Sink, values: Values) -> None:
        sink.reporter.synced(sum(values[key] for key in keys))

    return Rule(SYNC, keys, feed, source)


def queue(key: str, source: str, *, always: bool = True) -> Rule:
    """``key`` is the number of complete groups that wait for the trainer."""

    def feed(sink: Sink, values: Values) -> None:
        sink.reporter.queue(values[key])

    return Rule(QUEUE, (key,), feed, source, always=always)


def in_flight(key: str, source: str, *, always: bool = True) -> Rule:
    """``key`` is the number of samples that are submitted and not finished."""

    def feed(sink: Sink, values: Values) -> None:
        sink.reporter.in_flight(values[key])

    return Rule(IN_FLIGHT, (key,), feed, source, always=always)


def in_flight_groups(key: str, source: str, *, always: bool = True) -> Rule:
    """``key`` is the number of groups that are generated now: samples if the samples of a prompt are known."""

    def feed(sink: Sink, values: Values) -> None:
        if sink.samples_per_prompt:
            sink.reporter.in_flight(values[key] * sink.samples_per_prompt)

    return Rule(IN_FLIGHT, (key,), feed, source, always=always)


def trained_by_means(total: str, prompt_mean: str, response_mean: str, source: str) -> tuple[Rule, ...]:
    """Samples and response tokens of a step, from all its tokens and the mean lengths of its prompts and responses.

    The number of samples is ``total`` over the mean length of prompt and response together: all three are of the same batch.
    """

    def samples(_: Sink, values: Values) -> float | None:
        each = values[prompt_mean] + values[response_mean]
        return round(values[total] / each) if each > 0 else None

    return counted((total, prompt_mean, response_mean), lambda values: values[response_mean], samples, source)


def trained_by_mean(response_mean: str, source: str) -> tuple[Rule, ...]:
    """Samples of a step where the user said how many, and its response tokens from their mean length."""

    def samples(sink: Sink, _: Values) -> float | None:
        return sink.samples_per_step

    return counted((response_mean,), lambda values: values[response_mean], samples, source)


def counted(
    needs: tuple[str, ...],
    mean: Callable[[Values], float],
    count: Count,
    source: str,
    *,
    optional: tuple[str, ...] = (),
) -> tuple[Rule, ...]:
    """Samples, response tokens and response lengths of a step, from the ``count`` of its samples and the ``mean`` of their lengths."""

    def feed_samples(sink: Sink, values: Values) -> None:
        sink.reporter.trained(samples=count(sink, values))

    def feed_tokens(sink: Sink, values: Values) -> None:
        samples = count(sink, values)
        if samples:
            sink.reporter.trained(tokens=round(samples * mean(values)))

    def feed_lengths(sink: Sink, values: Values) -> None:
        samples = count(sink, values)
        if samples != 0:
            # Of the trained ones alone; a step whose samples are not counted counts as one.
            sink.reporter.response_summary(mean=mean(values), samples=samples)

    return (
        Rule(SAMPLES, needs, feed_samples, source, optional),
        Rule(TOKENS, needs, feed_tokens, source, optional),
        Rule(RESPONSE, needs, feed_lengths, source, optional),
    )


def dropped(key: str, source: str, *, always: bool = False) -> Rule:
    """``key`` groups were discarded since they were logged last."""

    def feed(sink: Sink, values: Values) -> None:
        sink.reporter.dropped(values[key])

    return Rule(DROPPED, (key,), feed, source, always=always)


def dropped_samples(key: str, source: str, *, always: bool = False) -> Rule:
    """``key`` samples were discarded since they were logged last: groups if the samples of a prompt are known."""

    def feed(sink: Sink, values: Values) -> None:
        if sink.samples_per_prompt:
            sink.reporter.dropped(values[key] / sink.samples_per_prompt)

    return Rule(DROPPED, (key,), feed, source, always=always)


def dropped_so_far(key: str, source: str, *, always: bool = True) -> Rule:
    """``key`` groups were discarded since the framework's process started."""

    def feed(sink: Sink, values: Values) -> None:
        sink.reporter.counted_to(dropped_groups=values[key])

    return Rule(DROPPED, (key,), feed, source, always=always)
