"""The numbers of the tiny GRPO step, in the environment that has torch: held against a plain policy gradient, sample by sample and unpadded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("examples/tiny-grpo", "runtime")),
    "OMP_NUM_THREADS": "1",
}

COMMON = """
import random, sys, torch
from pathlib import Path
from tiny_grpo.learner import Learner, Scored
from tiny_grpo.samples import Sample, Span
from tiny_grpo.task import Kind, problem

torch.set_num_threads(1)
rng = random.Random(0)
learner = Learner(Path(sys.argv[1]), 1e-3)

def logprobs(prompt, answer):
    "Of the tokens of an answer, one sample at a time and without padding."
    tokens = torch.tensor([[*prompt, *answer]])
    rows = torch.log_softmax(learner.model(input_ids=tokens).logits[0], -1)
    return torch.stack([rows[len(prompt) - 1 + i, token] for i, token in enumerate(answer)])

def batch(shift, sign=None):
    "Samples whose tokens were written with probabilities that are lower by e^shift than the policy's."
    made = []
    for length in (3, 7, 5, 2):
        prompt = problem(Kind.SORT, length, rng).prompt
        answer = tuple(rng.randint(7, 106) for _ in range(rng.randint(1, 9)))
        written = tuple((logprobs(prompt, answer) - shift).tolist())
        advantage = sign if sign is not None else rng.uniform(-2, 2)
        made.append(Scored(prompt, Sample(answer, written, (Span(0, len(answer)),), 0.0), advantage))
    return made
"""

ON_POLICY = """
scored = batch(0.0)
total = sum(len(s.sample.tokens) for s in scored)
expected = -sum(s.advantage * logprobs(s.prompt, s.sample.tokens).sum() for s in scored) / total
parameters = list(learner.model.parameters())
gradients = torch.autograd.grad(expected, parameters)
learned = learner.step(scored)
assert abs(learned.ratio_mean - 1) < 1e-5 and learned.ratio_variance < 1e-8 and learned.clipped == 0, learned
norm = torch.stack([g.norm() for g in gradients]).norm().item()
assert abs(learned.gradient - norm) < 1e-4 * norm, (learned.gradient, norm)
scale = max(1.0, learned.gradient)  # the step clips it to 1
for parameter, gradient in zip(parameters, gradients):
    torch.testing.assert_close(parameter.grad * scale, gradient, atol=1e-5, rtol=1e-3)
assert learner.version == 1
"""

CLIPPED = """
# Tokens that became likelier since they were written are pushed no further up, but down; and the other way round.
for shift, sign, clipped in ((0.5, 1.0, 1.0), (0.5, -1.0, 0.0), (-0.5, 1.0, 0.0), (-0.5, -1.0, 1.0)):
    learner = Learner(Path(sys.argv[1]), 1e-3)
    learned = learner.step(batch(shift, sign))
    assert abs(learned.ratio_mean - 2.718281828 ** shift) < 1e-3, learned
    assert learned.clipped == clipped, (shift, sign, learned)
    assert (learned.gradient < 1e-6) == (clipped == 1.0), (shift, sign, learned)
# A group where all fared alike has nothing to clip.
assert learner.step(batch(0.5, 0.0)).clipped == 0.0
"""


@pytest.mark.parametrize("check", [ON_POLICY, CLIPPED], ids=["on policy", "clipped"])
def test_the_numbers_of_a_step(vllm_python: Path, tmp_path: Path, check: str) -> None:
    model = tmp_path / "model"
    for arguments in (["-m", "tiny_grpo.model", model, "--until=0.1"], ["-c", COMMON + check, model]):
        done = subprocess.run(
            [vllm_python, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
