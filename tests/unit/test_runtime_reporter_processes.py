"""A reporter among threads, signals, forks and other processes of its pod."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rljob_runtime import Reporter
from rljob_runtime.shared import sweep
from tests.unit.test_runtime_reporter import value


def forked(work: Callable[[], None]) -> None:
    """Do ``work`` in a forked process; the test fails if it did."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextmanager
def page_of(reporter: Reporter) -> Iterator[Callable[[], dict[str, float]]]:
    """Serves, and reads what a scrape sees: series → value."""
    server, thread = reporter.serve(0, "127.0.0.1")

    def read() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(number) for name, _, number in (line.rpartition(" ") for line in lines)}

    try:
        yield read
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Rank:
    """Another process with its own reporter, which does what it is told until it ends."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._ready, ready = os.pipe()
        going, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            try:
                work()
                os.write(ready, b".")
                os.read(going, 1)
            finally:
                os._exit(0)
        os.close(going)
        os.close(ready)
        assert os.read(self._ready, 1) == b".", "the other process failed"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._go)
        os.close(self._ready)


def test_threads_lose_nothing() -> None:
    reporter = Reporter(strict=True)
    threads = [
        threading.Thread(target=lambda: [reporter.response(n % 50) or reporter.waited(1) for n in range(2000)])  # type: ignore[func-returns-value]
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(reporter, "rljob_response_tokens_count") == 16_000
    assert value(reporter, "rljob_trainer_wait_seconds_total") == 16_000


def test_threads_that_report_the_same_total_count_it_once() -> None:
    reporter, rounds, together = Reporter(strict=True), 300, threading.Barrier(4)

    def report() -> None:
        for total in range(rounds):
            together.wait()
            reporter.counted_to(samples=total)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=report) for _ in range(together.parties)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert value(reporter, "rljob_trained_samples_total") == rounds - 1


def test_a_signal_handler_may_report_while_a_report_is_under_way() -> None:
    reporter = Reporter(strict=True)
    before = signal.signal(signal.SIGALRM, lambda *_: reporter.dropped(1))
    try:
        # The thread that handles the signal holds the lock at that moment.
        with reporter._ledger._lock:
            signal.raise_signal(signal.SIGALRM)
            assert value(reporter, "rljob_dropped_groups_total") == 1
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_fork_in_the_midst_of_a_report_does_not_block_the_child() -> None:
    reporter = Reporter(strict=True)
    reporter.waited(5)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with reporter._ledger._lock:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:

        def work() -> None:
            signal.alarm(60)
            reporter.waited(1)
            assert value(reporter, "rljob_trainer_wait_seconds_total") == 1, "nothing is counted twice"

        forked(work)
    finally:
        release.set()
        holder.join()
    assert value(reporter, "rljob_trainer_wait_seconds_total") == 5


def test_a_forked_process_lets_go_of_the_port() -> None:
    reporter = Reporter(strict=True)
    server, thread = reporter.serve(0, "127.0.0.1")
    port = server.server_port
    child = Rank(lambda: None)
    try:
        server.shutdown()
        server.server_close()
        thread.join()
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", port))
            again.listen()
    finally:
        child.kill()


def test_a_forked_process_says_once_that_nobody_reads_it(tmp_path: Path) -> None:
    reporter = Reporter(strict=True)
    said = tmp_path / "said"

    def work() -> None:
        import logging

        logging.getLogger("rljob_runtime").addHandler(logging.FileHandler(said))
        reporter.response(3)
        reporter.response(3)

    with page_of(reporter):
        forked(work)
    assert said.read_text().count("nobody reads what it reports") == 1


def test_the_processes_of_a_pod_share_a_page(tmp_path: Path) -> None:
    main = Reporter(shared=tmp_path, strict=True)
    main.resumed(7)
    main.acknowledged(4)
    main.in_flight(3)
    main.step_started([0, 2])

    def rank() -> None:
        Reporter(main=False, shared=tmp_path, strict=True).acknowledged(3)

    def rollout() -> None:
        reporter = Reporter(shared=tmp_path, strict=True)
        reporter.in_flight(5)
        reporter.responses([10, 30])
        reporter.environment_summary(mean=2.0, samples=4)

    others = [Rank(rank), Rank(rollout)]
    try:
        with page_of(main) as read:
            page = read()
            assert page["rljob_policy_version"] == 7
            assert page["rljob_layout_generation"] == 3, "the minimum"
            assert page["rljob_inflight_samples"] == 8, "the sum"
            assert page["rljob_response_tokens_sum"] == 40
            assert page['rljob_response_tokens_bucket{le="10.0"}'] == 1
            assert page['rljob_response_tokens_bucket{le="1.0"}'] == 0
            assert page["rljob_sample_staleness_versions_count"] == 2
            assert page["rljob_sample_staleness_max_versions"] == 2
            assert (page["rljob_environment_seconds_sum"], page["rljob_environment_seconds_count"]) == (8, 4)
            assert page["rljob_trained_samples_total"] == 0
            assert "rljob_queue_depth_groups" not in page
            for other in others:
                other.kill()
            page = read()
            assert page["rljob_layout_generation"] == 4, "a rank that was killed holds nobody up"
            assert page["rljob_inflight_samples"] == 3
            assert page["rljob_response_tokens_sum"] == 40, "what it counted stays counted"
    finally:
        for other in others:
            if Path(f"/proc/{other.pid}").exists():
                other.kill()


def test_a_process_that_forks_shares_the_page_with_its_child(tmp_path: Path) -> None:
    reporter = Reporter(shared=tmp_path, strict=True)
    reporter.waited(1)

    def child() -> None:
        reporter.waited(2)

    forked(child)
    with page_of(reporter) as read:
        assert read()["rljob_trainer_wait_seconds_total"] == 3


def test_the_directory_comes_from_the_variable_of_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "made"))
    Reporter(strict=True).waited(1)
    assert list((tmp_path / "made").glob("counter_rljob-*.db"))


def test_files_of_another_pid_namespace_and_of_others_are_left_alone(tmp_path: Path) -> None:
    theirs = [tmp_path / "gauge_livemin_rljob-1-999999-5.db", tmp_path / "gauge_livemin_4242.db", tmp_path / "other.db"]
    for path in theirs:
        path.write_bytes(b"")
    assert sweep(tmp_path) == []
    assert all(path.exists() for path in theirs)


def test_a_directory_that_cannot_be_written_leaves_the_process_with_its_own_page(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    reporter = Reporter(shared=tmp_path / "file")
    assert reporter.problem is not None
    assert reporter.problem.startswith("shared: ")
    reporter.resumed(3)
    with page_of(reporter) as read:
        assert read()["rljob_policy_version"] == 3


def test_a_port_that_is_taken_says_who_should_serve() -> None:
    first = Reporter()
    with page_of(first):
        port = first._servers[0].server_port
        with pytest.raises(OSError, match="one process of a pod serves"):
            Reporter().serve(port, "127.0.0.1")
