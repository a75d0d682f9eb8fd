"""The node of processes, part by part: environment, volumes, probes, status and names of Services."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dev.processes.environment import ConfigError, command_of, environment, expand, field, moved
from dev.processes.names import table
from dev.processes.probes import port_of, tally
from dev.processes.status import ContainerState, pod_phase, pod_status
from dev.processes.volumes import Volumes, write_at_once

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}},
    "spec": {"nodeName": "here", "containers": [{"name": "c", "image": "i"}]},
    "status": {"podIP": "127.3.0.2", "hostIP": "127.0.0.1"},
}


async def nothing_there(kind: str, name: str, optional: bool) -> Mapping[str, str]:
    if optional:
        return {}
    raise ConfigError(f"{kind[:-1]} {name} is not there")


async def no_token(_pod: Any, _source: Any) -> str:
    return "token"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(B)", "1-$(B)"),
        ("$$(A) $(A)", "$(A) 1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$()", "$()"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


async def test_a_variable_sees_those_before_it_alone() -> None:
    container = {
        "env": [
            {"name": "LATE", "value": "$(URL)"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "URL", "value": "http://$(IP):8000"},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "k", "optional": True}}},
        ]
    }
    found = await environment(POD, container, nothing_there)
    assert found == {"LATE": "$(URL)", "IP": "127.3.0.2", "URL": "http://127.3.0.2:8000", "LABEL": "b"}


async def test_variables_of_config_maps_and_secrets() -> None:
    async def lookup(kind: str, name: str, _optional: bool) -> Mapping[str, str]:
        return {"configmaps": {"k": f"from {name}"}, "secrets": {"s": "hidden"}}[kind]

    container = {
        "envFrom": [{"configMapRef": {"name": "m"}, "prefix": "P_"}],
        "env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "x", "key": "s"}}}],
    }
    assert await environment(POD, container, lookup) == {"P_k": "from m", "S": "hidden"}
    container["env"][0]["valueFrom"]["secretKeyRef"]["key"] = "t"  # type: ignore[index]
    with pytest.raises(ConfigError, match="secret x has no key t"):
        await environment(POD, container, lookup)


def test_an_unknown_field_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"no field status.phase: known are metadata.name.*labels"):
        field(POD, "status.phase")


def test_a_container_without_a_command_is_refused() -> None:
    with pytest.raises(ConfigError, match="write the container's command"):
        command_of({"name": "c", "image": "vllm"}, {})
    assert command_of({"command": ["a"], "args": ["$(X)"]}, {"X": "1"}) == ["a", "1"]


def test_paths_of_mounts_are_replaced_once_and_nothing_that_only_looks_like_them() -> None:
    mounts = [("/etc", "/real/etc/rljob"), ("/etc/rljob/", "/real/layout"), ("/same", "/same")]
    assert moved("/etc/rljob", mounts) == "/real/layout"
    assert moved("--layout=/etc/rljob/layout.json", mounts) == "--layout=/real/layout/layout.json"
    assert moved("/etc/rljob2:/etc/x:/same/y", mounts) == "/real/etc/rljob/rljob2:/real/etc/rljob/x:/same/y"
    assert moved("/usr/etc/rljob etc/rljob", mounts) == "/usr/etc/rljob etc/rljob"
    assert moved("anything", []) == "anything"


def test_mounted_files_change_all_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    write_at_once(folder, {"a": "1", "b": "1"})
    first = (folder / "..data").resolve()
    assert (folder / "a").read_text() == "1"
    assert os.readlink(folder / "a") == "..data/a"
    with (folder / "a").open() as opened:
        write_at_once(folder, {"a": "2", "c": "2"})
        assert opened.read() == "1", "whoever has a file open reads it to its end"
    assert {path.name for path in folder.iterdir() if not path.name.startswith("..")} == {"a", "c"}
    assert (folder / "a").read_text() == "2"
    assert not first.exists()


async def test_volumes_follow_their_config_map(tmp_path: Path) -> None:
    data = {"layout.json": "1"}

    async def lookup(_kind: str, _name: str, _optional: bool) -> Mapping[str, str]:
        return dict(data)

    pod = {
        **POD,
        "spec": {
            "volumes": [
                {"name": "layout", "configMap": {"name": "m"}},
                {"name": "scratch", "emptyDir": {}},
                {"name": "host", "hostPath": {"path": str(tmp_path)}},
                {"name": "all", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token"}},
                    {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
                ]}},
            ]
        },
    }  # fmt: skip
    volumes = Volumes(pod, tmp_path / "volumes", lookup, no_token)
    await volumes.refresh(pod)
    container = {
        "volumeMounts": [
            {"name": "layout", "mountPath": "/etc/rljob"},
            {"name": "scratch", "mountPath": "/scratch", "subPath": "deep/er"},
            {"name": "host", "mountPath": "/host"},
            {"name": "all", "mountPath": "/all"},
        ]
    }
    layout, scratch, host, everything = (Path(here) for _, here in volumes.mounts(container))
    assert (layout / "layout.json").read_text() == "1"
    assert scratch.is_dir()
    assert host == tmp_path
    assert ((everything / "token").read_text(), (everything / "ns").read_text()) == ("token", "n")
    before = (layout / "..data").resolve()
    await volumes.refresh(pod)
    assert (layout / "..data").resolve() == before, "nothing has changed, so nothing is written"
    data["layout.json"] = "2"
    await volumes.refresh(pod)
    assert (layout / "layout.json").read_text() == "2"


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"name": "v", "configMap": {"name": "m"}}, "configmap m is not there"),
        ({"name": "v", "nfs": {"server": "x", "path": "/"}}, "volume v: this node knows no nfs"),
    ],
)
async def test_a_volume_that_can_not_be_had_is_named(volume: dict[str, Any], message: str, tmp_path: Path) -> None:
    pod = {**POD, "spec": {"volumes": [volume]}}
    with pytest.raises(ConfigError, match=message):
        await Volumes(pod, tmp_path, nothing_there, no_token).refresh(pod)


async def test_a_host_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    pod = {**POD, "spec": {"volumes": [{"name": "v", "hostPath": {"path": "/not/there"}}]}}
    volumes = Volumes(pod, tmp_path, nothing_there, no_token)
    await volumes.refresh(pod)
    with pytest.raises(ConfigError, match="/not/there is not there"):
        volumes.mounts({"volumeMounts": [{"name": "v", "mountPath": "/x"}]})


def test_a_probe_changes_its_mind_after_enough_answers_in_a_row() -> None:
    counted = tally({"failureThreshold": 2, "successThreshold": 2})
    assert [counted.take(s) for s in (True, False, True, True)] == [None, None, None, True]
    assert [counted.take(s) for s in (False, True, False, False)] == [True, True, True, False]


def test_ports_by_name() -> None:
    container = {"name": "c", "ports": [{"name": "http", "containerPort": 8000}]}
    assert (port_of(1, container), port_of("http", container)) == (1, 8000)
    with pytest.raises(ValueError, match="container c has no port called x"):
        port_of("x", container)


def state(**fields: Any) -> ContainerState:
    return ContainerState("c", "i", **{"waiting": None, **fields})


def test_phases() -> None:
    waits = ContainerState("c", "i")
    assert pod_phase([], [waits]) == "Pending"
    assert pod_phase([state(exit_code=1)], [waits]) == "Failed"
    assert pod_phase([state(exit_code=0)], [state(pid=1), waits]) == "Running"
    assert pod_phase([], [state(waiting=("CrashLoopBackOff", ""), restarts=1)]) == "Running"
    assert pod_phase([], [state(exit_code=0), state(exit_code=0)]) == "Succeeded"
    assert pod_phase([], [state(exit_code=0), state(exit_code=137)]) == "Failed"


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in status["conditions"]}


def test_a_pod_is_ready_when_its_containers_and_gates_are() -> None:
    up = state(pid=1, started=True, ready=True)
    status = pod_status(POD, [], [up], "127.3.0.2", "t")
    assert (conditions(status)["Ready"], status["podIP"], status["phase"]) == ("True", "127.3.0.2", "Running")
    assert status["containerStatuses"][0]["containerID"] == "process://1"
    unready = pod_status(POD, [], [up, state(pid=2)], "127.3.0.2", "t")
    assert conditions(unready)["Ready"] == "False"
    gated = {**POD, "spec": {**POD["spec"], "readinessGates": [{"conditionType": "x/y"}]}}
    status = pod_status(gated, [], [up], "127.3.0.2", "t")
    assert (conditions(status)["ContainersReady"], conditions(status)["Ready"]) == ("True", "False")
    sidecar = state(pid=1, sidecar=True)
    assert conditions(pod_status(POD, [sidecar], [up], "127.3.0.2", "t"))["Initialized"] == "False"


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    old = {"type": "Ready", "status": "True", "lastTransitionTime": "before"}
    pod = {**POD, "status": {"conditions": [old]}}
    up = state(pid=1, started=True, ready=True)
    found = {c["type"]: c for c in pod_status(pod, [], [up], "127.3.0.2", "t")["conditions"]}
    assert found["Ready"]["lastTransitionTime"] == "before"
    found = {c["type"]: c for c in pod_status(pod, [], [state(pid=1)], "127.3.0.2", "t")["conditions"]}
    assert found["Ready"]["lastTransitionTime"] != "before"


def test_names_of_services_stand_for_their_pods() -> None:
    def pod(name: str, address: str, ready: bool, **fields: Any) -> dict[str, Any]:
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        return {
            "metadata": {"name": name, "namespace": "n", "labels": {"app": "t"}, **fields.pop("metadata", {})},
            "spec": fields,
            "status": {"podIP": address, "phase": "Running", "conditions": [condition]},
        }

    def service(name: str, **spec: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "n"}, "spec": {"selector": {"app": "t"}, **spec}}

    pods = [
        pod("t-0", "127.3.0.9", True, hostname="t-0", subdomain="all"),
        pod("t-1", "127.3.0.3", False),
        pod("t-2", "127.3.0.4", True, metadata={"deletionTimestamp": "now"}),
        {"metadata": {"name": "waits", "namespace": "n", "labels": {"app": "t"}}, "spec": {}},
    ]
    services = [service("all", publishNotReadyAddresses=True), service("ready"), service("none", selector=None)]
    assert table(services, pods) == {
        "all.n": ["127.3.0.3", "127.3.0.4", "127.3.0.9"],
        "t-0.all.n": ["127.3.0.9"],
        "ready.n": ["127.3.0.9"],
    }


async def test_python_in_a_container_finds_services(tmp_path: Path) -> None:
    from dev.processes.names import INSIDE

    file = tmp_path / "names.json"
    file.write_text('{"trainers.n": ["127.3.0.9"], "empty.n": []}')
    code = """
import socket
print(socket.getaddrinfo("trainers.n.svc", 29500, type=socket.SOCK_STREAM)[0][4], socket.gethostbyname("trainers.n.svc.cluster.local"))
print(socket.gethostbyname("127.0.0.1"))
try:
    socket.getaddrinfo("empty.n", 1)
except socket.gaierror as error:
    print(error)
"""
    import sys

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(INSIDE), "RLJOB_DEV_NAMES": str(file), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    out, _ = await process.communicate()
    first, second, third = out.decode().splitlines()
    assert first == "('127.3.0.9', 29500) 127.3.0.9"
    assert second == "127.0.0.1"
    assert "no pod of empty.n has an address" in third
