"""The order that an acknowledgement promises: checkpoint, resize, acknowledge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rljob_runtime import Layout, LayoutFollower, LayoutWatcher, Reporter
from tests.unit.emulator_job import layout_text


class Trainer:
    """Writes down what it was asked for, in order."""

    def __init__(self, reporter: Reporter) -> None:
        self.did: list[str] = []
        self.fails = False
        self._reporter = reporter

    def acknowledged(self) -> float | None:
        return self._reporter.registry.get_sample_value("rljob_layout_generation")

    def checkpoint(self) -> None:
        self.did.append(f"checkpoint at {self.acknowledged()}")
        if self.fails:
            raise OSError("the disk is full")

    def resize(self, layout: Layout) -> None:
        self.did.append(f"resize to {layout.trainers.replicas} at {self.acknowledged()}")


def write(folder: Path, generation: int, *, checkpoint: bool = False, trainers: int = 1) -> None:
    text = json.loads(layout_text(generation, trainers=trainers)) | {"checkpoint": checkpoint}
    (folder / "layout.json").write_text(json.dumps(text))


def follower(folder: Path) -> tuple[LayoutFollower, Trainer]:
    reporter = Reporter()
    trainer = Trainer(reporter)
    found = LayoutFollower(LayoutWatcher(folder), reporter, resize=trainer.resize, checkpoint=trainer.checkpoint)
    return found, trainer


def test_a_layout_is_followed_once_and_then_acknowledged(tmp_path: Path) -> None:
    found, trainer = follower(tmp_path)
    assert not found.at_boundary(), "there is none yet"
    assert trainer.acknowledged() is None
    write(tmp_path, 1)
    assert found.at_boundary()
    assert not found.at_boundary()
    assert (trainer.did, trainer.acknowledged()) == (["resize to 1 at None"], 1.0)


def test_a_checkpoint_is_written_before_it_is_acknowledged_and_only_once(tmp_path: Path) -> None:
    found, trainer = follower(tmp_path)
    write(tmp_path, 1)
    found.at_boundary()
    write(tmp_path, 2, checkpoint=True)
    found.at_boundary()
    assert found.leaving
    assert trainer.did[1:] == ["checkpoint at 1.0", "resize to 1 at 1.0"]
    write(tmp_path, 3, checkpoint=True, trainers=2)
    found.at_boundary()
    assert trainer.did[3:] == ["resize to 2 at 2.0"]
    write(tmp_path, 4)
    found.at_boundary()
    assert not found.leaving
    assert trainer.acknowledged() == 4.0


def test_a_checkpoint_that_fails_is_not_acknowledged_and_tried_again(tmp_path: Path) -> None:
    found, trainer = follower(tmp_path)
    write(tmp_path, 1)
    found.at_boundary()
    write(tmp_path, 2, checkpoint=True)
    trainer.fails = True
    with pytest.raises(OSError, match="full"):
        found.at_boundary()
    assert trainer.acknowledged() == 1.0
    trainer.fails = False
    assert found.at_boundary()
    assert trainer.acknowledged() == 2.0


def test_ranks_may_agree_on_a_layout_before_they_follow_it(tmp_path: Path) -> None:
    found, trainer = follower(tmp_path)
    write(tmp_path, 2)
    agreed = Layout.parse(layout_text(1))
    assert found.at_boundary(agreed)
    assert (found.layout, trainer.acknowledged()) == (agreed, 1.0)
