"""Where there is no container engine that works, `make test-kind` says so and leaves with 0, and nothing is started or built."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dev.controlplane.given import GivenPlane
from dev.kind.__main__ import main
from dev.kind.tools import UnavailableError, find_engine

CLIENTS = {
    "fails": "echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?' >&2; exit 1",
    # As clients did for years: information of the client's own, the trouble at its end, and 0.
    "says so alone": "echo Client:; echo 'ERROR: Cannot connect to the Docker daemon at tcp://127.0.0.1:1.'; exit 0",
}


def client(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "docker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}")
    monkeypatch.delenv("KIND_EXPERIMENTAL_PROVIDER", raising=False)


@pytest.mark.parametrize("script", CLIENTS.values(), ids=CLIENTS)
def test_a_client_without_a_service_is_no_engine(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client(tmp_path, monkeypatch, script)
    assert main([]) == 0
    said = capsys.readouterr().out
    assert said.startswith("SKIPPED: no tests on kind here: kind needs a container engine: ")
    assert "docker is there, but does not work: " in said
    assert "Cannot connect to the Docker daemon" in said
    assert "no podman on PATH" in said


def test_an_engine_that_answers_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client(tmp_path, monkeypatch, "echo Client:; echo Server:; echo ' Containers: 0'")
    engine = find_engine()
    assert engine.name == "docker"
    assert engine.env["KIND_EXPERIMENTAL_PROVIDER"] == "docker"


def test_no_engine_at_all_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KIND_EXPERIMENTAL_PROVIDER", raising=False)
    with pytest.raises(UnavailableError, match="no docker on PATH; no podman on PATH; no nerdctl on PATH"):
        find_engine()


def kubeconfig(folder: Path, user: dict[str, str]) -> Path:
    path = folder / "kubeconfig"
    config = {
        "clusters": [
            {"name": "c", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": "Y2E="}}
        ],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_cluster_whose_admin_shows_a_token_is_refused_with_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match="has no client-certificate for its current context: tests need an admin with a client certificate",
    ):
        GivenPlane.open(kubeconfig(tmp_path, {"token": "x"}), tmp_path / "plane")
