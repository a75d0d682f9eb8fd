"""What sampler pods get where the template leaves it out: visible servers, hidden ones, text for a shell, and everything written otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.children import sampler_workload, services
from rljob_operator.engines import SGLANG, VLLM
from rljob_operator.layout import endpoints_of
from rljob_operator.server_command import Form, server_of, serving_port, version_of
from rljob_operator.serving import hook_s
from rljob_operator.template import TemplateError, pod_template, template_notes
from rljob_planner.api.spec import RLJob
from rljob_planner.split import Split
from tests.operator.objects import SPLIT, job

Json = dict[str, Any]

OFFICIAL = {"name": "vllm", "image": "vllm/vllm-openai:v0.33.0", "args": ["--model=m"]}
NARROW = SPLIT.model_copy(
    update={"samplers": SPLIT.samplers.model_copy(update={"gpus_per_replica": 1, "tensor_parallel": 1})}
)


def job_of(container: Json, pod: Json | None = None, metadata: Json | None = None, **sampler: Any) -> RLJob:
    template: Json = {"spec": {"containers": [container], **(pod or {})}}
    if metadata:
        template["metadata"] = metadata
    return job(sampler={"template": template, **sampler})


def made(container: Json, pod: Json | None = None, *, split: Split = NARROW, **sampler: Any) -> Json:
    return pod_template(job_of(container, pod, **sampler), "sampler", split)


def first(template: Json) -> Json:
    return dict(template["spec"]["containers"][0])


# --- what is visible ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("container", "form"),
    [
        ({"image": "vllm/vllm-openai:v0.33.0"}, Form.ARGUMENTS),
        ({"image": "mirror.example/x/vllm-openai-rocm@sha256:0"}, Form.ARGUMENTS),
        ({"image": "registry:5000/vllm-openai", "args": ["--model", "m"]}, Form.ARGUMENTS),
        ({"image": "vllm/vllm-openai:v0.33.0", "command": ["ray", "start"]}, Form.HIDDEN),
        ({"image": "vllm/vllm-openai:v0.33.0", "command": ["/start.sh"]}, Form.HIDDEN),
        ({"image": "x", "command": ["vllm", "serve", "m"]}, Form.ARGUMENTS),
        ({"image": "x", "command": ["/venv/bin/vllm"], "args": ["serve", "m"]}, Form.ARGUMENTS),
        ({"image": "x", "args": ["vllm", "serve", "m"]}, Form.ARGUMENTS),
        ({"image": "x", "command": ["uv", "run", "vllm", "serve", "m"]}, Form.ARGUMENTS),
        ({"image": "x", "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]}, Form.ARGUMENTS),
        ({"image": "x", "command": ["python", "-m", "vllm.entrypoints.cli.main", "serve", "/m"]}, Form.ARGUMENTS),
        ({"image": "x", "command": ["python", "-m", "vllm.entrypoints.cli.main", "bench"]}, Form.HIDDEN),
        ({"image": "x", "command": ["vllm", "bench", "serve"]}, Form.HIDDEN),
        ({"image": "x", "command": ["sh", "-c", "exec vllm serve m"]}, Form.SHELL),
        ({"image": "x", "command": ["/bin/bash", "-ec"], "args": ["sleep 1\nvllm \\\n  serve m"]}, Form.SHELL),
        ({"image": "x", "command": ["/usr/bin/env", "bash", "-lc", "cd /x && vllm serve m"]}, Form.SHELL),
        ({"image": "x", "command": ["bash", "start.sh", "-c", "vllm serve m"]}, Form.HIDDEN),
        ({"image": "x", "command": ["sh", "-c", "ray start --block  # not vllm serve"]}, Form.HIDDEN),
        ({"image": "x", "command": ["sh", "-c", "vllm serve 'unbalanced"]}, Form.SHELL),
        ({"image": "x"}, Form.HIDDEN),
        ({"image": "registry.example/my-vllm:1"}, Form.HIDDEN),
    ],
)
def test_how_a_server_is_started_is_seen(container: Json, form: Form) -> None:
    assert server_of(container, VLLM).form is form
    assert server_of(container, SGLANG).form is Form.HIDDEN


def test_a_hidden_server_gets_nothing_but_time_to_end() -> None:
    for container in (
        {"name": "c", "image": "x"},
        {"name": "c", "image": "x", "command": ["uv", "run", "inference"], "ports": [{"containerPort": 8000}]},
        {"name": "c", "image": "x", "command": ["/bin/bash", "-ec"], "args": ["exec ray start --block"]},
    ):
        of = job_of(container, drainTimeout="90s")
        template = pod_template(of, "sampler", SPLIT)
        assert template == pod_template(of, "sampler", SPLIT, bare=True)
        assert template["spec"]["terminationGracePeriodSeconds"] == 120
        assert "annotations" not in template["metadata"]
        assert not {"readinessProbe", "startupProbe", "lifecycle"} & set(first(template))


# --- what is added --------------------------------------------------------------------------------------------------------


def test_a_template_of_image_and_model_is_enough_for_vllm() -> None:
    template = made(OFFICIAL, split=SPLIT, drainTimeout="10m")
    container = first(template)
    assert container["args"] == [
        "--model=m",
        "--max-num-seqs=$(RLJOB_MAX_RUNNING)",
        "--tensor-parallel-size=$(RLJOB_TENSOR_PARALLEL)",
        "--shutdown-timeout=600",
    ]
    assert container["ports"] == [{"name": "http", "containerPort": 8000, "protocol": "TCP"}]
    get = {"path": "/health", "port": 8000, "scheme": "HTTP"}
    assert container["readinessProbe"] == {"httpGet": get, "timeoutSeconds": 10, "periodSeconds": 5}
    start = container["startupProbe"]
    assert start["httpGet"] == get
    assert start["periodSeconds"] * start["failureThreshold"] == 2 * 3600, "time to load the largest models"
    assert "livenessProbe" not in container, "a busy engine must not be killed, and a dead one's server exits by itself"
    assert container["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert template["spec"]["terminationGracePeriodSeconds"] == 5 + 600 + 30
    assert template["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "8000",
        "prometheus.io/path": "/metrics",
    }


def test_the_server_ends_within_the_grace_period() -> None:
    """preStop + shutdown timeout + what vLLM takes to exit, in all ways in which each may be stated or left out."""
    for stated in (None, 20, 60, 900):
        for hook in ({}, {"lifecycle": {"preStop": {"sleep": {"seconds": 7}}}}):
            pod = {} if stated is None else {"terminationGracePeriodSeconds": stated}
            template = made({**OFFICIAL, **hook}, pod, drainTimeout="2m")
            container, grace = first(template), template["spec"]["terminationGracePeriodSeconds"]
            timeout = int(next(a for a in container["args"] if a.startswith("--shutdown")).partition("=")[2])
            assert (hook_s(container) or 0) + timeout + 10 <= grace
            if stated is None:
                assert timeout == 120
            else:
                assert grace == stated


def test_a_grace_period_without_room_gets_neither_hook_nor_timeout() -> None:
    template = made(OFFICIAL, {"terminationGracePeriodSeconds": 5})
    assert "lifecycle" not in first(template)
    assert not any(a.startswith("--shutdown-timeout") for a in first(template)["args"])


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (["sleep", "15"], 15),
        (["/bin/sleep", "15"], 15),
        (["python", "-m", "rljob_runtime", "drain", "--url", "http://127.0.0.1:8000", "--deadline", "90s"], 90),
        (["sh", "-c", "python -m rljob_runtime drain --deadline=2m"], 120),
        (["python", "-m", "rljob_runtime", "drain"], None),
        (["python", "-m", "rljob_runtime", "drain", "--deadline", "soon"], None),
        (["/drain.sh"], None),
    ],
)
def test_a_hook_of_ones_own_is_kept_and_its_time_counted(words: list[str], seconds: float | None) -> None:
    hook = {"preStop": {"exec": {"command": words}}}
    template = made({**OFFICIAL, "lifecycle": hook}, drainTimeout="5m")
    assert first(template)["lifecycle"] == hook
    assert hook_s(first(template)) == seconds
    # A hook that takes nobody knows how long may take what a drain may.
    assert template["spec"]["terminationGracePeriodSeconds"] == (300 if seconds is None else seconds) + 300 + 30
    assert "--shutdown-timeout=300" in first(template)["args"]


@pytest.mark.parametrize(
    ("hook", "tracked"),
    [
        ({"exec": {"command": ["python", "-m", "rljob_runtime", "drain", "--deadline", "90s"]}}, True),
        ({"exec": {"command": ["rljob-runtime", "drain"]}}, True),
        ({"httpGet": {"port": 9101, "path": "/drain"}}, True),
        ({"httpGet": {"port": 9101, "path": "/other"}}, False),
        ({"sleep": {"seconds": 5}}, False),
    ],
)
def test_a_hook_that_drains_can_count_requests_while_the_engine_is_paused(hook: Json, tracked: bool) -> None:
    """The gauges of a paused engine stand still."""
    container = first(made({**OFFICIAL, "lifecycle": {"preStop": hook}}))
    assert ("--enable-server-load-tracking" in container["args"]) is tracked
    assert (
        first(made({**OFFICIAL, "args": ["--enable_server_load_tracking"], "lifecycle": {"preStop": hook}}))[
            "args"
        ].count("--enable-server-load-tracking")
        == 0
    )


# --- what is written otherwise --------------------------------------------------------------------------------------------


def test_what_the_template_says_is_never_replaced() -> None:
    own = {
        "name": "vllm",
        "image": "x",
        "command": [
            "vllm",
            "serve",
            "m",
            "--port",
            "9000",
            "--max_num_seqs",
            "7",
            "-tp",
            "2",
            "--shutdown-timeout",
            "3",
        ],
        "readinessProbe": {"tcpSocket": {"port": 9000}},
        "startupProbe": {"exec": {"command": ["true"]}},
        "livenessProbe": {"httpGet": {"path": "/ping", "port": 9000}},
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}, "postStart": {"exec": {"command": ["true"]}}},
        "ports": [{"containerPort": 9000}, {"containerPort": 9100, "name": "metrics"}],
    }
    metadata = {"annotations": {"prometheus.io/scrape": "false", "team": "a"}}
    of = job_of(own, {"terminationGracePeriodSeconds": 77}, metadata)
    template = pod_template(of, "sampler", SPLIT)
    bare = pod_template(of, "sampler", SPLIT, bare=True)
    assert template == bare
    assert template["metadata"]["annotations"] == metadata["annotations"]


def test_a_port_is_taken_from_the_arguments() -> None:
    container = {"name": "v", "image": "x", "command": ["vllm", "serve", "m", "--port=9123"]}
    of = job_of(container)
    template = pod_template(of, "sampler", NARROW)
    assert first(template)["ports"][0]["containerPort"] == 9123
    assert first(template)["readinessProbe"]["httpGet"]["port"] == 9123
    assert services(of)[0]["spec"]["ports"][0]["port"] == 9123
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.1"}
    pod = {"metadata": {"name": "s"}, "spec": template["spec"], "status": ready}
    assert endpoints_of([pod])[0].url == "http://10.0.0.1:9123"
    assert endpoints_of([{**pod, "spec": {"containers": [container]}}])[0].url == "http://10.0.0.1:9123"


def test_a_pod_on_its_nodes_network_declares_no_port() -> None:
    """A declared port would be taken from the node, and a second pod would find none."""
    template = made(OFFICIAL, {"hostNetwork": True})
    assert "ports" not in first(template)
    assert first(template)["readinessProbe"]["httpGet"]["port"] == 8000


@pytest.mark.parametrize(
    "args",
    [
        ["--host", "127.0.0.1"],
        ["--host=$(HOST)"],
        ["--uds", "/run/vllm.sock"],
        # Where it listens is not known.
        ["--port=$(PORT)"],
        ["--config=/etc/vllm.yaml"],
    ],
)
def test_a_server_that_no_probe_would_reach_is_not_probed(args: list[str]) -> None:
    """Its pod would never be ready, and be started again every two hours."""
    env = [{"name": "HOST", "value": "localhost"}, {"name": "PORT", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]
    template = made({**OFFICIAL, "args": ["--model=m", *args], "env": env})
    assert not {"readinessProbe", "startupProbe", "ports"} & set(first(template))
    assert "annotations" not in template["metadata"]
    assert first(template)["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}


def test_a_server_that_listens_to_its_own_container_alone_is_not_probed() -> None:
    """SGLang does so unless it is told otherwise, which a shell's text is not."""
    of = {"name": "s", "image": "x", "command": ["sh", "-c", "exec sglang serve m"]}
    assert "readinessProbe" not in first(made(of, engine="sglang"))
    of["command"] = ["sh", "-c", "exec sglang serve m --host 0.0.0.0"]
    assert first(made(of, engine="sglang"))["readinessProbe"]["httpGet"]["port"] == 30000


