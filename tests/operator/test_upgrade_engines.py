"""What engines need came into templates with a version; the pods of jobs that ran before it go on without, and nobody is said to have edited them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest

from rljob_operator import children
from rljob_operator.template import pod_template
from rljob_operator.upgrade import DIGEST_ANNOTATION, RECORD_ANNOTATION, Change, change
from rljob_planner.api.spec import RLJob
from tests.operator.objects import SPLIT, job_dict
from tests.operator.scene import Scene, scene, split

Json = dict[str, Any]

OWN = (DIGEST_ANNOTATION, RECORD_ANNOTATION)

TEMPLATE: Json = {
    "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.33.0", "args": ["--model=m"]}]}
}
STATED: Json = {
    "spec": {
        "terminationGracePeriodSeconds": 120,
        "containers": [
            {"name": "vllm", "image": "x", "command": ["vllm", "serve", "m", "--port", "9000"], "ports": [{"containerPort": 9000}]}
        ],
    }
}  # fmt: skip


@contextmanager
def version_before() -> Iterator[None]:
    """An operator that knows nothing of engines."""

    def bare(job: RLJob, role: str, of: Any, **_: Any) -> Json:
        return pod_template(job, role, of, bare=True)

    with mock.patch.object(children, "pod_template", bare):
        yield


def raw(template: Json, **sampler: Any) -> Json:
    return job_dict(sampler={"template": copy.deepcopy(template), **sampler})


def made(of: Json, replicas: int = 3) -> Json:
    """The samplers' Deployment, by JSON."""
    workload = children.sampler_workload(RLJob.model_validate(of), SPLIT, replicas)
    return dict(json.loads(json.dumps(workload)))


def without_records(obj: Json) -> Json:
    found = copy.deepcopy(obj)
    for name in OWN:
        del found["metadata"]["annotations"][name]
    return found


def seen(live: Json, of: Json, replicas: int = 3) -> Change:
    """What this version finds of a live child of the job."""
    desired = made(of, replicas)
    return change(
        live, desired, lambda: children.sampler_workload(RLJob.model_validate(of), SPLIT, replicas, bare=True)
    )


@pytest.mark.parametrize("template", [TEMPLATE, STATED])
@pytest.mark.parametrize("records", [True, False], ids=["with records", "from before the records"])
@pytest.mark.parametrize("replicas", [3, 5])
def test_pods_of_the_version_before_are_left_as_they_are(template: Json, records: bool, replicas: int) -> None:
    of = raw(template)
    with version_before():
        live = made(of)
    if not records:
        live = without_records(live)
    assert live["spec"]["template"] != made(of)["spec"]["template"], "else this test would say nothing"
    found = seen(live, of, replicas)
    assert not found.rolls
    assert found.edited == ()
    assert found.desired["spec"]["template"] == live["spec"]["template"]
    assert found.desired["spec"]["replicas"] == replicas
    assert {path for path in found.differing if not path.startswith("metadata.annotations.")} <= {"spec.replicas"}
    # Once written, it is what is wished, and stays so.
    again = seen(found.desired, of, replicas)
    assert (again.differing, again.edited, again.rolls) == ((), (), False)
    assert again.desired["spec"]["template"] == live["spec"]["template"]


def test_records_that_somebody_takes_off_a_child_of_this_version_bring_back_nothing_older() -> None:
    of = raw(TEMPLATE)
    desired = made(of)
    for replicas in (3, 5):
        found = seen(without_records(desired), of, replicas)
        assert found.desired["spec"]["template"] == desired["spec"]["template"]
        assert (found.edited, found.rolls) == ((), False)


def test_an_edit_by_hand_of_a_child_from_before_the_records_is_found_and_undone() -> None:
    of = raw(TEMPLATE)
    with version_before():
        before = without_records(made(of))
    live = copy.deepcopy(before)
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs:1"
    found = seen(live, of)
    assert found.edited == ("spec.template.spec.containers[vllm].image",)
    assert found.desired["spec"]["template"] == before["spec"]["template"]


@pytest.mark.parametrize(
    "edit",
    [
        {"drainTimeout": "61s"},
        {"engine": "sglang"},
        {"engineDefaults": False},
        {"template": {"spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.34.0"}]}}},
    ],
)
def test_a_change_of_the_user_brings_the_template_of_this_version(edit: Json) -> None:
    of = raw(TEMPLATE)
    with version_before():
        live = made(of)
    of["spec"]["sampler"] |= edit
    found = seen(live, of)
    assert found.desired == made(of)
    assert (found.rolls, found.edited) == (True, ())


def test_what_the_user_does_not_say_is_in_no_digest() -> None:
    """So that a field which a later version adds rolls nobody who does not use it."""
    plain = made(raw(TEMPLATE))["metadata"]["annotations"][DIGEST_ANNOTATION].partition(".")[0]
    with version_before():
        before = made(raw(TEMPLATE))["metadata"]["annotations"][DIGEST_ANNOTATION].partition(".")[0]
    said = raw(TEMPLATE, engine="vllm", engineDefaults=True)
    assert plain == before == made(said)["metadata"]["annotations"][DIGEST_ANNOTATION].partition(".")[0]


def strip(s: Scene) -> None:
    """Takes the records off, as if a version without them had made the child."""
    live = s.workload("samplers")
    s.cluster.store.replace("deployments", without_records(live))


@pytest.mark.parametrize("records", [True, False], ids=["with records", "from before the records"])
def test_a_running_job_is_upgraded_without_a_pod_being_replaced(records: bool) -> None:
    older = ExitStack()
    older.enter_context(version_before())
    with older, scene(sampler={"template": TEMPLATE}) as s:
        before = {p["metadata"]["uid"] for p in s.pods()}

        def upgrade() -> None:
            older.close()
            if not records:
                strip(s)

        s.restart(between=upgrade)
        s.clock.run_for(60.0)
        assert {p["metadata"]["uid"] for p in s.pods()} == before
        assert s.events("ChildEdited") == []
        assert RECORD_ANNOTATION in s.workload("samplers")["metadata"]["annotations"]
        assert "this one's has none of that" in s.condition("Planned")["message"], (
            "and it is said that newer pods would be safer"
        )
        # A move makes new pods of the same kind, and victims go as before.
        s.wish = split(12, 1)
        s.settled(12, 1)
        kinds = {json.dumps(p["spec"]["containers"][0].get("args")) for p in s.pods("sampler")}
        assert kinds == {'["--model=m"]'}
        # Suspended and resumed, it gets what this version makes.
        s.wish = None
        s.edit(suspend=True)
        s.until(lambda: not s.pods())
        s.edit(suspend=False)
        s.until(lambda: s.ready and s.pods("sampler"))
        pod = s.pods("sampler")[0]
        assert "readinessProbe" in pod["spec"]["containers"][0]
        assert s.condition("Planned")["reason"] == "Planned"
        s.judged()
