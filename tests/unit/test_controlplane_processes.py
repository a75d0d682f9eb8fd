"""The keeper's promises, kept with small programs in place of a control plane."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dev.controlplane import certs, keeper, paths
from dev.controlplane.processes import ComponentError, Supervisor, remove_stale_runs

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes through /proc")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline, f"waited 30 s for {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_stopping_ends_everything_and_removes_the_directory(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "run", remove=True)
    pids = [supervisor.start(name, ["sleep", "3600"]) for name in ("one", "two")]
    assert all(alive(pid) for pid in pids)
    supervisor.check()
    supervisor.close()
    assert not any(alive(pid) for pid in pids)
    assert not (tmp_path / "run").exists()
    supervisor.close()
    with pytest.raises(ComponentError, match="have been stopped"):
        supervisor.start("three", ["true"])


def test_a_directory_to_keep_is_kept(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "run", remove=False)
    supervisor.start("one", ["sh", "-c", "echo hello; exec sleep 3600"])
    wait_until(lambda: "hello" in supervisor.log_tail("one"), "the log")
    supervisor.close()
    assert (tmp_path / "run" / "logs" / "one.log").read_text() == "hello\n"


@pytest.mark.parametrize("ended_by", ["stop", "close"])
def test_what_a_component_started_ends_with_it(tmp_path: Path, ended_by: str) -> None:
    supervisor = Supervisor(tmp_path / "run", remove=True)
    supervisor.start("parent", ["sh", "-c", "sleep 3600 & echo $!; wait"])
    log = supervisor.log_file("parent")
    wait_until(lambda: log.read_text().endswith("\n"), "the child's number")
    child = int(log.read_text())
    assert alive(child)
    if ended_by == "stop":
        supervisor.stop("parent")
    supervisor.close()
    wait_until(lambda: not alive(child), "the child to end")


def test_a_killed_keeper_takes_its_children_along(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "run", remove=True)
    pid = supervisor.start("one", ["sleep", "3600"])
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), "the component to die")
    with pytest.raises(ComponentError, match="has died"):
        supervisor.check()
    supervisor.close()


def test_a_killed_starter_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import time; from pathlib import Path; from dev.controlplane.processes import Supervisor\n"
        f"s = Supervisor(Path({str(tmp_path / 'run')!r}), remove=True)\n"
        "print(s.pid, s.start('one', ['sleep', '3600']), flush=True); time.sleep(3600)"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        assert all(alive(pid) for pid in pids)
        starter.kill()
    wait_until(lambda: not any(alive(pid) for pid in pids), "keeper and component to end")
    assert not (tmp_path / "run").exists()


def test_a_detached_keeper_outlives_its_starter_until_terminated(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "run", remove=True)
    pid = supervisor.start("one", ["sleep", "3600"])
    keeper_pid = supervisor.detach()
    supervisor.close()
    assert alive(pid)
    assert keeper.is_locked(tmp_path / "run")
    os.kill(keeper_pid, signal.SIGTERM)
    wait_until(lambda: not alive(pid), "the component to end")
    wait_until(lambda: not (tmp_path / "run").exists(), "the directory to go")


def test_a_component_that_ended_is_named_with_its_last_lines(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "run", remove=True)
    try:
        pid = supervisor.start("fails", ["sh", "-c", "echo the disk is full; exit 3"])
        wait_until(lambda: not alive(pid), "the program to end")
        with pytest.raises(ComponentError, match=r"fails ended with exit code 3(.|\n)*the disk is full"):
            supervisor.check()
        supervisor.start("fails", ["sleep", "3600"])
        supervisor.check()
        with pytest.raises(ComponentError, match="running already"):
            supervisor.start("fails", ["sleep", "3600"])
        with pytest.raises(ComponentError, match="no-such-program"):
            supervisor.start("missing", ["/no-such-program"])
    finally:
        supervisor.close()


def test_a_component_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "run", remove=True)
    try:
        pid = supervisor.start("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"])
        wait_until(lambda: "ready" in supervisor.log_tail("stubborn"), "the trap")
        supervisor.stop("stubborn", timeout_s=0.1)
        assert not alive(pid)
        supervisor.check()  # asked for, hence no fault
    finally:
        supervisor.close()


def test_only_directories_that_nobody_holds_are_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    remove_stale_runs()  # nothing there yet
    old = time.time() - 3600
    held = Supervisor(paths.run_dir() / "held", remove=True)
    held.start("one", ["sleep", "3600"])
    for name in ("abandoned", "young"):
        (paths.run_dir() / name).mkdir()
        (paths.run_dir() / name / keeper.LOCK_NAME).touch()
    for name in ("held", "abandoned"):
        os.utime(paths.run_dir() / name, (old, old))
    try:
        remove_stale_runs()
        assert sorted(path.name for path in paths.run_dir().iterdir()) == ["held", "young"]
    finally:
        held.close()


def test_the_cache_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert paths.cache_dir() == Path("/somewhere/rljob-operator")
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert paths.cache_dir() == Path.home() / ".cache" / "rljob-operator"


def test_certificates_verify_against_their_authority_and_keys_are_private(tmp_path: Path) -> None:
    authority = certs.Authority.create(tmp_path / "pki")
    serving = authority.serving("server", ["127.0.0.1", "kubernetes.default.svc"])
    client = authority.client("admin", "someone", ["system:masters"])
    for pair in (authority.files, serving, client):
        assert stat.S_IMODE(pair.key.stat().st_mode) == 0o600

    from cryptography import x509

    issuer = x509.load_pem_x509_certificate(authority.files.cert.read_bytes())
    for pair in (serving, client):
        x509.load_pem_x509_certificate(pair.cert.read_bytes()).verify_directly_issued_by(issuer)
    names = x509.load_pem_x509_certificate(serving.cert.read_bytes()).extensions
    alternative = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternative.get_values_for_type(x509.DNSName) == ["kubernetes.default.svc"]
    assert [str(ip) for ip in alternative.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    subject = x509.load_pem_x509_certificate(client.cert.read_bytes()).subject.rfc4514_string()
    assert subject == "CN=someone,O=system:masters"


def test_a_kubeconfig_holds_either_a_certificate_or_a_token(tmp_path: Path) -> None:
    path = certs.write_kubeconfig(
        tmp_path / "k", server="https://127.0.0.1:1", ca_file=tmp_path / "ca.crt", token="t", user="u", namespace="ns"
    )
    config = yaml.safe_load(path.read_text())
    assert config["users"] == [{"name": "u", "user": {"token": "t"}}]
    assert config["contexts"][0]["context"]["namespace"] == "ns"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
