"""Where a server listens, and how a shell starts it: what templates show of it, and what they hide."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.engines import SGLANG, VLLM
from rljob_operator.server_command import Form, known_port, server_of, serving_port

Json = dict[str, Any]

PORT = {"env": [{"name": "PORT", "value": "9000"}]}
HIDDEN_PORT = {"env": [{"name": "PORT", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['port']"}}}]}


def container(*args: str, ports: tuple[int, ...] = (), **more: Any) -> Json:
    """A server of an image, by its arguments."""
    declared = {"ports": [{"containerPort": port} for port in ports]} if ports else {}
    return {"name": "v", "image": "vllm/vllm-openai:v0.33.0", "args": ["m", *args], **declared, **more}


def shell(
    text: str, *args: str, command: tuple[str, ...] = ("sh", "-c"), ports: tuple[int, ...] = (), **more: Any
) -> Json:
    declared = {"ports": [{"containerPort": port} for port in ports]} if ports else {}
    return {"name": "v", "image": "x", "command": [*command, text, *args], **declared, **more}


@pytest.mark.parametrize(
    ("of", "url", "probe"),
    [
        (container(), 8000, 8000),
        (container("--port", "9001"), 9001, 9001),
        (container("--port=9001", "--port", "9002"), 9002, 9002),
        # Variables, as the kubelet fills them in.
        (container("--port", "$(PORT)", **PORT), 9000, 9000),
        (container("--port=$(PORT)1", env=[{"name": "P", "value": "80"}, {"name": "PORT", "value": "$(P)"}]), 801, 801),
        (container("--port", "$$(PORT)", **PORT), 8000, None),
        (container("--port", "$(PORT)"), 8000, None),
        (container("--port", "$(PORT)", **HIDDEN_PORT), 8000, None),
        (container("--port", "$(PORT)", ports=(9000, 9100), **HIDDEN_PORT), 9000, 9000),
        (container("--port"), 8000, None),
        # What the template declares, and what its arguments say.
        (container(ports=(5678, 8000)), 8000, 8000),
        (container("--port=9000", ports=(5678, 9000)), 9000, 9000),
        (container("--port=9000", ports=(5678,)), 5678, None),
        (container(ports=(9100,)), 9100, None),
        # A file may say it, unless an argument does.
        (container("--config=/etc/c.yaml"), 8000, None),
        (container("--config=/etc/c.yaml", ports=(9000,)), 9000, 9000),
        (container("--config=/etc/c.yaml", "--port=9000"), 9000, 9000),
        # Nobody outside is answered.
        (container("--uds=/run/s"), 8000, None),
        (container("--host=::1", ports=(9000,)), 9000, None),
        # A port beside the server's.
        (container(ports=(8000,)) | {"ports": [{"name": "metrics", "containerPort": 9100}]}, 8000, 8000),
        ({"image": "x", "ports": [{"name": "metrics", "containerPort": 9100}]}, 8000, None),
        ({"image": "x", "ports": [{"name": "metrics", "containerPort": 9100}, {"containerPort": 9000}]}, 9000, None),
        # Whatever serves there, it is not seen.
        ({"name": "c", "image": "x", "ports": [{"containerPort": 9000}]}, 9000, None),
        ({"name": "c", "image": "x"}, 8000, None),
        # Text for a shell.
        (shell("exec vllm serve m"), 8000, 8000),
        (shell('exec vllm serve m "$@"', "--", "--port", "9001"), 9001, 9001),
        (shell("exec vllm serve m $*", "sh", "--port=9001"), 9001, 9001),
        (shell("exec vllm serve m --port $1", "sh", "9001"), 9001, 9001),
        (shell('exec vllm serve m "$@"'), 8000, 8000),
        (shell("vllm serve m --port $PORT", **PORT), 9000, 9000),
        (shell("vllm serve m --port ${PORT}", **PORT), 9000, 9000),
        (shell("vllm serve m --port $(PORT)", **PORT), 9000, 9000),
        (shell("vllm serve m --port ${PORT:-9001}", **PORT), 9000, 9000),
        (shell("vllm serve m --port ${PORT:-9001}"), 9001, 9001),
        (shell("vllm serve m --port ${PORT:-9001}", envFrom=[{"configMapRef": {"name": "x"}}]), 8000, None),
        (shell("vllm serve m --port ${PORT:-9001}", **HIDDEN_PORT), 8000, None),
        (shell("vllm serve m --port $PORT"), 8000, None),
        (shell("PORT=$((8000 + 1)); vllm serve m --port $PORT", **PORT), 8000, None),
        (shell("read PORT < /x; vllm serve m --port $PORT", **PORT), 8000, None),
        (shell("vllm serve m $MORE", env=[{"name": "MORE", "value": "--dtype half --port 9001"}]), 9001, 9001),
        # Ports of others in the same text.
        (shell("proxy --port 9000 & exec vllm serve m --host 0.0.0.0"), 8000, 8000),
        (shell("vllm serve m --port 9001 & proxy --port 9000"), 9001, 9001),
        (shell("vllm serve m\nproxy --port 9000"), 8000, 8000),
        (shell("vllm serve m \\\n  --port 9001 \\\n  && echo --port 2"), 9001, 9001),
        (shell("vllm serve m;proxy --port 9000"), 8000, 8000),
    ],
)
def test_a_port_is_what_the_template_shows(of: Json, url: int, probe: int | None) -> None:
    assert serving_port(of, VLLM) == url
    assert known_port(of, VLLM) == probe


def test_a_server_that_listens_to_its_own_container_unless_told_otherwise() -> None:
    words = {"name": "s", "image": "x", "command": ["sglang", "serve"]}
    assert known_port(words, SGLANG) == 30000, "since the operator tells it"
    assert known_port({**words, "args": ["--config=/c"], "ports": [{"containerPort": 1}]}, SGLANG) is None
    assert known_port(shell("sglang serve m --port 1"), SGLANG) is None
    assert known_port(shell("sglang serve m --port 1 --host 0.0.0.0"), SGLANG) == 1


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        (("bash", "-euo", "pipefail", "-c"), True),
        (("bash", "-e", "-o", "pipefail", "-xc"), True),
        (("bash", "-ceuo", "pipefail"), True),
        (("bash", "-c", "-e"), True),
        (("bash", "+o", "history", "-c"), True),
        (("bash", "-O", "extglob", "-c"), True),
        (("/bin/bash", "--noprofile", "--rcfile", "/x", "-lc"), True),
        (("env", "A=b", "bash", "-c", "--"), True),
        (("bash", "-euo", "pipefail"), False),
        (("bash", "-o", "c"), False),
        (("bash", "-"), False),
    ],
)
def test_the_options_of_a_shell_are_told_from_its_text(command: tuple[str, ...], seen: bool) -> None:
    of = shell("vllm serve m", command=command)
    assert server_of(of, VLLM).form is (Form.SHELL if seen else Form.HIDDEN)


def test_a_wrapper_is_taken_for_one_that_starts_what_it_is_given() -> None:
    of = {
        "name": "v",
        "image": "x",
        "command": ["/bin/sh", "/run.sh", "--port", "1", "vllm", "serve", "m"],
        "args": ["--port=2"],
    }
    server = server_of(of, VLLM)
    assert (server.form, server.words) == (Form.ARGUMENTS, ("vllm", "serve", "m", "--port=2"))


@pytest.mark.parametrize("env", ["x", [1, None], [{}], [{"name": "A", "value": None}], {"name": "A"}])
def test_variables_that_can_not_be_read_are_none(env: Any) -> None:
    assert known_port(container(env=env), VLLM) == 8000
