"""A policy-gradient loop under torchrun that follows an RLJob's layout; gloo on CPUs, a model of a few hundred weights.

The task is a bandit with sixteen situations, of which each has one right action among eight. It stands in for rollout and reward, so that what is shown
is the rest: how a trainer reports, agrees on a layout, and loses nothing when pods come and go. A trainer that takes its samples from
vLLM is in ../tiny-grpo.

What a step computes does not depend on how many processes share it: samples are drawn from a seed that the policy version gives, each
process takes its part, and gradients are summed. So a run through any number of resizes ends in the same weights.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from rljob_runtime import DEFAULT_DIRECTORY, Layout, LayoutFollower, LayoutWatcher, Reporter

SITUATIONS, ACTIONS, SAMPLES = 16, 8, 256


class Trainer:
    """The model and what belongs into a checkpoint."""

    def __init__(self, folder: Path) -> None:
        """Start from the newest checkpoint in ``folder``, or anew."""
        torch.manual_seed(0)
        self.policy = torch.nn.Sequential(
            torch.nn.Embedding(SITUATIONS, 16), torch.nn.Tanh(), torch.nn.Linear(16, ACTIONS)
        )
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.02)
        self.version = 0
        self._path = folder / "checkpoint.pt"
        if self._path.exists():
            state = torch.load(self._path)
            self.policy.load_state_dict(state["policy"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.version = state["version"]

    def save(self) -> None:
        """Write a checkpoint, whole or not at all; one process does, and all return once it is safe."""
        if dist.get_rank() == 0:
            state = {
                "policy": self.policy.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "version": self.version,
            }
            partial = self._path.with_suffix(".partial")
            torch.save(state, partial)
            os.replace(partial, self._path)
        dist.barrier()

    def step(self) -> float:
        """One step of REINFORCE with the mean reward as baseline, and the next version; returns the mean reward."""
        draw = torch.Generator().manual_seed(self.version)
        situations = torch.randint(SITUATIONS, (SAMPLES,), generator=draw)
        with torch.no_grad():
            actions = torch.multinomial(self.policy(situations).softmax(-1), 1, generator=draw).squeeze(1)
        rewards = (actions == situations % ACTIONS).float()
        mine = slice(dist.get_rank(), None, dist.get_world_size())
        chosen = self.policy(situations[mine]).log_softmax(-1).gather(1, actions[mine, None]).squeeze(1)
        loss = -(chosen * (rewards[mine] - rewards.mean())).sum() / SAMPLES
        self.optimizer.zero_grad()
        loss.backward()
        gradients = torch.cat([p.grad.flatten() for p in self.policy.parameters() if p.grad is not None])
        dist.all_reduce(gradients)
        at = 0
        for parameter in self.policy.parameters():
            assert parameter.grad is not None
            parameter.grad.copy_(gradients[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
        self.optimizer.step()
        self.version += 1
        return float(rewards.mean())


def agreed(watcher: LayoutWatcher) -> Layout | None:
    """The layout that rank 0 has: volumes of pods are updated at different times, and all ranks have to follow one at the same boundary."""
    if dist.get_rank() == 0:
        watcher.poll()
    found: list[Layout | None] = [watcher.current]
    dist.broadcast_object_list(found)
    return found[0]


def main() -> None:
    """Train until ``--steps`` versions are published."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", default=DEFAULT_DIRECTORY)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all trainer pods share")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--metrics-port", type=int, default=9400)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
    asked = parser.parse_args()

    # A peer that was killed without a word is missed after this time, not after the half hour that is the default.
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    reporter = Reporter(main=rank == 0)
    if int(os.environ["LOCAL_RANK"]) == 0:
        reporter.serve(asked.metrics_port)
    trainer = Trainer(asked.checkpoints)
    reporter.resumed(trainer.version)
    print(f"rank {rank} of {world} from version {trainer.version}", flush=True)

    def resize(layout: Layout) -> None:
        # restart: all pods will go, once this is acknowledged. elastic: torchrun starts the workers anew when pods come or go, and they begin
        # with the checkpoint. Either way there is nothing to do but to have one of this very version.
        trainer.save()
        if rank == 0:
            print(f"layout {layout.generation}: {layout.trainers.replicas} trainers", flush=True)

    watcher = LayoutWatcher(asked.layout)
    follower = LayoutFollower(watcher, reporter, resize=resize)
    while trainer.version < asked.steps:
        follower.at_boundary(agreed(watcher))
        if follower.leaving:
            # What would be trained now is lost. The metrics go on being served until the pod is stopped.
            time.sleep(0.5)
            continue
        begun = time.monotonic()
        reporter.step_started([0] * SAMPLES)
        reward = trainer.step()
        time.sleep(max(0.0, asked.pace - (time.monotonic() - begun)))
        reporter.step_finished(trainer.version, SAMPLES, SAMPLES, time.monotonic() - begun)
        # Every step here, since it is small: with torchrun, pods that come or go cost what was trained since the last one.
        trainer.save()
        if rank == 0 and trainer.version % 20 == 0:
            print(f"version {trainer.version}: reward {reward:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
