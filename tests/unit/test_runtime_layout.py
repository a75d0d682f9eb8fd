"""The layout as a job reads it: whole, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime import Endpoint, Layout, LayoutError, LayoutPhase, LayoutWatcher


def document(**changes: Any) -> dict[str, Any]:
    """A whole layout, with changes at its top."""
    return {
        "generation": 3,
        "phase": "draining",
        "samplers": {
            "replicas": 40,
            "gpusPerReplica": 1,
            "tensorParallel": 1,
            "maxRunning": 64,
            "endpoints": [{"pod": "s-0", "url": "http://10.0.0.1:8000"}],
        },
        "trainers": {
            "replicas": 3, "gpusPerReplica": 8, "dp": 24, "tp": 1, "pp": 1, "ep": 1, "rendezvous": "t:29400",
        },
        "inFlightCap": 1024,
        "maxStaleness": 4,
        "draining": ["s-7"],
        "checkpoint": False,
    } | changes  # fmt: skip


def publish(volume: Path, text: str, name: str) -> None:
    """Write ``layout.json`` the way kubelet updates a volume: a new directory, then a swap of the ``..data`` link."""
    data = volume / f"..{name}"
    data.mkdir(parents=True)
    (data / "layout.json").write_text(text)
    link = volume / "..data_tmp"
    link.symlink_to(data.name)
    os.replace(link, volume / "..data")
    if not (volume / "layout.json").is_symlink():
        (volume / "layout.json").symlink_to("..data/layout.json")


def test_a_whole_layout_is_read() -> None:
    layout = Layout.parse(json.dumps(document()))
    assert (layout.generation, layout.phase) == (3, LayoutPhase.DRAINING)
    assert layout.samplers.endpoints == (Endpoint("s-0", "http://10.0.0.1:8000"),)
    assert (layout.samplers.replicas, layout.samplers.tensor_parallel, layout.samplers.max_running) == (40, 1, 64)
    assert (layout.trainers.replicas, layout.trainers.dp, layout.trainers.rendezvous) == (3, 24, "t:29400")
    assert (layout.in_flight_cap, layout.max_staleness, layout.draining) == (1024, 4, ("s-7",))
    assert layout.checkpoint is False


def test_what_a_newer_operator_adds_is_passed_over() -> None:
    newer = document(colour="green")
    newer["trainers"]["contextParallel"] = 2
    assert Layout.parse(json.dumps(newer)) == Layout.parse(json.dumps(document()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generation": "3"}, 'layout key generation must be a whole number of at least 0, not "3"'),
        ({"generation": True}, "generation must be a whole number"),
        ({"inFlightCap": -1}, "inFlightCap must be a whole number of at least 0, not -1"),
        ({"phase": "paused"}, "phase 'paused' is not known here; known are steady, draining, resizing"),
        ({"samplers": []}, "samplers must be an object"),
        ({"draining": "s-7"}, "draining must be a list"),
        ({"draining": [7]}, "draining must be a list of strings, not 7"),
        ({"checkpoint": 1}, "checkpoint must be true or false"),
        ({"trainers": {"replicas": 1}}, "trainers.gpusPerReplica is missing"),
    ],
)
def test_a_wrong_layout_names_the_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        Layout.parse(json.dumps(document(**change)))


def test_an_endpoint_is_named_by_its_place() -> None:
    wrong = document()
    wrong["samplers"]["endpoints"].append({"pod": "s-1"})
    with pytest.raises(LayoutError, match=r"samplers\.endpoints\[1\]\.url is missing"):
        Layout.parse(json.dumps(wrong))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", b"\xff\xfe\x00"])
def test_what_is_not_a_layout_is_refused(text: str | bytes) -> None:
    with pytest.raises(LayoutError):
        Layout.parse(text)


def test_a_missing_file_says_how_to_mount_it(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="mount the job's layout ConfigMap there as a directory, not by subPath"):
        Layout.load(tmp_path)


def test_the_watcher_follows_a_volume_through_its_swaps(tmp_path: Path) -> None:
    watcher = LayoutWatcher(tmp_path)
    assert watcher.poll() is None
    assert watcher.current is None
    assert watcher.problem is not None
    publish(tmp_path, json.dumps(document(generation=1)), "one")
    first = watcher.poll()
    assert first is not None
    assert first.generation == 1
    assert watcher.problem is None
    assert watcher.poll() is None, "the same layout is no change"
    publish(tmp_path, json.dumps(document(generation=2)), "two")
    second = watcher.poll()
    assert second is not None
    assert second.generation == 2
    assert watcher.current == second


def test_the_watcher_keeps_the_last_good_layout(tmp_path: Path) -> None:
    seen: list[int] = []
    watcher = LayoutWatcher(tmp_path, on_change=lambda layout: seen.append(layout.generation))
    publish(tmp_path, json.dumps(document(generation=1)), "one")
    watcher.poll()
    publish(tmp_path, json.dumps(document(generation=2))[:40], "cut")
    assert watcher.poll() is None
    assert watcher.current is not None
    assert watcher.current.generation == 1
    assert "not JSON" in (watcher.problem or "")
    publish(tmp_path, json.dumps(document(generation=3)), "three")
    watcher.poll()
    assert seen == [1, 3]
    assert watcher.problem is None


def test_a_thread_waits_for_a_generation(tmp_path: Path) -> None:
    publish(tmp_path, json.dumps(document(generation=1)), "one")
    with LayoutWatcher(tmp_path, interval_s=0.01) as watcher:
        assert watcher.wait_for(1, timeout_s=30).generation == 1
        publish(tmp_path, json.dumps(document(generation=2)), "two")
        assert watcher.wait_for(2, timeout_s=30).generation == 2
        with pytest.raises(TimeoutError, match="no layout of generation 9"):
            watcher.wait_for(9, timeout_s=0.02)


def test_a_failing_callback_does_not_end_the_watching(tmp_path: Path) -> None:
    def fail(layout: Layout) -> None:
        raise RuntimeError(f"generation {layout.generation}")

    publish(tmp_path, json.dumps(document(generation=1)), "one")
    with LayoutWatcher(tmp_path, interval_s=0.01, on_change=fail) as watcher:
        watcher.wait_for(1, timeout_s=30)
        publish(tmp_path, json.dumps(document(generation=2)), "two")
        assert watcher.wait_for(2, timeout_s=30).generation == 2
