"""The tiny GRPO job on a real vLLM: versions by token, weights that change while samples are written, and the whole job in one command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
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


def test_the_whole_job_on_one_machine(vllm_python: Path, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    packages = os.pathsep.join(str(root / each) for each in ("examples/tiny-grpo", "runtime"))
    run = tmp_path / "run"
    done = subprocess.run(
        [vllm_python, "-m", "tiny_grpo.run", "--samplers=1", "--staleness=0", "--steps=4", f"--directory={run}"],
        env={**os.environ, "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    steps = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [step["version"] for step in steps] == [1, 2, 3, 4]
    for step in steps:
        assert step["staleness_max"] == 0
        # vLLM's log probabilities are those that the trainer computes: no token is off by one, no temperature between them.
        assert abs(step["ratio_mean"] - 1) < 1e-3
        assert step["ratio_variance"] < 1e-5
    account = json.loads((run / "account.json").read_text())
    assert account["submitted"] == account["finished"] == 4 * 64
    assert account["cut"] == account["lost"] == account["in_flight"] == 0
