"""The tiny GRPO job's rollout on a real vLLM: versions by token, weights that change while samples are written, and a server that leaves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry
from tiny_grpo.account import Account
from tiny_grpo.admission import Admission, Limits
from tiny_grpo.rollout import Rollout
from tiny_grpo.samples import Sample
from tiny_grpo.task import Kind, LengthTrace

from dev.vllm.server import Server
from rljob_runtime import Endpoint, Layout, LayoutPhase, Reporter, SamplerLayout, TrainerLayout

LIMITS = Limits(prompts_per_step=2, samples_per_prompt=4, steps=1000, max_staleness=2)


def layout(*servers: Server) -> Layout:
    endpoints = tuple(Endpoint(f"sampler-{i}", server.url) for i, server in enumerate(servers))
    return Layout(
        generation=1,
        phase=LayoutPhase.STEADY,
        samplers=SamplerLayout(len(servers), 1, 1, 16, endpoints),
        trainers=TrainerLayout(1, 1, 1, 1, 1, 1, ""),
        in_flight_cap=16,
        max_staleness=2,
        draining=(),
        checkpoint=False,
    )


def test_weights_change_while_samples_are_written(
    serve: Callable[..., Server], tiny_model: Path, tmp_path: Path
) -> None:
    server = serve("--enable-scale-out", "--no-enable-prefix-caching", "--generation-config", "vllm")
    registry = CollectorRegistry()
    admission, account = Admission(LIMITS, version=0), Account(registry)
    rollout = Rollout(admission, account, Reporter(registry), kind=Kind.COUNT, lengths=LengthTrace("60"), seed=0)
    rollout.start()
    try:
        rollout.follow(layout(server))
        seen: list[Sample] = []
        # Versions are published until one falls into samples that are being written: mostly the first one does.
        for version in range(100):
            weights = tmp_path / f"v{version}"
            shutil.copytree(tiny_model, weights)
            rollout.publish(version, weights)
            groups = admission.take(timeout_s=120)
            assert groups is not None, account.numbers()
            seen = [s for g in groups for s in g.samples]
            assert all(0 <= s.staleness(version) <= version for s in seen)
            if any(len(s.spans) > 1 for s in seen):
                break
        mixed = [s for s in seen if len(s.spans) > 1]
        assert mixed, "no version fell into a sample"
        for sample in mixed:
            versions = [span.version for span in sample.spans]
            assert versions == sorted(set(versions))
            assert sum(span.tokens for span in sample.spans) == len(sample.tokens) == len(sample.logprobs)
            assert all(logprob < 0 for logprob in sample.logprobs)
        numbers = account.numbers()
        assert numbers["cut"] == numbers["refused"] == numbers["lost"] == 0
    finally:
        rollout.close()
