"""A server that speaks as the API server does of RLJobs: get, list, watch, merge patch; over real HTTP, for the real client."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

Json = dict[str, Any]

ROOT = "/apis/rljob.dev/v1alpha1"


class RLJobApi:
    """The jobs of a namespace called ``rl``; what changes them tells those who watch."""

    def __init__(self) -> None:
        self.version = 100
        self.jobs: dict[str, Json] = {}
        self.events: list[tuple[int, str, Json]] = []
        self.patches: list[Json] = []
        self.managers: list[str] = []
        self.changed = threading.Condition()
        self.closing = False
        self.reacts: Callable[[RLJobApi, Json], None] = lambda api, job: None
        """What an operator does about a job that somebody has patched."""
        self.forbidden = False
        self.breaks_watches = 0
        """How many watches are cut off as soon as they begin."""

    def put(self, job: Json) -> Json:
        """Writes a job as it is given."""
        with self.changed:
            known = job["metadata"]["name"] in self.jobs
            self.version += 1
            job = json.loads(json.dumps(job))
            job["metadata"]["resourceVersion"] = str(self.version)
            self.jobs[job["metadata"]["name"]] = job
            self.events.append((self.version, "MODIFIED" if known else "ADDED", job))
            self.changed.notify_all()
        return job

    def status(self, name: str, **status: Any) -> None:
        """Sets fields of a job's status; None takes one off."""
        job = json.loads(json.dumps(self.jobs[name]))
        job["status"] = _merged(job.get("status") or {}, status)
        self.put(job)

    def remove(self, name: str) -> None:
        """Deletes a job."""
        with self.changed:
            self.version += 1
            self.events.append((self.version, "DELETED", self.jobs.pop(name)))
            self.changed.notify_all()

    def patch(self, name: str, patch: Json) -> Json:
        """A merge patch, as somebody's client sends it."""
        self.patches.append(patch)
        before = self.jobs[name]
        job = _merged(before, patch)
        if job["spec"] != before["spec"]:
            job["metadata"]["generation"] = int(before["metadata"].get("generation", 1)) + 1
        return self.put(job)


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found


def _handler(api: RLJobApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            parts = url.path.removeprefix(ROOT).strip("/").split("/")
            if api.forbidden:
                self._answer(
                    403,
                    {"kind": "Status", "reason": "Forbidden", "message": "rljobs is forbidden: ask for the view role"},
                )
            elif len(parts) == 4:
                job = api.jobs.get(parts[3])
                self._answer(
                    404 if job is None else 200, job or {"kind": "Status", "reason": "NotFound", "message": "no"}
                )
            elif query.get("watch"):
                self._watch(int(query["resourceVersion"]))
            else:
                with api.changed:
                    items = [
                        {k: v for k, v in job.items() if k not in ("kind", "apiVersion")} for job in api.jobs.values()
                    ]
                    self._answer(200, {"metadata": {"resourceVersion": str(api.version)}, "items": items})

        def do_PATCH(self) -> None:
            url = urlsplit(self.path)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            api.managers.append(parse_qs(url.query)["fieldManager"][0])
            job = api.patch(url.path.rpartition("/")[2], body)
            self._answer(200, job)
            api.reacts(api, job)

        def do_POST(self) -> None:
            assert self.path.endswith("/selfsubjectreviews")
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(201, {"status": {"userInfo": {"username": "anna"}}})

        def _watch(self, since: int) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if api.breaks_watches:
                api.breaks_watches -= 1
                return
            told = since
            while True:
                with api.changed:
                    api.changed.wait_for(lambda seen=told: api.closing or api.version > seen, timeout=5.0)
                    if api.closing:
                        return
                    news = [event for event in api.events if event[0] > told]
                for version, kind, job in news:
                    told = version
                    try:
                        self.wfile.write(json.dumps({"type": kind, "object": job}).encode() + b"\n")
                        self.wfile.flush()
                    except OSError:
                        return

        def _answer(self, code: int, value: Json) -> None:
            body = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def serving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RLJobApi]:
    """A server, and a kubeconfig in force that names it."""
    api = RLJobApi()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(api))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "rl"}}],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(file))
    # The client reads the variable when it is imported, which another test may have caused.
    from kubernetes.aio.config import kube_config

    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    try:
        yield api
    finally:
        with api.changed:
            api.closing = True
            api.changed.notify_all()
        server.shutdown()
        thread.join()
        server.server_close()
