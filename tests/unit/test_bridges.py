"""What every bridge promises: it changes nothing, never raises, counts a number once, and says what it does not know."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime import Reporter, bridge
from rljob_runtime.bridges import FRAMEWORKS
from rljob_runtime.bridges.dialect import Dialect, Framework, Logged, Rule
from rljob_runtime.bridges.health import Health
from rljob_runtime.bridges.mirror import PATIENCE_CALLS, PATIENCE_STEPS, Mirror
from rljob_runtime.bridges.rules import queue, staleness_max, staleness_mean, synced, train_seconds, version, waited
from rljob_runtime.bridges.sink import Sink
from tests.unit.bridge_logs import listening, reported, samples, stand_in

ROOT = Path(__file__).resolve().parents[2]

PLAIN = Dialect(
    name="plain",
    version="1",
    marks=("lag/mean",),
    rules=(
        version("version", "s:1"),
        staleness_mean("lag/mean", "s:2"),
        staleness_max("lag/max", "s:3"),
        waited("wait", source="s:4"),
        train_seconds("fit", optional=("prepare",), less=("idle",), source="s:5"),
        synced("sync", source="s:6"),
        queue("queued", "s:7", always=False),
    ),
)
STEP = {"version": 7, "lag/mean": 0.5, "lag/max": 2, "wait": 1.5, "fit": 4.0, "prepare": 1.0, "idle": 0.5, "sync": 0.25}


def mirror_of(*dialects: Dialect, awake: Any = lambda: None) -> Mirror:
    reporter, health = Reporter(sparse=True), Health("plain")
    reporter.registry.register(health)
    return Mirror(Framework("plain", dialects or (PLAIN,)), Sink(reporter), health, awake)


def shown(mirror: Mirror) -> dict[str, float]:
    return reported(mirror.sink.reporter)


WHOLE = {
    "rljob_policy_version": 7,
    "rljob_sample_staleness_versions_count": 1,
    "rljob_sample_staleness_versions_sum": 0.5,
    "rljob_sample_staleness_max_versions": 2,
    "rljob_trainer_wait_seconds_total": 1.5,
    "rljob_train_step_seconds_count": 1,
    "rljob_train_step_seconds_sum": 4.5,
    "rljob_weight_sync_seconds_count": 1,
    "rljob_weight_sync_seconds_sum": 0.25,
}


def test_a_step_in_one_call() -> None:
    mirror = mirror_of()
    mirror.take(Logged(STEP, 7))
    assert shown(mirror) == WHOLE


def test_a_step_in_several_calls_is_one_step() -> None:
    mirror = mirror_of()
    for keys in (("lag/mean",), ("version", "lag/max", "wait"), ("fit", "prepare", "idle", "sync")):
        mirror.take(Logged({key: STEP[key] for key in keys}, 7))
    assert shown(mirror) == WHOLE


def test_a_step_in_calls_without_its_number_that_say_that_more_follows() -> None:
    mirror = mirror_of()
    mirror.take(Logged({"lag/mean": 0.5, "lag/max": 2}, more=True))
    mirror.take(Logged({key: value for key, value in STEP.items() if not key.startswith("lag")}))
    assert shown(mirror) == WHOLE
    mirror.take(Logged(STEP))
    assert shown(mirror)["rljob_trainer_wait_seconds_total"] == 3.0


def test_a_step_number_by_number_waits_for_what_is_optional_until_the_next_one() -> None:
    mirror = mirror_of()
    for key, value in STEP.items():
        mirror.take(Logged({key: value}, 7, closed=False))
    assert shown(mirror)["rljob_policy_version"] == 7
    assert "rljob_train_step_seconds_sum" not in shown(mirror)
    mirror.take(Logged({"version": 8}, 8, closed=False))
    assert shown(mirror)["rljob_train_step_seconds_sum"] == 4.5


def test_two_steps_in_turns() -> None:
    mirror = mirror_of()
    for key, value in STEP.items():
        for step in (7, 8):
            mirror.take(Logged({key: value}, step))
    assert shown(mirror)["rljob_trainer_wait_seconds_total"] == 3.0
    assert shown(mirror)["rljob_train_step_seconds_count"] == 2


def test_a_number_that_passes_through_two_taps_counts_once_and_the_better_one_wins() -> None:
    mirror = mirror_of()
    mirror.take(Logged({"lag/mean": 1.0}, 1), rank=3)
    mirror.take(Logged({"lag/mean": 1.0}, 1), rank=1)
    for step in (2, 3):
        mirror.take(Logged({"lag/mean": 1.0}, step), rank=3)
        mirror.take(Logged({"lag/mean": 1.0}, 10 + step), rank=1)
    assert shown(mirror)["rljob_sample_staleness_versions_count"] == 3


@pytest.mark.parametrize("nothing", [float("nan"), float("inf"), "7", None, object(), b"7", [], {}])
def test_what_is_no_number_is_unknown(nothing: object) -> None:
    mirror = mirror_of()
    mirror.take(Logged({**STEP, "wait": nothing}, 7))
    assert shown(mirror) == {key: value for key, value in WHOLE.items() if "wait" not in key}
    assert samples(mirror.sink.reporter)["rljob_bridge_errors_total"] == 0


def test_numbers_of_arrays_and_tensors_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")

    class Tensor:
        def __float__(self) -> float:
            return 1.5

    mirror = mirror_of()
    mirror.take(Logged({"lag/mean": numpy.float32(0.5), "wait": Tensor(), "version": numpy.int64(7)}, 7))
    assert shown(mirror)["rljob_trainer_wait_seconds_total"] == 1.5
    assert shown(mirror)["rljob_policy_version"] == 7


def test_a_list_of_numbers_reaches_a_rule_that_wants_it() -> None:
    lengths: list[tuple[float, ...]] = []
    rule = Rule("rljob_response_tokens", ("lengths",), lambda _, values: lengths.append(values.many["lengths"]), "s:1")
    mirror = mirror_of(Dialect("lists", "1", ("lengths",), (rule,)))
    mirror.take(Logged({"lengths": [3, 4, 5]}, 1))
    mirror.take(Logged({"lengths": [3, "four"]}, 2))
    assert lengths == [(3.0, 4.0, 5.0)]


def test_an_error_in_a_rule_is_counted_and_said_once_and_costs_no_other_metric(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of no batch")

    rules = (Rule("rljob_trained_samples_total", ("lag/mean",), broken, "s:0"), *PLAIN.rules)
    mirror = mirror_of(Dialect("broken", "1", ("lag/mean",), rules))
    for step in range(3):
        mirror.take(Logged(STEP, step))
    assert shown(mirror)["rljob_trainer_wait_seconds_total"] == 4.5
    assert samples(mirror.sink.reporter)["rljob_bridge_errors_total"] == 3
    assert [r.getMessage() for r in caplog.records if "of no batch" in r.getMessage()] == [
        "plain bridge, feeding rljob_trained_samples_total: ZeroDivisionError (of no batch); training goes on, metrics may be missing"
    ]


def test_an_unknown_set_of_keys_is_reported_with_what_came_and_what_was_looked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    served: list[int] = []
    mirror = mirror_of(awake=lambda: served.append(1))
    for step in range(PATIENCE_STEPS):
        mirror.take(Logged({"loss": 0.1, "wait": 1.0}, step))
    assert not caplog.records
    assert not served
    for step in range(PATIENCE_STEPS, 2 * PATIENCE_STEPS):
        mirror.take(Logged({"loss": 0.1}, step))
    (said,) = [r.getMessage() for r in caplog.records]
    assert "plain (1) by lag/mean" in said
    assert "Logged were: wait" in said
    assert "loss" in said
    assert shown(mirror) == {}
    assert samples(mirror.sink.reporter)["rljob_bridge_known"] == 0
    assert served == [1]


def test_gauges_that_are_sampled_without_a_step_do_not_use_up_the_patience(caplog: pytest.LogCaptureFixture) -> None:
    mirror = mirror_of()
    for _ in range(PATIENCE_CALLS):
        mirror.take(Logged({"queued": 3}))
    assert not caplog.records
    mirror.take(Logged({"lag/mean": 0.5}, 1))
    mirror.take(Logged({"queued": 4}))
    assert shown(mirror)["rljob_queue_depth_groups"] == 4


def test_a_key_that_never_comes_is_named_unless_it_need_not_come(caplog: pytest.LogCaptureFixture) -> None:
    mirror = mirror_of()
    for step in range(PATIENCE_STEPS + 2):
        mirror.take(Logged({key: value for key, value in STEP.items() if key != "sync"}, step))
    said = [r.getMessage() for r in caplog.records]
    assert said == [
        "plain bridge: sync never came, so rljob_weight_sync_seconds is not fed from it (the table is of plain, 1)"
    ]
    seen = {
        s.labels["key"]: s.value
        for f in mirror.sink.reporter.registry.collect()
        for s in f.samples
        if s.name == "rljob_bridge_key_seen"
    }
    assert seen["sync"] == 0
    assert seen["wait"] == 1
    assert "queued" not in seen


def test_a_port_that_is_taken_is_said_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []

    def taken() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(98, "the port is taken")

    mirror = mirror_of(awake=taken)
    for step in range(3):
        mirror.take(Logged({"lag/mean": 1.0}, step))
    assert len(tries) == 3
    assert len([r for r in caplog.records if "the port is taken" in r.getMessage()]) == 1


# What is listened to.


RUN_LOG = "self, data, step=None, commit=None, sync=None"
SKYRL = {"async/staleness_mean": 0.5, "async/staleness_max": 1.0, "timing/sync_weights": 0.25}


def test_a_run_that_starts_later_is_heard_and_gets_what_it_would_have_got(tmp_path: Path) -> None:
    with listening("skyrl") as standing, stand_in(tmp_path, "wandb.sdk.wandb_run", "Run.log", RUN_LOG) as load:
        module = load()
        run = module.Run()
        run.log(SKYRL, step=1, commit=False)
        run.log({"trainer/global_step": 1}, step=1)
    assert module.seen == [
        {"self": run, "data": SKYRL, "step": 1, "commit": False, "sync": None},
        {"self": run, "data": {"trainer/global_step": 1}, "step": 1, "commit": None, "sync": None},
    ]
    assert reported(standing.reporter)["rljob_policy_version"] == 1
    assert reported(standing.reporter)["rljob_sample_staleness_versions_count"] == 1


def test_a_tracker_that_is_imported_already_is_heard(tmp_path: Path) -> None:
    with stand_in(tmp_path, "skyrl.train.utils.tracking", "Tracking.log", "self, data, step, commit=False") as load:
        module = load()
        with listening("skyrl") as standing:
            module.Tracking().log(SKYRL, 4)
        assert reported(standing.reporter)["rljob_weight_sync_seconds_sum"] == 0.25


def test_after_removal_everything_is_as_it_was(tmp_path: Path) -> None:
    before = list(sys.meta_path)
    with stand_in(tmp_path, "skyrl.train.utils.tracking", "Tracking.log", "self, data, step, commit=False") as load:
        module = load()
        original = module.Tracking.log
        with listening("skyrl") as standing:
            assert module.Tracking.log is not original
        assert module.Tracking.log is original
        module.Tracking().log(SKYRL, 4)
    assert reported(standing.reporter) == {}
    assert sys.meta_path == before


def test_a_number_that_a_tracker_hands_on_counts_once(tmp_path: Path) -> None:
    with (
        listening("skyrl") as standing,
        stand_in(tmp_path / "a", "wandb.sdk.wandb_run", "Run.log", RUN_LOG) as load_wandb,
        stand_in(
            tmp_path / "b", "skyrl.train.utils.tracking", "Tracking.log", "self, data, step, commit=False"
        ) as load,
    ):
        run = load_wandb().Run()
        tracking = load()
        tracking.seen = _Forwarding(run)
        for step in (1, 2):
            tracking.Tracking().log(SKYRL, step)
    assert reported(standing.reporter)["rljob_sample_staleness_versions_count"] == 2


class _Forwarding:
    """What a stand-in notes its calls in; hands each on to a run, as trackers do."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def append(self, call: dict[str, Any]) -> None:
        self._run.log(call["data"])