def test_an_encrypted_server_is_probed_as_such() -> None:
    encrypted = {**OFFICIAL, "args": ["--model=m", "--ssl-certfile=/tls/crt"]}
    assert first(made(encrypted))["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_text_for_a_shell_is_left_as_it_is_and_probed_all_the_same() -> None:
    command = ["sh", "-c", "exec vllm serve m --port 8001"]
    template = made({"name": "v", "image": "x", "command": command})
    assert first(template)["command"] == command
    assert "args" not in first(template)
    assert first(template)["readinessProbe"]["httpGet"]["port"] == 8001
    assert first(template)["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}


def test_arguments_from_a_file_are_not_overridden() -> None:
    container = {**OFFICIAL, "args": ["--config", "/etc/vllm.yaml"]}
    assert first(made(container))["args"] == container["args"]


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.8.5.post1", (0, 8)),
        ("vllm/vllm-openai:v0.17.1", (0, 17)),
        ("vllm/vllm-openai:v0.18.0", (0, 18)),
        ("mirror:5000/x/vllm-openai:0.33.0-cu129@sha256:0", (0, 33)),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai:nightly-0.33", None),
        ("vllm/vllm-openai@sha256:0", None),
        ("registry:5000/vllm-openai", None),
        # Tags of other images: a date, a version of something else, an older engine in the middle of a name, one's own counting.
        ("nvidia/vllm:25.09-py3", None),
        ("rocm/vllm:rocm6.3.1_vllm_0.8.5", None),
        ("team/vllm:0.33", None),
        ("team/vllm-openai-own:0.33", None),
        ("team/vllm-openai:2.1", None),
        ("team/vllm-openai:0.20250901", None),
        ("team/rollout:0.3", None),
        ("x", None),
    ],
)
def test_an_argument_is_added_only_where_the_version_is_known_to_have_it(
    image: str, version: tuple[int, int] | None
) -> None:
    """A server that does not know an argument ends at once, in a template that ran without it."""
    assert version_of(image, VLLM) == version
    args = first(made({"name": "v", "image": image, "command": ["vllm", "serve"], "args": ["m"]}))["args"]
    assert any(a.startswith("--shutdown-timeout") for a in args) is (version is not None and version >= (0, 18))
    assert "--max-num-seqs=$(RLJOB_MAX_RUNNING)" in args, "which all versions know"


