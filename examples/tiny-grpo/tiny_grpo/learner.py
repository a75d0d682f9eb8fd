"""The GRPO step: clipped importance ratio, one optimizer step, gradients summed over the trainer's processes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM

from tiny_grpo.samples import Group, Sample, advantages
from tiny_grpo.task import PAD

CLIP = 0.2
"""How far the importance ratio may pull: beyond 1 ± this, a token has no gradient in that direction."""


@dataclass(frozen=True)
class Learned:
    """What one step measured, over the samples of all processes and before the weights changed."""

    ratio_mean: float
    """Mean importance ratio of a token: probability now over probability when it was written."""
    ratio_variance: float
    """Its variance: 0 on policy, and what staleness costs."""
    clipped: float
    """Share of tokens whose gradient the clip took away."""
    loss: float
    gradient: float
    """Norm of the gradient before it was clipped to 1."""


@dataclass(frozen=True)
class Scored:
    """A sample with its prompt and its advantage: what a step needs of it."""

    prompt: tuple[int, ...]
    sample: Sample
    advantage: float


def scored(groups: list[Group]) -> list[Scored]:
    """The samples of ``groups``, each held against its own group."""
    return [
        Scored(group.problem.prompt, sample, advantage)
        for group in groups
        for sample, advantage in zip(group.samples, advantages([s.reward for s in group.samples]), strict=True)
    ]


class Learner:
    """The policy and its optimizer."""

    def __init__(self, start: Path, learning_rate: float) -> None:
        """Start from the model in ``start``, at version 0."""
        self.model = Qwen2ForCausalLM.from_pretrained(start, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.95)
        )
        self.version = 0

    def step(
        self,
        batch: list[Scored],
        rank: int = 0,
        world: int = 1,
        sum_up: Callable[[torch.Tensor], None] = lambda _: None,
    ) -> Learned:
        """One step on this process's share of ``batch``, which all ``world`` processes were given whole; the version goes up by one.

        ``sum_up`` replaces a tensor by its sum over the processes. What it raises leaves weights and version as they were.
        """
        share = batch[rank::world]
        tokens, written, weights, mask = tensors(share)
        logits = self.model(input_ids=tokens[:, :-1]).logits
        logprobs = torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
        ratio = torch.exp(torch.where(mask, logprobs - written, torch.zeros_like(written)))
        clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
        gain = torch.minimum(ratio * weights, clipped * weights)
        total = sum(len(s.sample.tokens) for s in batch)
        loss = -(gain * mask).sum() / total
        self.optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            away = mask & (clipped * weights < ratio * weights)
            sums = torch.stack([(ratio * mask).sum(), (ratio**2 * mask).sum(), away.sum(), loss.detach()])
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        # One message: at this size latency is all that it costs.
        flat = torch.cat([sums, *(g.flatten() for g in gradients)])
        sum_up(flat)
        sums, rest = flat[: len(sums)], flat[len(sums) :]
        for gradient, summed in zip(gradients, rest.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.version += 1
        mean = sums[0].item() / total
        return Learned(
            ratio_mean=mean,
            ratio_variance=max(0.0, sums[1].item() / total - mean**2),
            clipped=sums[2].item() / total,
            loss=sums[3].item(),
            gradient=float(norm),
        )

    def state(self) -> dict[str, object]:
        """Everything that a process needs to go on from here."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "version": self.version}

    def load(self, state: dict[str, object]) -> None:
        """Go on from there."""
        self.model.load_state_dict(state["model"])  # type: ignore[arg-type]
        self.optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]
        self.version = state["version"]  # type: ignore[assignment]

    def save(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        torch.save(self.state(), partial)
        partial.replace(path)

    def resume(self, path: Path) -> bool:
        """Go on from a checkpoint if there is one; returns whether there was."""
        if not path.exists():
            return False
        self.load(torch.load(path, weights_only=True))
        return True


def tensors(share: list[Scored]) -> tuple[torch.Tensor, ...]:
    """A share as tensors, samples × length.

    Token ids, padded at the end; and for each token but the first: the log probability with which it was written, its advantage, and whether
    it counts, being part of the answer.
    """
    rows = [(*s.prompt, *s.sample.tokens) for s in share] or [(PAD, PAD)]
    length = max(map(len, rows))
    tokens = torch.full((len(rows), length), PAD)
    written, weights = torch.zeros(len(rows), length - 1), torch.zeros(len(rows), length - 1)
    mask = torch.zeros(len(rows), length - 1, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
    for i, s in enumerate(share):
        answer = slice(len(s.prompt) - 1, len(s.prompt) - 1 + len(s.sample.tokens))
        written[i, answer] = torch.tensor(s.sample.logprobs)
        weights[i, answer] = s.advantage
        mask[i, answer] = True
    return tokens, written, weights, mask


def seed_everything(seed: int) -> None:
    """What is drawn here at all is drawn from ``seed``; samplers draw by themselves."""
    random.seed(seed)
    torch.manual_seed(seed)
