"""The command as a hook and as a sidecar: real processes, a stand-in of vLLM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from argparse import ArgumentTypeError
from pathlib import Path
from typing import NoReturn

import pytest

from rljob_runtime.__main__ import duration_s, main
from tests.unit.vllm_double import double

COMMAND = (sys.executable, "-m", "rljob_runtime", "drain")
PROMPT = ("--settle", "0", "--lag", "0")
"""A sampler that is idle may go at once."""


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False
    )


def test_an_idle_sampler_is_drained_at_once() -> None:
    with double() as server:
        done = run("--url", server.url, "--deadline", "60s", *PROMPT)
    assert (done.returncode, done.stdout) == (0, "")
    assert "rljob-runtime drain: drained after" in done.stderr


def test_it_waits_until_requests_have_finished() -> None:
    with double() as server:
        server.engine.submit(3, max_tokens=1000)
        hook = subprocess.Popen(
            [*COMMAND, "--url", server.url, "--deadline", "1h", *PROMPT, "--layout", "/nowhere"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert hook.stderr is not None
        assert "the layout does not say yet" in hook.stderr.readline()
        # It was seen busy: what comes after is an answer to a look that began later.
        asked = server.asked("/metrics")
        server.wait_asked("/metrics", asked + 2)
        assert hook.poll() is None
        server.engine.finish()
        _, said = hook.communicate(timeout=60)
    assert hook.returncode == 0
    assert "drained after" in said


def test_the_deadline_is_no_failure() -> None:
    with double(tracks_load=True) as server:
        server.engine.submit(2)
        done = run("--url", server.url, "--deadline", "0.5s", *PROMPT)
    assert done.returncode == 0
    assert "2 running, 0 waiting, 2 counted by /load" in done.stderr
    assert "raise --deadline" in done.stderr


def test_a_server_that_is_not_there_is_no_failure_and_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: it refuses
        done = run("--url", f"http://127.0.0.1:{taken.getsockname()[1]}", "--deadline", "60")
    assert done.returncode == 0
    assert "the server ended or never came up, or --url is not where it listens" in done.stderr


def test_names_of_the_environment_stand_in_arguments(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with double() as server:
        done = run(
            "--url",
            "http://$(POD_IP):$(PORT)",
            "--deadline",
            "9s",
            *PROMPT,
            "--log",
            str(log),
            POD_IP="127.0.0.1",
            PORT=str(server.port),
        )
    assert done.returncode == 0
    assert log.read_text() == done.stderr
    assert server.url in done.stderr


def test_a_log_that_cannot_be_written_is_no_failure() -> None:
    with double() as server:
        done = run("--url", server.url, "--deadline", "9s", *PROMPT, "--log", "/nowhere/log")
    assert done.returncode == 0


def test_errors_that_nobody_reads_are_no_failure() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        with double() as server:
            done = subprocess.run(
                [*COMMAND, "--url", server.url, "--deadline", "60s", *PROMPT], stderr=write, timeout=120, check=False
            )
            assert server.asked("/metrics") > 0, "it went on"
    finally:
        os.close(write)
    assert done.returncode == 0


def test_a_pod_without_a_name_is_drained_without_the_layout() -> None:
    with double() as server:
        done = run("--url", server.url, "--deadline", "60s", *PROMPT, "--pod", "$(NOT_SET_ANYWHERE)")
    assert done.returncode == 0
    assert "NOT_SET_ANYWHERE, which is not set; so the layout is not asked" in done.stderr
    assert "drained after" in done.stderr


def test_a_mistake_of_its_own_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError("of nothing")

    monkeypatch.setattr("rljob_runtime.__main__.drain", broken)
    log = tmp_path / "log"
    assert main(["drain", "--url", "http://127.0.0.1:1", "--deadline", "1s", "--log", str(log)]) == 0
    assert "the drain itself failed (ZeroDivisionError('of nothing'))" in log.read_text()
    assert capsys.readouterr().err == log.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--url", "http://$(NOT_SET_ANYWHERE)", "--deadline", "1s"), "NOT_SET_ANYWHERE, which is not set"),
        (("--url", "127.0.0.1:8000", "--deadline", "1s"), "is no URL; write for example http://127.0.0.1:8000"),
        (("--url", "http://x", "--deadline", "soon"), "'soon' is no duration; write for example 90s or 15m"),
        (("--url", "http://x"), "--deadline"),
    ],
)
def test_wrong_arguments_say_what_to_write(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1h30m", 5400), ("2.5s", 2.5), ("7", 7), ("0", 0), ("1m30", 90)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-3s", "1d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        duration_s(text)


def test_a_sidecar_drains_when_the_hook_asks_and_ends_by_a_signal() -> None:
    with double() as server, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        server.engine.submit(2, max_tokens=1000)
        sidecar = subprocess.Popen(
            [*COMMAND, "--url", server.url, "--deadline", "1h", *PROMPT, "--listen", str(port)],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert sidecar.stderr is not None
            assert f"ready for /drain on port {port}" in sidecar.stderr.readline()
            answers: list[str] = []

            def hook() -> None:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/drain", timeout=120) as answer:
                    answers.append(answer.read().decode())

            hooks = [threading.Thread(target=hook) for _ in range(2)]
            for each in hooks:
                each.start()
            server.wait_asked("/metrics", server.asked("/metrics") + 2)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=120) as health:
                assert health.status == 200, "probes are answered meanwhile"
            assert answers == []
            server.engine.finish()
            for each in hooks:
                each.join()
            assert answers == ["drained\n", "drained\n"]
            sidecar.send_signal(signal.SIGTERM)
            _, said = sidecar.communicate(timeout=60)
            assert sidecar.returncode == 0
            assert "drained after" in said
        finally:
            sidecar.kill()
            sidecar.wait()
