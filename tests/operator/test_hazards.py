"""Settings that lose work are said, each with what to write instead; templates that the operator fills in have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_operator import at_risk
from rljob_operator.children import sampler_workload, trainer_workload
from rljob_operator.hazards import layout_hazards, sampler_hazards
from rljob_operator.status import Verdict
from rljob_operator.template import pod_template
from rljob_planner.api.spec import RLJob
from tests.operator.objects import SPLIT, job
from tests.operator.scene import scene

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
JOBS = sorted([*(ROOT / "crds" / "samples").rglob("*.yaml"), *ROOT.glob("examples/*/rljob.yaml")])
OFFICIAL = {"name": "vllm", "image": "vllm/vllm-openai:v0.33.0", "args": ["--model=m"]}
SHELL = {"name": "vllm", "image": "x", "command": ["sh", "-c"]}


def found(container: Json, pod: Json | None = None, **sampler: Any) -> tuple[str, ...]:
    """What is said of the template that the operator makes of this one."""
    of = job(sampler={"template": {"spec": {"containers": [container], **(pod or {})}}, **sampler})
    return sampler_hazards(of, pod_template(of, "sampler", SPLIT))


@pytest.mark.parametrize(
    ("container", "pod", "sampler"),
    [
        (OFFICIAL, {}, {}),
        (OFFICIAL, {}, {"drainTimeout": "4h"}),
        (OFFICIAL, {"terminationGracePeriodSeconds": 1000}, {}),
        ({**OFFICIAL, "lifecycle": {"preStop": {"exec": {"command": ["sleep", "15"]}}}}, {}, {}),
        ({**OFFICIAL, "lifecycle": {"preStop": {"exec": {"command": ["/drain"]}}}}, {}, {}),
        ({**SHELL, "args": ["exec vllm serve m --shutdown-timeout 900"]}, {}, {}),
        ({**SHELL, "args": ["vllm serve m --shutdown-timeout=900"]}, {}, {}),
        ({**OFFICIAL, "args": ["--config", "/etc/vllm.yaml"], "ports": [{"containerPort": 8000}]}, {}, {}),
        ({**SHELL, "command": ["bash", "-euo", "pipefail", "-c"], "args": ["exec vllm serve m --shutdown-timeout 900"]}, {}, {}),
        # A worker of Ray serves nobody by the layout, whatever page of numbers is served beside it.
        ({"name": "ray", "image": "x", "command": ["ray", "start"], "ports": [{"name": "metrics", "containerPort": 9100}]},
         {"terminationGracePeriodSeconds": 30}, {}),
        ({"name": "ray", "image": "x", "command": ["ray", "start", "--block"]}, {"terminationGracePeriodSeconds": 30}, {}),
        ({"name": "s", "image": "x", "command": ["sglang", "serve"]}, {}, {"engine": "sglang"}),
        (
            {
                "name": "vllm",
                "image": "vllm/vllm-openai:v0.9.0",
                "lifecycle": {"preStop": {"exec": {"command": ["python", "-m", "rljob_runtime", "drain", "--deadline", "15m"]}}},
            },
            {},
            {},
        ),
        ({**OFFICIAL, "livenessProbe": {"tcpSocket": {"port": 8000}}}, {}, {}),
        (
            {
                **OFFICIAL,
                "livenessProbe": {"httpGet": {"path": "/health", "port": 8000}, "timeoutSeconds": 10, "failureThreshold": 12},
            },
            {},
            {},
        ),
    ],
)  # fmt: skip
def test_nothing_is_said_of_settings_that_keep_all_work(container: Json, pod: Json, sampler: Json) -> None:
    assert found(container, pod, **sampler) == ()


@pytest.mark.parametrize(
    ("container", "pod", "sampler", "words"),
    [
        (
            {**OFFICIAL, "args": ["--model=m", "--shutdown-timeout=0"]},
            {},
            {},
            ["--shutdown-timeout is 0", "aborts running samples at once", "write --shutdown-timeout=900"],
        ),
        (
            {**SHELL, "args": ["vllm serve m"]},
            {},
            {"drainTimeout": "90s"},
            ["--shutdown-timeout is missing", "write --shutdown-timeout=90 if its vLLM is 0.18 or later", "rljob_runtime drain"],
        ),
        (
            {"name": "v", "image": "team/vllm:25.09", "command": ["vllm", "serve", "m"]},
            {},
            {},
            ["--shutdown-timeout is missing", "which the image does not say"],
        ),
        (
            {**SHELL, "command": ["bash", "-euo", "pipefail", "-c", "vllm serve m"]},
            {},
            {},
            ["--shutdown-timeout is missing"],
        ),
        (
            {"name": "v", "image": "x", "command": ["vllm", "serve", "m", "--shutdown-timeout=90"]},
            {},
            {},
            ["an eviction leaves running samples 90 s", "write --shutdown-timeout=900, or write drainTimeout: 90s"],
        ),
        (
            {**OFFICIAL, "args": ["--port=$(PORT)"]},
            {},
            {},
            ["has no readinessProbe", "its port ('$(PORT)') can't be read", "declare it under ports, or write readinessProbe"],
        ),
        (
            {**OFFICIAL, "args": ["--config=/etc/vllm.yaml"]},
            {},
            {},
            ["has no readinessProbe", "in the file of --config", "declare it under ports"],
        ),
        (
            {**OFFICIAL, "args": ["--port=9000"], "ports": [{"containerPort": 5678}]},
            {},
            {},
            ["has no readinessProbe", "its arguments say port 9000, and its ports 5678: declare 9000 under ports"],
        ),
        (
            {"name": "vllm", "image": "vllm/vllm-openai:v0.10.2"},
            {},
            {},
            ["vLLM 0.10 has no --shutdown-timeout", "take an image of 0.18 or later"],
        ),
        (
            {**OFFICIAL, "args": ["--shutdown-timeout=90"]},
            {"terminationGracePeriodSeconds": 60},
            {},
            ["preStop hook (5 s) and --shutdown-timeout (90 s) take longer", "write 105 or more"],
        ),
        (
            {**OFFICIAL, "args": ["--shutdown-timeout=90"]},
            {},
            {},
            ["an eviction leaves running samples 90 s", "drainTimeout 900 s", "write drainTimeout: 90s"],
        ),
        (OFFICIAL, {"terminationGracePeriodSeconds": 120}, {}, ["an eviction leaves running samples 105 s"]),
        (
            {**OFFICIAL, "lifecycle": {"preStop": {"exec": {"command": ["sleep", "60"]}}}},
            {"terminationGracePeriodSeconds": 60},
            {},
            ["the preStop hook takes 60 s of a grace period of 60 s", "killed instead of being told", "Seconds: 990"],
        ),
        (
            {**OFFICIAL, "livenessProbe": {"httpGet": {"path": "/health", "port": 8000}}},
            {},
            {},
            ["the livenessProbe (timeoutSeconds 1, 30 s of failures) may kill an engine", "leave it out"],
        ),
        (
            {"name": "inference", "image": "x", "command": ["uv", "run", "inference"], "ports": [{"containerPort": 8000}]},
            {},
            {},
            ["has no readinessProbe", "path: /health"],
        ),
        (
            {**SHELL, "args": ["cd /m && vllm serve . --shutdown-timeout 900"]},
            {},
            {},
            ["does not hand that on", "write exec before the server's command"],
        ),
        (
            {"name": "s", "image": "x", "command": ["sh", "-c", "exec sglang serve --host 0.0.0.0"]},
            {},
            {"engine": "sglang"},
            ["SGLang lacks --enable-metrics", "add it"],
        ),
        (OFFICIAL, {}, {"engine": "sglang"}, ["starts vLLM, and spec.sampler.engine says SGLang", "write sampler.engine: vllm"]),
    ],
)  # fmt: skip
def test_each_setting_that_loses_work_is_said_alone_and_with_a_remedy(
    container: Json, pod: Json, sampler: Json, words: list[str]
) -> None:
    said = found(container, pod, **sampler)
    assert len(said) == 1, said
    assert said[0].startswith(f"spec.sampler.template, container {container['name']}")
    assert [word for word in words if word not in said[0]] == []


def test_a_layout_that_never_changes_is_said_of_either_side() -> None:
    for role in ("sampler", "trainer"):
        mount = {"name": "own", "mountPath": "/app/layout.json", "subPath": "layout.json"}
        spec = {
            "containers": [{"name": "c", "image": "x", "volumeMounts": [mount]}],
            "volumes": [{"name": "own", "configMap": {"name": "mine-layout"}}],
        }
        of = job(**{role: {"template": {"spec": spec}}})
        assert [f"spec.{role}.template, container c mounts the layout by subPath at /app/layout.json" in each
                for each in layout_hazards(of, role, pod_template(of, role, SPLIT))] == [True]  # fmt: skip
        mount.pop("subPath")
        of = job(**{role: {"template": {"spec": spec}}})
        assert layout_hazards(of, role, pod_template(of, role, SPLIT)) == ()


@pytest.mark.parametrize("template", [{}, {"spec": {}}, {"spec": {"containers": []}}, {"spec": {"containers": [7]}}])
def test_what_can_not_be_read_says_nothing(template: Json) -> None:
    assert sampler_hazards(job(), template) == ()
    assert layout_hazards(job(), "sampler", template) == ()


@pytest.mark.parametrize("path", JOBS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_samples_lose_no_work(path: Path) -> None:
    documents = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    (document,) = (each for each in documents if each and each["kind"] == "RLJob")
    document["metadata"] |= {"namespace": "rl", "uid": "u"}
    of = RLJob.model_validate(document)
    if of.spec.adopts:
        return
    width = of.spec.sampler.gpus_per_replica or 1
    split = SPLIT.model_copy(
        update={
            "samplers": SPLIT.samplers.model_copy(update={"gpus_per_replica": width, "tensor_parallel": width}),
            "trainers": SPLIT.trainers.model_copy(update={"gpus_per_replica": of.spec.trainer.gpus_per_replica}),
        }
    )
    assert at_risk.found(of, sampler_workload(of, split, 1), trainer_workload(of, split, 1)) == ()


# --- how it is said -------------------------------------------------------------------------------------------------------


def test_the_clause_follows_what_is_so_and_leaves_the_rest_of_the_message() -> None:
    plan = Verdict(True, "Planned", "8 + 2: period 10 s")
    one = at_risk.warned(plan, ["a is lost: write b"])
    assert one == Verdict(True, "WorkAtRisk", "8 + 2: period 10 s; work is at risk: a is lost: write b")
    assert at_risk.warned(one, ["c"]).message == "8 + 2: period 10 s; work is at risk: c"
    assert at_risk.warned(one, ["a is lost: write b"]) == one
    assert at_risk.warned(one, []) == plan
    faster = Verdict(True, "SynchronousIsFaster", "x")
    assert at_risk.warned(faster, ["c"]) == Verdict(True, "SynchronousIsFaster", "x; work is at risk: c")
    assert at_risk.warned(at_risk.warned(faster, ["c"]), []) == faster


def test_a_job_says_it_in_planned_and_once_in_an_event_until_it_is_mended() -> None:
    template = {"spec": {"containers": [{**OFFICIAL, "args": ["--shutdown-timeout=0"]}]}}
    with scene(sampler={"template": template}) as s:
        s.until(lambda: s.condition("Planned").get("reason") == "WorkAtRisk")
        assert s.condition("Planned")["status"] == "True"
        assert "--shutdown-timeout is 0" in s.condition("Planned")["message"]
        s.clock.run_for(120.0)
        assert len(s.events("WorkAtRisk")) == 1
        s.restart()
        s.clock.run_for(60.0)
        assert len(s.events("WorkAtRisk")) == 1, "said before the restart"
        s.edit(sampler={"template": {"spec": {"containers": [OFFICIAL]}}})
        s.until(lambda: s.condition("Planned").get("reason") == "Planned")
        assert "at risk" not in s.condition("Planned")["message"]
        s.settled(8, 2)


def test_pods_of_an_older_version_are_said_to_be_what_they_are() -> None:
    of = job(sampler={"template": {"spec": {"containers": [OFFICIAL]}}})
    before = sampler_workload(of, SPLIT, 3, bare=True)
    said = at_risk.found(of, before, None)
    assert "--shutdown-timeout is missing" in said[0]
    assert "suspend and resume the job" in said[-1]
    assert at_risk.found(of, sampler_workload(of, SPLIT, 3), None) == ()
    assert at_risk.found(of, None, None) == ()