@pytest.mark.parametrize(
    ("said", "added"),
    [
        ({"args": ["--max-num-batched-tokens", "32"]}, False),
        ({"args": ["--max_num_batched_tokens=$(TOKENS)"], "env": [{"name": "TOKENS", "value": "63"}]}, False),
        ({"args": ["--max-num-batched-tokens=8k"]}, False),
        ({"args": ["--max-num-batched-tokens=64"]}, True),
        ({"args": ["--max-num-seqs=8", "--max-num-batched-tokens=32"]}, False),
        ({"args": ["--config=/etc/vllm.yaml", "--max-num-batched-tokens=32"]}, False),
    ],
)
def test_an_engine_of_few_tokens_an_iteration_is_not_told_to_run_more_samples(said: Json, added: bool) -> None:
    """vLLM does not start with fewer tokens an iteration than samples."""
    of = job_of({**OFFICIAL, **said})
    args = first(pod_template(of, "sampler", NARROW))["args"]
    assert ("--max-num-seqs=$(RLJOB_MAX_RUNNING)" in args) is added
    notes = template_notes(of, NARROW)
    own = any(word.startswith(("--max-num-seqs", "--config")) for word in said["args"])
    assert [("so that --max-num-seqs is left out" in note, "sampler.maxRunning" in note) for note in notes] == (
        [] if added or own else [(True, True)]
    )


