"""What the operator refuses at its start: times under which it would be taken for dead, and arguments that do nothing."""

from __future__ import annotations

import pytest

from rljob_operator import __main__ as program
from rljob_operator import handlers
from rljob_operator.config import LONGEST_IDLE_TICK_S, Config

TIMES = {
    "MOVE_TICK": "move_tick_s",
    "IDLE_TICK": "idle_tick_s",
    "METRICS_WINDOW": "metrics_window_s",
    "SCRAPE_INTERVAL": "scrape_s",
}


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", ["0s", "0ms", "0h"])
def test_no_time_at_all_is_refused_with_what_to_write(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^RLJOB_OPERATOR_{name}: 0 s .*: write a duration .*the default"):
        Config.from_env({f"RLJOB_OPERATOR_{name}": value})


@pytest.mark.parametrize(("name", "field"), TIMES.items())
def test_a_short_time_is_taken(name: str, field: str) -> None:
    assert getattr(Config.from_env({f"RLJOB_OPERATOR_{name}": "100ms"}), field) == pytest.approx(0.1)


@pytest.mark.parametrize("value", ["2m1s", "121s", "10m"])
def test_an_idle_tick_near_the_silence_that_kills_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"^RLJOB_OPERATOR_IDLE_TICK: .* at most 120 s.*liveness probe.*such as 30s"):
        Config.from_env({"RLJOB_OPERATOR_IDLE_TICK": value})


def test_the_longest_idle_tick_leaves_a_pass_to_fail_before_the_probe_does() -> None:
    assert Config.from_env({"RLJOB_OPERATOR_IDLE_TICK": "2m"}).idle_tick_s == LONGEST_IDLE_TICK_S
    assert 2 * LONGEST_IDLE_TICK_S < handlers.LONGEST_SILENCE_S


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_what_code_sets_is_held_to_the_same(value: float) -> None:
    for field in TIMES.values():
        with pytest.raises(ValueError, match="RLJOB_OPERATOR_"):
            Config(**{field: value})  # type: ignore[arg-type]


def test_an_argument_that_nothing_reads_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["rljob_operator", "--verbose"])
    assert program.main() == 2
    said = capsys.readouterr().err
    assert said.startswith("rljob-operator: unknown argument '--verbose': there are none")
    assert said.count("\n") == 1
