"""What to do about a reading that is unknown, in words: the message of the condition ``MetricsAvailable``.

Most of these causes are one line of configuration away from working, and a person who reads the condition should not have to
know how this operator reads Prometheus. Quantities that a job may well not have (weight sync, environments) are not asked for.
"""

from __future__ import annotations

from collections.abc import Collection

from rljob_operator.engines import VLLM, Engine
from rljob_operator.readings import Reading, ReadingState, Telemetry

_CALLS = {
    "rljob_policy_version": "call rljob_runtime.Reporter.step_finished after every step, and resumed at the start",
    "rljob_queue_depth_groups": "call rljob_runtime.Reporter.queue whenever the queue changes",
    "rljob_inflight_samples": "call rljob_runtime.Reporter.in_flight whenever samples are submitted or finish",
    "rljob_sample_staleness_versions": "call rljob_runtime.Reporter.step_started with the staleness of each sample",
    "rljob_train_step_seconds": "call rljob_runtime.Reporter.step_finished after every step",
    "rljob_response_tokens": "call rljob_runtime.Reporter.response for every finished response",
}


def remedies(
    telemetry: Telemetry,
    series: str,
    *,
    trainer_pods: Collection[str],
    anything: frozenset[str],
    engine: Engine = VLLM,
    doubt: str | None = None,
) -> tuple[str, ...]:
    """One sentence for each thing that is unknown, most telling first; empty if all that decisions need is known.

    ``doubt``: why lengths of the samplers' requests don't stand in for the job's, if that was looked at.
    ``series``: label matchers by which the job's series were asked for. ``anything``: names of which any sample was seen, fresh or not. What is unknown only because the present layout is too
    young or no step has ended in it is no fault, and not listed.
    """
    found: list[str] = []
    if not any(name.startswith("rljob_") for name in anything):
        found.append(
            f"no rljob_* series with {series}: check that the trainer's pods are scraped ({_scrape(series)}) and that "
            "rljob_runtime.Reporter serves in them"
        )
    else:
        found += _job_remedies(telemetry, doubt)
        if trainer_pods and not telemetry.layout_generation.known:
            found.append(
                f"rljob_layout_generation is {telemetry.layout_generation.state} for one of the trainer pods "
                f"{_names(trainer_pods)}: check that each is scraped (with a pod label) and calls rljob_runtime.Reporter.acknowledged"
            )
    return (*found, *_sampler_remedies(telemetry, series, engine))


def _job_remedies(telemetry: Telemetry, doubt: str | None) -> list[str]:
    now: dict[str, Reading[float] | Reading[int]] = {
        "rljob_policy_version": telemetry.policy_version,
        "rljob_queue_depth_groups": telemetry.queue_groups,
        "rljob_inflight_samples": telemetry.in_flight,
    }
    stale = [name for name, reading in now.items() if reading.state is ReadingState.STALE]
    if len(stale) == len(now):
        age_s = telemetry.policy_version.age_s or 0.0
        return [
            f"rljob_* metrics stopped {age_s:.0f} s ago: check that the trainer's rank-0 pod runs and that its target is up in Prometheus"
        ]
    found = [_of_name(name, reading.state) for name, reading in now.items() if not reading.known]
    if telemetry.steps_in_window.value:
        windowed = {
            "rljob_sample_staleness_versions": telemetry.staleness_mean.state,
            "rljob_train_step_seconds": telemetry.train_step_s.state,
            "rljob_response_tokens": telemetry.response_lengths.state,
        }
        found += [
            _of_name(name, state, doubt if name == "rljob_response_tokens" else None)
            for name, state in windowed.items()
            if state is not ReadingState.VALUE
        ]
    return found


def _of_name(name: str, state: ReadingState, doubt: str | None = None) -> str:
    if doubt is None:
        return f"{name} is {state}: {_CALLS[name]}"
    return f"{name} has no distribution, and {doubt}: {_CALLS[name]}"


def _sampler_remedies(telemetry: Telemetry, series: str, engine: Engine) -> list[str]:
    silent = [pod for pod in sorted(telemetry.ready_samplers) if not telemetry.samplers[pod].running.known]
    if silent:
        return [
            f"no fresh {engine.metrics.prefix}* series with {series} from {len(silent)} of {len(telemetry.ready_samplers)} ready sampler "
            f"pods ({_names(silent)}): check that they are scraped with a pod label, and that the engine serves {engine.metrics_path}{_starting(engine)}"
        ]
    without_kv = [pod for pod in sorted(telemetry.ready_samplers) if not telemetry.samplers[pod].kv_usage.known]
    if without_kv:
        return [
            f"{engine.metrics.kv_usage[0]} is unknown for the sampler pods {_names(without_kv)}: check that the engine is {engine.title}, as "
            "spec.sampler.engine says, and that no metric relabelling drops it"
        ]
    return []


def _starting(engine: Engine) -> str:
    """The argument without which an engine serves no metrics, if there is one."""
    words = [flag.word for flag in engine.needed if "metrics" in flag.word]
    return f" ({engine.title} needs {words[0]})" if words else ""


def _scrape(series: str) -> str:
    """How series come to carry these labels."""
    if series.startswith("rljob_dev_uid"):
        return "a PodMonitor that selects the label rljob.dev/name and relabels rljob.dev/uid to rljob_dev_uid"
    return "a PodMonitor, which keeps the labels namespace and pod"


def _names(pods: Collection[str]) -> str:
    shown = sorted(pods)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
