"""An operator of some namespaces does not follow CRDs, so it has to be sure at its start that there are RLJobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rljob_operator.cluster import RLJOBS, ClusterError, Json
from rljob_operator.handlers import check_served


class Answering:
    """An API server that answers a list of RLJobs with an error, or with none of them."""

    def __init__(self, error: ClusterError | None) -> None:
        self._error = error
        self.asked: list[tuple[Any, ...]] = []

    async def close(self) -> None:
        self.asked.append(("close",))

    async def page(self, *question: Any) -> Json:
        self.asked.append(question)
        if self._error is not None:
            raise self._error
        return {"items": []}


async def test_without_the_crd_it_ends_with_what_to_do() -> None:
    missing = Answering(ClusterError(404, "NotFound", "the server could not find the requested resource"))
    with pytest.raises(SystemExit, match="apply the CRDs in crds/"):
        await check_served(missing, "team-a")  # type: ignore[arg-type]
    assert missing.asked == [(RLJOBS, "team-a", 1, ""), ("close",)]


@pytest.mark.parametrize("error", [None, ClusterError(403, "Forbidden", "no"), ClusterError(0, "Unreachable", "no")])
async def test_whatever_else_it_meets_is_for_the_watches(error: ClusterError | None) -> None:
    await check_served(Answering(error), "team-a")  # type: ignore[arg-type]


def test_the_process_ends_and_says_so(tmp_path: Path) -> None:
    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "c",
            }
            (tmp_path / "config").write_text(json.dumps(config), encoding="utf-8")
            env = {**os.environ, "KUBECONFIG": str(tmp_path / "config"), "RLJOB_OPERATOR_NAMESPACES": "team-a"}
            command = [sys.executable, "-m", "rljob_operator"]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
        finally:
            server.shutdown()
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "rljob-operator: the API server has no RLJobs: apply the CRDs in crds/"
    )