def test_a_tracker_that_raises_still_raises(tmp_path: Path) -> None:
    with (
        listening("skyrl"),
        stand_in(tmp_path, "skyrl.train.utils.tracking", "Tracking.log", "self, data, step, commit=False") as load,
    ):
        module = load()
        module.seen = None
        with pytest.raises(AttributeError, match="append"):
            module.Tracking().log(SKYRL, 4)
        with pytest.raises(TypeError, match="missing"):
            module.Tracking().log(SKYRL)
        with pytest.raises(TypeError, match="unexpected"):
            module.Tracking().log(SKYRL, 4, colour="red")


def test_a_tracker_without_the_method_is_said_and_the_others_are_heard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        listening("skyrl") as standing,
        stand_in(tmp_path / "a", "skyrl.train.utils.tracking", "Tracking.record", "self, data, step") as load,
        stand_in(tmp_path / "b", "wandb.sdk.wandb_run", "Run.log", RUN_LOG) as load_wandb,
    ):
        load()
        load_wandb().Run().log(SKYRL, step=1)
    assert any("skyrl.train.utils.tracking.Tracking.log" in r.getMessage() for r in caplog.records)
    assert reported(standing.reporter)["rljob_weight_sync_seconds_sum"] == 0.25


@pytest.mark.parametrize("module", ["torch.utils.tensorboard.writer", "tensorboardX.writer"])
def test_a_summary_writer_is_heard(tmp_path: Path, module: str) -> None:
    signature = "self, tag, scalar_value, global_step=None, walltime=None"
    with listening("skyrl") as standing, stand_in(tmp_path, module, "SummaryWriter.add_scalar", signature) as load:
        writer = load().SummaryWriter()
        for step in (1, 2):
            for key, value in SKYRL.items():
                writer.add_scalar(key, value, step)
    assert reported(standing.reporter)["rljob_sample_staleness_versions_count"] == 2
    assert reported(standing.reporter)["rljob_weight_sync_seconds_sum"] == 0.5


