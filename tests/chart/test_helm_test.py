"""The program that `helm test` runs in the cluster, against an API server and an operator that answer as told."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dev.chart import CHART
from dev.controlplane.certs import Authority
from tests.chart.cases import of_kind

PROGRAM = (CHART / "files" / "installed.py").read_text(encoding="utf-8")
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@contextmanager
def serving(answers: dict[str, tuple[int, str]], certificate: tuple[Path, Path] | None = None) -> Iterator[int]:
    """A server that answers each path with a status and a text, all others with 404; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers.get(self.path.partition("?")[0], (404, ""))
            if certificate is not None and self.headers["Authorization"] != "Bearer the-token":
                status = 401
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


API = {f"/apis/rljob.dev/v1alpha1/{path}": (200, "{}") for path in ("rljobs", "namespaces/team-a/rljobs")}
OPERATOR = {"/healthz": (200, "{}"), "/metrics": (200, "rljob_operator_leader 1.0\n")}


@pytest.mark.parametrize(
    ("namespaces", "changed", "words"),
    [
        ("", {}, []),
        ("team-a", {}, []),
        ("team-b", {}, ["crds.install", "rbac.create", "404"]),
        ("", {"/apis/rljob.dev/v1alpha1/rljobs": (403, "")}, ["crds.install", "rbac.create", "403"]),
        ("", {"/healthz": (500, "")}, ["the operator is not well", "see its log"]),
        ("", {"/metrics": (404, "")}, ["metrics can't be read", "NetworkPolicy"]),
        ("", {"/metrics": (200, "up 1\n")}, ["rljob_operator_leader", "is this its Service?"]),
    ],
    ids=["all namespaces", "its own", "another", "no right", "not well", "no metrics", "not the operator"],
)
def test_it_says_what_is_wrong(
    namespaces: str, changed: dict[str, tuple[int, str]], words: list[str], tmp_path: Path
) -> None:
    authority = Authority.create(tmp_path)
    pair = authority.serving("api", ["127.0.0.1"])
    (tmp_path / "token").write_text("the-token\n", encoding="utf-8")
    with serving({**API, **changed}, (pair.cert, pair.key)) as api, serving({**OPERATOR, **changed}) as operator:
        env = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(api),
            "OPERATOR": "127.0.0.1",
            "HEALTH_PORT": str(operator),
            "METRICS_PORT": str(operator),
            "NAMESPACES": namespaces,
        }
        wanted = {e["name"] for e in of_kind("defaults", "Pod")[0]["spec"]["containers"][0]["env"]}
        assert wanted | {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} == set(env)
        done = subprocess.run(
            [sys.executable, "-I", "-c", PROGRAM.replace(ACCOUNT, str(tmp_path))],
            env=env, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert (done.returncode == 0) == (not words), done.stderr
    assert done.stdout.count("ok:") == 3 if not words else "FAILED" in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_the_pod_runs_this_program() -> None:
    (argument,) = of_kind("defaults", "Pod")[0]["spec"]["containers"][0]["args"]
    assert argument.strip() == PROGRAM.strip()