def test_what_is_not_added_is_no_news() -> None:
    of = job_of({**OFFICIAL, "args": ["--max-num-batched-tokens=32"]}, engineDefaults=False)
    assert template_notes(of, NARROW) == ()


def test_the_defaults_can_be_turned_off() -> None:
    of = job_of(OFFICIAL, engineDefaults=False)
    assert pod_template(of, "sampler", SPLIT) == pod_template(of, "sampler", SPLIT, bare=True)
    assert first(pod_template(of, "sampler", SPLIT))["args"] == ["--model=m"]


def test_a_trainer_gets_none_of_it() -> None:
    of = job(trainer={"template": {"spec": {"containers": [OFFICIAL]}}})
    assert first(pod_template(of, "trainer", SPLIT))["args"] == ["--model=m"]


# --- SGLang ---------------------------------------------------------------------------------------------------------------


def test_sglang_is_another_row() -> None:
    container = {"name": "s", "image": "lmsysorg/sglang:v0.5.23", "command": ["python3", "-m", "sglang.launch_server"]}
    container |= {"args": ["--model-path", "m"]}
    template = made(container, split=SPLIT, engine="sglang", drainTimeout="1m")
    assert first(template)["args"] == [
        "--model-path",
        "m",
        "--max-running-requests=$(RLJOB_MAX_RUNNING)",
        "--host=0.0.0.0",
        "--enable-metrics",
        "--tensor-parallel-size=$(RLJOB_TENSOR_PARALLEL)",
    ]
    assert first(template)["ports"][0]["containerPort"] == 30000
    assert template["spec"]["terminationGracePeriodSeconds"] == 95
    # A probe that generates would find a server paused for new weights unready.
    assert {"name": "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "value": "false"} in first(template)["env"]
    of = job_of({"name": "s", "image": "x"}, engine="sglang")
    assert services(of)[0]["spec"]["ports"][0]["port"] == 30000
    assert serving_port({}, SGLANG) == 30000


def test_a_variable_of_ones_own_is_kept() -> None:
    name = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"
    container = {"name": "s", "image": "x", "command": ["sglang", "serve"], "env": [{"name": name, "value": "true"}]}
    env = first(made(container, engine="sglang"))["env"]
    assert [v["value"] for v in env if v["name"] == name] == ["true"]


# --- broken templates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        {"ports": [{}]},
        {"ports": "8000"},
        {"lifecycle": []},
        {"lifecycle": {"preStop": {"sleep": 5}}},
        {"command": "vllm serve m"},
        {"args": [1, None, {"a": 1}]},
        {"readinessProbe": 3},
        {"env": [{"name": "A"}]},
        {"image": None},
        {"image": 7},
    ],
)
def test_what_can_not_be_read_ends_in_words_or_is_left_to_the_api_server(part: Json) -> None:
    said = ""
    try:
        sampler_workload(job_of({**OFFICIAL, **part}), SPLIT, 1)
    except TemplateError as error:
        said = str(error)
    assert not said or "spec.sampler.template" in said