def test_mlflow_is_heard(tmp_path: Path) -> None:
    with (
        listening("skyrl") as standing,
        stand_in(tmp_path, "mlflow.tracking.fluent", "log_metrics", "metrics, step=None, synchronous=None") as load,
    ):
        load().log_metrics(SKYRL, step=3)
    assert reported(standing.reporter)["rljob_weight_sync_seconds_sum"] == 0.25


# How it is switched on.


def test_an_unknown_framework_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"no bridge is called 'verll': there are areal, .*verl"):
        bridge("verll")


def test_a_process_speaks_for_one_framework() -> None:
    with listening("verl") as standing:
        assert bridge("verl") is standing
        with pytest.raises(ValueError, match="verl stands already"):
            bridge("skyrl")


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PORT", "nine"), ("PORT", "70000"), ("SAMPLES_PER_PROMPT", "0"), ("PROMPTS_PER_STEP", "a few")],
)
def test_settings_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(f"RLJOB_BRIDGE_{variable}", value)
    with pytest.raises(ValueError, match=f"RLJOB_BRIDGE_{variable} is '{value}'"):
        bridge("verl")


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_importing_a_bridge_sets_it_up(name: str) -> None:
    module = f"rljob_runtime.bridges.{name.replace('-', '_')}"
    sys.modules.pop(module, None)
    importlib.import_module(module)
    standing = bridge(name)
    try:
        assert standing.framework is FRAMEWORKS[name]
    finally:
        standing.remove()


