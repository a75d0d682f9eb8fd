"""The policy: a Qwen2 of 96 thousand parameters with a vocabulary of its own, in the files that vLLM and transformers both read.

    python -m tiny_grpo.model DIRECTORY      writes config, tokenizer and warmly started weights there

Reinforcement learning strengthens what a policy does sometimes; a random one never sorts anything. So a short supervised warm start
comes first, stopped while answers are still wrong more often than right.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

from tiny_grpo.task import EOS, NUMBERS, PAD, VOCABULARY, Kind, problem

transformers_logging.disable_progress_bar()

CONTEXT_TOKENS = 256
"""Room for the longest prompt and its answer."""


def new_model(seed: int = 0) -> Qwen2ForCausalLM:
    """A model with random weights. Its heads are 32 wide, the least that vLLM's attention on the CPU takes.

    One thread from here on: matrices of 64 × 64 aren't worth two.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        bos_token_id=None,
        tie_word_embeddings=False,
        architectures=["Qwen2ForCausalLM"],
    )
    return Qwen2ForCausalLM(config)


def tokenizer() -> PreTrainedTokenizerFast:
    """Words apart by spaces: ``sort 42 07 99 >``."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token=VOCABULARY[PAD]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=VOCABULARY[PAD], eos_token=VOCABULARY[EOS])


def warm_start(
    model: Qwen2ForCausalLM, kind: Kind, *, until: float, longest: int = 60, seed: int = 0, most_steps: int = 2000
) -> int:
    """Train on right answers until the mean probability of their tokens is ``until``; returns the steps that it took.

    Lengths are even from 4 to ``longest`` numbers, so that the model knows them all before the job makes them grow.
    """
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    likelihood = 0.0
    for step in range(1, most_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, step / 50)
        length = rng.randint(4, longest)
        problems = [problem(kind, length, rng) for _ in range(min(64, max(8, 1024 // length)))]
        tokens = torch.tensor([p.prompt + p.target for p in problems])
        start = len(problems[0].prompt)
        logits = model(input_ids=tokens[:, :-1]).logits[:, start - 1 :]
        logprobs = torch.log_softmax(logits, -1).gather(-1, tokens[:, start:, None]).squeeze(-1)
        optimizer.zero_grad()
        (-logprobs.mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # Smoothed, since short prompts are easier than long ones.
        likelihood += 0.1 * (logprobs.detach().exp().mean().item() - likelihood)
        if likelihood >= until:
            return step
    return most_steps


def save_weights(model: Qwen2ForCausalLM, directory: Path) -> None:
    """Write config and weights to ``directory``, which appears whole or not at all."""
    partial = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    for file in partial.iterdir():
        file.chmod(0o644)  # samplers may run as somebody else
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


def write_model(directory: Path, kind: Kind = Kind.SORT, *, until: float = 0.75, seed: int = 0) -> None:
    """Write a warmly started model with its tokenizer, unless ``directory`` holds one already."""
    if (directory / "config.json").exists():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    model = new_model(seed)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"Warm start of {parameters} parameters on {kind.value} of up to {NUMBERS} numbers", flush=True)
    steps = warm_start(model, kind, until=until, seed=seed)
    # Several pods may be at it, and each has a process 1.
    partial = directory.with_name(f".{directory.name}.{socket.gethostname()}.{os.getpid()}")
    tokenizer().save_pretrained(partial)
    save_weights(model, partial / "weights")
    for file in (partial / "weights").iterdir():
        file.rename(partial / file.name)
    (partial / "weights").rmdir()
    try:
        partial.rename(directory)
    except OSError:
        # Another pod was quicker: the first one counts.
        shutil.rmtree(partial)
        if not (directory / "config.json").exists():
            raise
    print(f"{directory}: warm after {steps} supervised steps", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write the tiny model, warmly started, for vLLM and the trainer.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--task", type=Kind, choices=list(Kind), default=Kind.SORT)
    parser.add_argument(
        "--until", type=float, default=0.75, help="mean probability of a right token at which to stop (0.75)"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_model(arguments.directory, arguments.task, until=arguments.until, seed=arguments.seed)


if __name__ == "__main__":
    main()
