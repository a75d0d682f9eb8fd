"""Scrapes of a job whose truth is known: the trainer's through the real reporter, the samplers' as vLLM writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import generate_latest

from rljob_runtime import Reporter

INTERVAL_S = 15.0


@dataclass(frozen=True)
class Truth:
    """A steady job; seconds a step unless said otherwise."""

    train: float = 6.0
    wait: float = 6.0
    other: float = 0.0
    sync: float = 0.3
    environment: float | None = None
    """Seconds of a sample."""
    decode: float = 40.0
    """Seconds of a sample on samplers."""
    groups_per_step: int = 16
    samples_per_group: int = 8
    queue: float = 0.0
    queue_growth: float = 0.0
    """Groups a scrape."""
    in_flight: int = 512
    running: float = 400.0
    """Over all samplers."""
    waiting: float = 0.0
    kv_usage: float = 0.5
    preemptions: int = 0
    """A scrape."""
    busy: float = 1.0
    token: float = 0.02
    """Seconds between two tokens of a sample."""
    samplers: int = 2
    scrapes: int = 20
    restart_at: int | None = None
    """Scrape before which the trainer's process starts anew."""
    frozen: bool = False
    """Whether a sampler is paused all the time."""
    without: tuple[str, ...] = ()
    """Metrics that nobody exports."""
    old_names: bool = False

    @property
    def period(self) -> float:
        return self.train + self.wait + self.other


def compose(folder: Path, truth: Truth) -> Path:
    """Writes a folder of scrapes, one subfolder a pod."""
    for pod in ("trainer-0", *(f"sampler-{i}" for i in range(truth.samplers))):
        (folder / pod).mkdir(parents=True)
    reporter, done, waited = Reporter(), 0, 0.0
    for number in range(truth.scrapes):
        now = number * INTERVAL_S
        if number == truth.restart_at:
            reporter = Reporter()
            reporter.resumed(done)
        while (done + 1) * truth.period <= now:
            done += 1
            samples = truth.groups_per_step * truth.samples_per_group
            reporter.step_started([1.0] * samples)
            reporter.step_finished(done, samples, samples * 500, truth.train)
            reporter.synced(truth.sync)
            for _ in range(samples):
                reporter.response(500)
                if truth.environment is not None:
                    reporter.environment(truth.environment)
        reporter.waited(truth.wait * now / truth.period - waited)
        waited = truth.wait * now / truth.period
        reporter.queue(round(truth.queue + truth.queue_growth * number))
        reporter.in_flight(truth.in_flight)
        text = _without(generate_latest(reporter.registry).decode(), truth.without)
        (folder / "trainer-0" / f"{number}.txt").write_text(text, encoding="utf-8")
        for i in range(truth.samplers):
            sampler = _sampler(truth, number, now, frozen=truth.frozen and i == 0)
            (folder / f"sampler-{i}" / f"{number}.txt").write_text(_without(sampler, truth.without), encoding="utf-8")
    return folder


def _sampler(truth: Truth, number: int, now: float, frozen: bool) -> str:
    steps = 0.0 if frozen else now * truth.busy / truth.token
    each = truth.running / truth.samplers
    finished = now / truth.period * truth.groups_per_step * truth.samples_per_group / truth.samplers
    latency = "time_per_output_token_seconds" if truth.old_names else "inter_token_latency_seconds"
    usage = "gpu_cache_usage_perc" if truth.old_names else "kv_cache_usage_perc"
    label = 'engine="0",model_name="m"'
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{{{label}}} {each}\n"
        "# TYPE vllm:num_requests_waiting gauge\n"
        f"vllm:num_requests_waiting{{{label}}} {truth.waiting / truth.samplers}\n"
        f"# TYPE vllm:{usage} gauge\n"
        f"vllm:{usage}{{{label}}} {truth.kv_usage}\n"
        "# TYPE vllm:num_preemptions_total counter\n"
        f"vllm:num_preemptions_total{{{label}}} {truth.preemptions * number}\n"
        "# TYPE vllm:generation_tokens_total counter\n"
        f"vllm:generation_tokens_total{{{label}}} {steps * each}\n"
        "# TYPE vllm:iteration_tokens_total histogram\n"
        f"vllm:iteration_tokens_total_sum{{{label}}} {steps * each}\n"
        f"vllm:iteration_tokens_total_count{{{label}}} {steps}\n"
        f"# TYPE vllm:{latency} histogram\n"
        f"vllm:{latency}_sum{{{label}}} {steps * each * truth.token}\n"
        f"vllm:{latency}_count{{{label}}} {steps * each}\n"
        "# TYPE vllm:request_inference_time_seconds histogram\n"
        f"vllm:request_inference_time_seconds_sum{{{label}}} {finished * truth.decode}\n"
        f"vllm:request_inference_time_seconds_count{{{label}}} {finished}\n"
    )


def _without(text: str, names: tuple[str, ...]) -> str:
    """The exposition without some metrics."""
    kept = [line for line in text.splitlines() if not any(re.search(rf"(^|\s){re.escape(n)}", line) for n in names)]
    return "\n".join(kept) + "\n"