def started(tmp_path: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python whose site-packages hold the .pth file of the distribution."""
    (tmp_path / "rljob_bridge.pth").write_text((ROOT / "runtime" / "rljob_bridge.pth").read_text(encoding="utf-8"))
    site = f"import site; site.addsitedir({str(tmp_path)!r})\n"
    return subprocess.run(
        [sys.executable, "-c", site + textwrap.dedent(code)],
        env={"PATH": "", "PYTHONPATH": str(ROOT / "runtime"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


LOGS = """
    import sys, types, urllib.request
    made = types.ModuleType("skyrl.train.utils.tracking")
    from rljob_runtime.bridges import _active
    (bridge,) = _active
    from rljob_runtime.bridges.dialect import Logged
    assert bridge.exporter.port is None, "a port before there is anything to say"
    bridge.mirror.take(Logged({"async/staleness_mean": 1.0, "async/staleness_max": 2.0}, 1))
    page = f"http://127.0.0.1:{bridge.exporter.port}/metrics"
    print(urllib.request.urlopen(page, timeout=30).read().decode())
"""


def test_the_environment_switches_it_on_in_any_python_and_it_serves_once_there_is_something(tmp_path: Path) -> None:
    done = started(tmp_path, LOGS, RLJOB_BRIDGE="skyrl", RLJOB_BRIDGE_PORT="0", RLJOB_BRIDGE_ADDRESS="127.0.0.1")
    assert done.returncode == 0, done.stderr
    assert "rljob_sample_staleness_max_versions 2.0" in done.stdout
    assert 'rljob_bridge_known{bridge="skyrl",dialect="SkyRL fully async"} 1.0' in done.stdout
    assert "rljob_trainer_wait_seconds" not in done.stdout


def test_without_the_variable_nothing_is_imported(tmp_path: Path) -> None:
    done = started(tmp_path, "import sys; print('rljob_runtime' in sys.modules)")
    assert (done.returncode, done.stdout.strip()) == (0, "False")


def test_a_wrong_variable_is_said_and_python_starts(tmp_path: Path) -> None:
    done = started(tmp_path, "print('started')", RLJOB_BRIDGE="verll")
    assert (done.returncode, done.stdout.strip()) == (0, "started")
    assert "RLJOB_BRIDGE=verll has no effect: no bridge is called 'verll'" in done.stderr


def test_the_file_that_does_it_is_in_the_distribution() -> None:
    import tomllib

    built = tomllib.loads((ROOT / "runtime" / "pyproject.toml").read_text(encoding="utf-8"))
    assert built["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {
        "rljob_bridge.pth": "rljob_bridge.pth"
    }


def test_a_bridge_imports_no_tracker_by_itself() -> None:
    code = """
        import sys
        from rljob_runtime import bridge
        bridge("verl")
        print(sorted({"wandb", "torch", "tensorboardX", "mlflow", "numpy", "verl"} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_the_metrics_go_to_a_reporter_that_somebody_serves() -> None:
    reporter = Reporter()
    with listening("skyrl"):
        pass
    standing = bridge("skyrl", reporter=reporter)
    server, thread = reporter.serve(0, "127.0.0.1")
    try:
        standing.mirror.take(Logged({"async/staleness_mean": 1.0, "async/staleness_max": 2.0}, 1))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as page:
            assert "rljob_sample_staleness_max_versions 2.0" in page.read().decode()
        assert standing.exporter is None
    finally:
        standing.remove()
        server.shutdown()
        server.server_close()
        thread.join()
