"""The trainer of one pod.

    python -m tiny_grpo.train --layout /etc/rljob --shared /shared --model /shared/model --steps 200

Process 0 takes complete groups from the rollout, trains, publishes and writes a checkpoint, step after step; the others compute their share
of each step. The layout is followed at step boundaries, and while there is nothing to train.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import torch

from rljob_runtime import DEFAULT_DIRECTORY, Layout, LayoutFollower, LayoutWatcher, Reporter
from tiny_grpo.account import Account
from tiny_grpo.admission import Admission, Limits
from tiny_grpo.learner import Learned, Learner, Scored, scored, seed_everything
from tiny_grpo.model import save_weights
from tiny_grpo.ranks import GroupBrokenError, Ranks
from tiny_grpo.rollout import Rollout
from tiny_grpo.samples import Group
from tiny_grpo.task import Kind, LengthTrace

_log = logging.getLogger("tiny_grpo")

KEPT_VERSIONS = 8
"""Weights of so many versions stay on disk: a sampler that is being brought up may still read those that were the newest a moment ago."""


class NotAllHereError(Exception):
    """The layout wants more trainer processes than there are; it is not followed yet."""


class Leader:
    """Process 0."""

    def __init__(self, options: argparse.Namespace, ranks: Ranks, reporter: Reporter, stop: threading.Event) -> None:
        """Resume from the checkpoint in the shared directory, or start from the model."""
        self._options, self._ranks, self._reporter, self._stop = options, ranks, reporter, stop
        self._shared: Path = options.shared
        self._learner = Learner(options.model, options.learning_rate)
        self._checkpoint = self._shared / "checkpoint.pt"
        if self._learner.resume(self._checkpoint):
            _log.info("resumed at version %d", self._learner.version)
        reporter.resumed(self._learner.version)
        # Nothing starts before the first layout has said how much may.
        limits = Limits(options.prompts_per_step, options.samples_per_prompt, options.steps, 0)
        self._admission = Admission(limits, self._learner.version)
        self._account = Account(reporter.registry)
        self._rollout = Rollout(
            self._admission, self._account, reporter,
            kind=options.task, lengths=LengthTrace(options.length_trace, options.length_spread), seed=options.seed,
        )  # fmt: skip
        self._follower = LayoutFollower(LayoutWatcher(options.layout), reporter, resize=self._resize)
        self._generation = 0
        self._started_s = time.time()

    def run(self) -> None:
        """Train until the last version is published, or until told to stop."""
        self._rollout.start()
        self._rollout.publish(self._learner.version, self._save_weights())
        try:
            while self._learner.version < self._options.steps and not self._stop.is_set():
                self._step()
        finally:
            self._write_account(self._rollout.close())
        if self._learner.version >= self._options.steps:
            _log.info("trained to version %d", self._learner.version)

    def _step(self) -> None:
        waiting_since = time.monotonic()
        groups = None
        while groups is None:
            if self._stop.is_set():
                return
            self._rollout.check()
            self._at_boundary()
            groups = self._admission.take(timeout_s=0.5)
        waited_s = time.monotonic() - waiting_since
        before = self._learner.version
        samples = [s for g in groups for s in g.samples]
        self._reporter.waited(waited_s)
        self._reporter.queue(self._admission.queued)
        self._reporter.step_started([s.staleness(before) for s in samples])
        started = time.monotonic()
        learned = self._train(scored(groups))
        train_s = time.monotonic() - started
        self._learner.save(self._checkpoint)
        # Published first, reported then: whoever sees the version can rely on samplers having it.
        publishing_since = time.monotonic()
        paused_s = self._rollout.publish(self._learner.version, self._save_weights())
        sync_s = time.monotonic() - publishing_since
        self._reporter.synced(paused_s)
        self._reporter.step_finished(
            self._learner.version, len(samples), sum(len(s.tokens) for s in samples), seconds=train_s
        )
        self._note(groups, before, learned, {"wait_s": waited_s, "train_s": train_s, "sync_s": sync_s})

    def _train(self, batch: list[Scored]) -> Learned:
        while True:
            try:
                self._ranks.tell(("step", batch))
                return share_of_step(self._options, self._learner, self._ranks, batch)
            except GroupBrokenError as error:
                # The optimizer has not moved: gradients are summed before it does.
                _log.warning("a trainer process is gone, the step is done again: %s", error)
                self._regroup(1)

    # The layout.

    def _at_boundary(self) -> None:
        try:
            self._follower.at_boundary()
        except (NotAllHereError, GroupBrokenError) as error:
            _log.debug("layout not followed yet: %s", error)
        followed = self._follower.layout
        if followed is not None and self._ranks.world < self._wanted(followed):
            # Followed once, and a process was lost since: it joins again as soon as it is back.
            self._form(followed)

    def _resize(self, layout: Layout) -> None:
        """Samplers and limits at once; the trainer's processes as soon as all are here, or the layout stays unacknowledged."""
        options = self._options
        stale = layout.max_staleness if options.staleness is None else options.staleness
        self._admission.limits = Limits(options.prompts_per_step, options.samples_per_prompt, options.steps, stale)
        self._rollout.follow(layout)
        self._generation = layout.generation
        wanted = self._wanted(layout)
        self._form(layout)
        if self._ranks.world < wanted:
            raise NotAllHereError(f"{self._ranks.world} of {wanted} trainer processes are here")

    @staticmethod
    def _wanted(layout: Layout) -> int:
        """Trainer processes of the layout: a StatefulSet loses its highest ordinals, so those who stay are the first ones."""
        return max(1, layout.trainers.replicas)

    def _form(self, layout: Layout) -> None:
        world = self._ranks.present(self._wanted(layout))
        told = self._ranks.announced()[2]
        if world != self._ranks.world or told != layout.generation:
            self._regroup(world)

    def _regroup(self, world: int) -> None:
        started = time.monotonic()
        try:
            self._ranks.regroup(world, self._generation, self._learner.state)
        except GroupBrokenError as error:
            _log.warning("no group of %d: %s", world, error)
            return
        _log.info("%d trainer processes, regrouped in %.2f s", world, time.monotonic() - started)

    # What is left behind.

    def _save_weights(self) -> Path:
        weights = self._shared / "weights"
        weights.mkdir(exist_ok=True)
        new = weights / f"v{self._learner.version}"
        save_weights(self._learner.model, new)
        for old in weights.glob("v*"):
            if not self._learner.version - KEPT_VERSIONS < int(old.name[1:]) <= self._learner.version:
                shutil.rmtree(old, ignore_errors=True)
        return new

    def _write_account(self, numbers: dict[str, int]) -> None:
        self._account.write(self._shared / "account.json", {**numbers, "version": self._learner.version})

    def _note(self, groups: list[Group], before: int, learned: Learned, times: dict[str, float]) -> None:
        """One line a step, for plots and for whoever looks."""
        samples = [s for g in groups for s in g.samples]
        stale = [s.staleness(before) for s in samples]
        tokens = sum(len(s.tokens) for s in samples)
        line = {
            "version": before + 1,
            "at_s": time.time() - self._started_s,
            "reward": sum(s.reward for s in samples) / len(samples),
            "solved": sum(s.reward == 1.0 for s in samples) / len(samples),
            "staleness_mean": sum(stale) / len(stale),
            "staleness_max": max(stale),
            "token_staleness_mean": sum(s.token_staleness(before) * len(s.tokens) for s in samples) / tokens,
            "updated_in_flight": sum(len(s.spans) > 1 for s in samples) / len(samples),
            **vars(learned),
            **times,
            "samples": len(samples),
            "tokens": tokens,
            "queued": self._admission.queued,
            "in_flight": self._rollout.in_flight,
            "trainers": self._ranks.world,
        }
        with (self._shared / "history.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._write_account(self._rollout.numbers())
        _log.info(
            "version %d: reward %.3f, staleness %.2f, %.0f tokens a sample, waited %.2f s, trained %.2f s",
            line["version"], line["reward"], line["staleness_mean"], tokens / len(samples), times["wait_s"], times["train_s"],
        )  # fmt: skip


def follow(options: argparse.Namespace, ranks: Ranks, reporter: Reporter, stop: threading.Event) -> None:
    """All processes but 0: compute a share of each step while in the group, wait to be called into one else."""
    learner = Learner(options.model, options.learning_rate)
    while not stop.is_set():
        epoch, world, generation = ranks.announced()
        if generation and ranks.ordinal >= world:
            # A layout without this process: to stay out of the group is to follow it.
            reporter.acknowledged(generation)
        if epoch == ranks.epoch or ranks.ordinal >= world:
            stop.wait(0.2)
            continue
        try:
            ranks.join()
            if generation:
                reporter.acknowledged(generation)
            while True:
                kind, told = ranks.hear()
                if kind == "state":
                    learner.load(told)
                elif kind == "step":
                    share_of_step(options, learner, ranks, told)
        except GroupBrokenError as error:
            _log.info("out of the group: %s", error)


def share_of_step(options: argparse.Namespace, learner: Learner, ranks: Ranks, batch: list[Scored]) -> Learned:
    """One process's part of a step; raises GroupBrokenError.

    Takes as long as it would on the device that the run plays, if it is told to play one, by sleeping: on two cores the trainer gets slower
    with every sampler that is added, as it would not on GPUs of its own.
    """
    started = time.monotonic()
    world = ranks.world
    learned = learner.step(batch, ranks.ordinal, world, ranks.sum)
    tokens = sum(len(s.prompt) + len(s.sample.tokens) for s in batch) / world
    device_s = options.device_seconds_per_step + options.device_seconds_per_token * tokens
    time.sleep(max(0.0, device_s - (time.monotonic() - started)))
    return learned


def parser() -> argparse.ArgumentParser:
    """The options of a run; those that differ from pod to pod come from the environment."""
    made = argparse.ArgumentParser(description="The tiny asynchronous GRPO trainer.")
    made.add_argument("--layout", type=Path, default=Path(DEFAULT_DIRECTORY), help="directory of layout.json")
    made.add_argument("--shared", type=Path, required=True, help="directory that samplers and trainers share")
    made.add_argument("--model", type=Path, help="the model to start from (default: model in the shared directory)")
    made.add_argument("--steps", type=int, default=200, help="policy versions to train")
    made.add_argument("--prompts-per-step", type=int, default=8)
    made.add_argument("--samples-per-prompt", type=int, default=8)
    made.add_argument("--staleness", type=int, help="limit in policy versions (default: the layout's)")
    made.add_argument("--task", type=Kind, choices=list(Kind), default=Kind.SORT)
    made.add_argument(
        "--length-trace",
        default=os.environ.get("TINY_GRPO_LENGTHS", "10"),
        help="numbers of an answer over policy versions: 0:12,100:12,200:48",
    )
    made.add_argument("--length-spread", type=float, default=0.5, help="lengths lie within this share of the mean")
    made.add_argument("--learning-rate", type=float, default=5e-4)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--port", type=int, default=9100, help="of /metrics")
    made.add_argument(
        "--address", default=os.environ.get("POD_IP", "127.0.0.1"), help="to listen on, and be reached at"
    )
    made.add_argument("--ordinal", type=int, default=ordinal_of(os.environ.get("POD_NAME", "trainer-0")))
    made.add_argument("--stay", action="store_true", help="after the last step, serve metrics until stopped")
    made.add_argument("--device-seconds-per-step", type=float, default=0.0, help="play a device: a step takes this,")
    made.add_argument(
        "--device-seconds-per-token", type=float, default=0.0, help="and this per token of the batch / trainers"
    )
    return made


def ordinal_of(pod: str) -> int:
    """The number at the end of a StatefulSet pod's name; 0 where there is none."""
    tail = pod.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    options = parser().parse_args(arguments)
    options.model = options.model or options.shared / "model"
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    torch.set_num_threads(1)
    seed_everything(options.seed)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    reporter = Reporter(main=options.ordinal == 0)
    reporter.serve(options.port, options.address)
    options.shared.mkdir(parents=True, exist_ok=True)
    ranks = Ranks(options.shared, options.ordinal, options.address)
    if options.ordinal:
        follow(options, ranks, reporter, stop)
    else:
        Leader(options, ranks, reporter, stop).run()
        if options.stay:
            stop.wait()


if __name__ == "__main__":
    main()
