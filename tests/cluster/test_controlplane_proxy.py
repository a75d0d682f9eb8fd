"""The proxy in front of the API server: each fault does what it says, to the client and to the cluster."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.controlplane import ControlPlane
from dev.controlplane.proxy import Fault, Proxy, Rule, effective
from tests.cluster.rig import eventually, install

Json = dict[str, Any]


class Client:
    """A client of the API server that creates ConfigMaps through the proxy."""

    def __init__(self, url: str, token: str, namespace: str) -> None:
        self._address = urllib.parse.urlsplit(url).netloc
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"

    def send(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json, str | None]:
        """Status, answer and Retry-After."""
        connection = http.client.HTTPConnection(self._address, timeout=20)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self._headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), answer.headers.get("Retry-After")
        finally:
            connection.close()

    def create(self, name: str) -> tuple[int, Json, str | None]:
        return self.send("POST", self._path, {"metadata": {"name": name}})

    def watch(self, seen: list[str]) -> None:
        """Reads a watch to its end, however that comes."""
        connection = http.client.HTTPConnection(self._address, timeout=20)
        try:
            connection.request("GET", f"{self._path}?watch=true", headers=self._headers)
            answer = connection.getresponse()
            while line := answer.readline():
                seen.append(json.loads(line)["object"]["metadata"]["name"])
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
            seen.append("end")


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Path:
    return install(plane)


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[Proxy]:
    with Proxy.start(plane.server, plane.ca_file) as running:
        yield running


@pytest.fixture
def client(proxy: Proxy, account: Path, namespace: str) -> Client:
    token = yaml.safe_load(account.read_text())["users"][0]["user"]["token"]
    return Client(proxy.add_client("client"), token, namespace)


def exists(plane: ControlPlane, namespace: str, name: str) -> bool:
    return plane.kubectl("get", "cm", name, "-n", namespace, check=False).returncode == 0


def test_refusals_and_lost_requests_change_nothing_and_a_lost_answer_hides_a_change(
    plane: ControlPlane, namespace: str, proxy: Proxy, client: Client
) -> None:
    assert client.create("plain")[0] == 201
    for fault, status in ((Fault.CONFLICT, 409), (Fault.THROTTLED, 429), (Fault.ERROR, 500)):
        proxy.rules = (Rule(fault, 1.0, seconds=3.0),)
        found, answer, retry_after = client.create(fault.value)
        assert (found, answer["code"]) == (status, status)
        assert retry_after == ("3" if fault is Fault.THROTTLED else None)
        assert not exists(plane, namespace, fault.value)
    for fault in (Fault.LOST_BEFORE, Fault.LOST_AFTER):
        proxy.rules = (Rule(fault, 1.0),)
        with pytest.raises((OSError, http.client.HTTPException)):
            client.create(fault.value)
    assert not exists(plane, namespace, "lost-before")
    assert exists(plane, namespace, "lost-after")
    assert [w.status for w in proxy.writes("client")] == [201, None, None, None, None, 201]
    assert [w.body["metadata"]["name"] for w in effective(proxy.writes())] == ["plain", "lost-after"]


def test_rules_fit_what_they_name(proxy: Proxy, client: Client) -> None:
    proxy.rules = (
        Rule(Fault.ERROR, 1.0, client="somebody else"),
        Rule(Fault.ERROR, 1.0, path="/secrets"),
        Rule(Fault.ERROR, 1.0, frozenset({"DELETE"})),
        Rule(Fault.ERROR, 0.0),
    )
    assert client.create("untouched")[0] == 201
    assert not any(proxy.faults.values())


def test_what_is_held_back_is_passed_on_later(
    plane: ControlPlane, namespace: str, proxy: Proxy, client: Client
) -> None:
    proxy.hold("client", "configmaps")
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(client.create("held")[0]))
    thread.start()
    eventually(lambda: len(proxy.held("client")) == 1, "it is on its way")
    assert client.send("GET", f"/api/v1/namespaces/{namespace}/configmaps")[0] == 200, "reads go on"
    assert not exists(plane, namespace, "held")
    proxy.release("client")
    thread.join(timeout=20)
    assert answers == [201]
    assert exists(plane, namespace, "held")


def test_watches_are_passed_through_until_they_are_cut(proxy: Proxy, client: Client) -> None:
    proxy.rules = (Rule(Fault.CUT_WATCH, 1.0, frozenset({"GET"}), seconds=3.0),)
    seen: list[str] = []
    thread = threading.Thread(target=client.watch, args=(seen,))
    thread.start()
    eventually(lambda: "kube-root-ca.crt" in seen, "the watch begins")
    client.create("late")
    eventually(lambda: "late" in seen, "what changes is seen")
    thread.join(timeout=20)
    assert seen[-1] == "end"


def test_a_client_that_is_cut_off_reaches_nothing(proxy: Proxy, client: Client) -> None:
    seen: list[str] = []
    thread = threading.Thread(target=client.watch, args=(seen,))
    thread.start()
    eventually(lambda: seen, "the watch begins")
    proxy.cut_off("client")
    thread.join(timeout=20)
    assert seen[-1] == "end"
    with pytest.raises((OSError, http.client.HTTPException)):
        client.create("nowhere")
    proxy.reconnect("client")
    assert client.create("again")[0] == 201
