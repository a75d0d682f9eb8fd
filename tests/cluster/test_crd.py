"""The CRD as the API server takes it: its rules, defaults, samples, columns and words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.chart import render
from dev.controlplane import ApiError, ControlPlane
from rljob_planner.api import RLJob
from rljob_planner.api.crd import NAME, object_schema, rules_of
from rljob_planner.api.reading import read_job
from rljob_planner.split import SamplerSplit, Split, TrainerSplit
from tests.crd_cases import CASES, HARMLESS_UPDATE, UPDATE_CASES, Case, UpdateCase, edited, job
from tests.crd_violations import FULL, VIOLATIONS

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "crds" / "samples").glob("*.yaml"))
RULES: list[str] = list(dict.fromkeys(rule["message"] for _, rule in rules_of(object_schema())))

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def crd(plane: ControlPlane) -> dict[str, Any]:
    """The CRD, applied and served."""
    plane.apply((ROOT / "crds" / "rljob.dev_rljobs.yaml").read_text(encoding="utf-8"))
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}"

    def established() -> bool:
        return condition(plane.api.request("GET", path), "Established") == "True"

    def explained() -> bool:
        # Discovery and OpenAPI follow a moment later, each from a cache of its own.
        return plane.kubectl("explain", "rljob.spec", check=False).returncode == 0

    plane.wait_until("the CRD to be established", established)
    plane.wait_until("the CRD to be in discovery and OpenAPI", explained)
    return plane.api.request("GET", path)


@pytest.fixture
def jobs(crd: dict[str, Any], namespace: str) -> str:
    """The path of the RLJobs of a fresh namespace."""
    return f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs"


def condition(obj: Mapping[str, Any], kind: str) -> str | None:
    """The status of a condition, None if there is none."""
    for found in obj.get("status", {}).get("conditions") or ():
        if found["type"] == kind:
            return str(found["status"])
    return None


def full_message(beginning: str) -> str:
    (found,) = [message for message in RULES if message.startswith(beginning)]
    return found


def try_create(plane: ControlPlane, jobs: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return plane.api.request("POST", f"{jobs}?dryRun=All&fieldValidation=Strict", body)


def a_status() -> dict[str, Any]:
    """A status with a split in force, as the operator writes it."""
    split = Split(
        mode="async",
        samplers=SamplerSplit(replicas=8, gpus_per_replica=1, tensor_parallel=1, max_running=64),
        trainers=TrainerSplit(replicas=1, gpus_per_replica=8, dp=8, tp=1, pp=1, ep=1),
        in_flight=512,
    )
    return {
        "phase": "Running",
        "samplers": "7/8",
        "trainers": "1/1",
        "split": split.model_dump(mode="json", by_alias=True),
        "layoutGeneration": 1,
        "observed": {"at": "2026-01-01T00:00:00Z", "periodSeconds": 41.27, "stalenessMean": 1.8, "gpusHeld": 16},
        "moves": {},
    }


def created_running(plane: ControlPlane, jobs: str) -> dict[str, Any]:
    found = plane.api.request("POST", jobs, job())
    return plane.api.request("PUT", f"{jobs}/job/status", {**found, "status": a_status()})


def test_the_crd_is_accepted_whole(crd: dict[str, Any]) -> None:
    assert condition(crd, "NamesAccepted") == "True"
    assert condition(crd, "NonStructuralSchema") is None
    stored = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert stored == as_stored(object_schema())


def as_stored(schema: dict[str, Any]) -> dict[str, Any]:
    """JSON has one kind of number, so 1.0 comes back as 1; everything else must come back as it was."""
    return dict(
        json.loads(json.dumps(schema), parse_float=lambda text: int(x) if (x := float(text)).is_integer() else x)
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_rule_rejects_with_its_message(plane: ControlPlane, jobs: str, case: Case) -> None:
    with pytest.raises(ApiError) as caught:
        try_create(plane, jobs, job(case.rejected, name=case.name))
    assert caught.value.status == 422
    told = str(caught.value)
    assert full_message(case.message) in told
    assert [message for message in RULES if message in told] == [full_message(case.message)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_rule_accepts_what_it_should(plane: ControlPlane, jobs: str, case: Case) -> None:
    try_create(plane, jobs, job(case.accepted, name=case.accepted_name))


def test_every_constraint_of_a_field_is_enforced(plane: ControlPlane, jobs: str) -> None:
    assert try_create(plane, jobs, FULL)["spec"]["gpus"] == FULL["spec"]["gpus"]
    answers = {}
    for violation in VIOLATIONS:
        try:
            try_create(plane, jobs, violation.document)
            answer = 201
        except ApiError as error:
            answer = error.status
        answers[f"{violation.path}: {violation.constraint}"] = answer
    assert {what: answer for what, answer in answers.items() if answer not in (400, 422)} == {}


@pytest.mark.parametrize("case", UPDATE_CASES, ids=lambda case: case.id)
def test_what_a_run_rests_on_is_fixed_once_it_has_a_split(plane: ControlPlane, jobs: str, case: UpdateCase) -> None:
    plane.api.request("POST", jobs, job())
    before = plane.api.request("GET", f"{jobs}/job")
    changed = edited(before, case.edits)
    plane.api.request("PUT", f"{jobs}/job?dryRun=All", changed)
    now = plane.api.request("PUT", f"{jobs}/job/status", {**before, "status": a_status()})
    with pytest.raises(ApiError) as caught:
        plane.api.request("PUT", f"{jobs}/job?dryRun=All", edited(now, case.edits))
    assert caught.value.status == 422
    assert full_message(case.message) in str(caught.value)


def test_the_rest_may_change_in_a_run(plane: ControlPlane, jobs: str) -> None:
    now = created_running(plane, jobs)
    changed = plane.api.request("PUT", f"{jobs}/job", edited(now, HARMLESS_UPDATE))
    assert changed["spec"]["gpus"] == 24
    assert changed["metadata"]["generation"] == 2


def test_defaults_are_filled_in_and_are_those_of_the_models(plane: ControlPlane, jobs: str) -> None:
    stored = try_create(plane, jobs, job())
    assert stored["spec"]["rebalance"] == {
        "mode": "Auto", "interval": "60s",
    }  # fmt: skip
    assert stored["spec"]["nodes"] == {"gpuResource": "nvidia.com/gpu"}
    assert stored["spec"]["staleness"] == {"max": 2, "bound": "admission"}
    assert stored["spec"]["trainer"]["gpusPerReplica"] == 8
    assert "status" not in stored
    defaults = RLJob.model_validate(job()).spec
    assert RLJob.model_validate(stored).spec == defaults
    dumped = defaults.model_dump(mode="json", by_alias=True, exclude_none=True)
    # Empty lists and maps are what a model says for absent.
    assert stored["spec"] == without_empty_collections(dumped) | {"metrics": {}}


def without_empty_collections(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_empty_collections(v) for k, v in value.items() if v not in ([], {}, ())}
    if isinstance(value, list):
        return [without_empty_collections(item) for item in value]
    return value


def test_nulls_count_as_absent(plane: ControlPlane, jobs: str) -> None:
    body = job({"spec.nodes": None, "spec.queue": None, "spec.sampler.maxReplicas": None, "spec.rebalance.mode": None})
    stored = try_create(plane, jobs, body)
    assert stored["spec"]["rebalance"]["mode"] == "Auto"
    assert "queue" not in stored["spec"]
    assert RLJob.model_validate(stored).spec == RLJob.model_validate(body).spec


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_samples_apply(plane: ControlPlane, jobs: str, namespace: str, sample: Path) -> None:
    arguments = ("apply", "--server-side", "-n", namespace, "-f", str(sample))
    plane.kubectl(*arguments, "--dry-run=server", "--validate=strict")
    assert plane.api.request("GET", jobs)["items"] == []
    plane.kubectl(*arguments, "--validate=strict")
    written = yaml.safe_load(sample.read_text(encoding="utf-8"))
    (stored,) = plane.api.request("GET", jobs)["items"]
    assert RLJob.model_validate({k: stored[k] for k in written}).spec == read_job(written).spec
    for role in ("sampler", "trainer"):
        for described in ("template", "targetRef"):
            assert stored["spec"][role].get(described) == written["spec"][role].get(described)


def test_samples_apply_from_the_client_side(plane: ControlPlane, jobs: str, namespace: str) -> None:
    done = plane.kubectl("apply", "-n", namespace, "-f", str(ROOT / "crds" / "samples"))
    assert done.stdout.count(" created") == len(SAMPLES)


def test_explain_tells_what_a_field_means(plane: ControlPlane, crd: dict[str, Any]) -> None:
    told = plane.kubectl("explain", "rljob.spec.rebalance").stdout
    assert "What the operator may do to the split, and how calm it must be." in told
    for name in ("mode", "interval", "minGain", "persistence", "cooldown", "maxStepGPUs"):
        assert f"  {name}\t<" in told
    assert "Recommend: only say what the split should be" in " ".join(told.split())
    assert "enum: Recommend, Initial, Auto" in told


def test_get_prints_the_columns(plane: ControlPlane, jobs: str, namespace: str) -> None:
    created_running(plane, jobs)
    header, row = plane.kubectl("get", "rlj", "-n", namespace).stdout.splitlines()
    assert header.split() == ["NAME", "PHASE", "GPUS", "SAMPLERS", "TRAINERS", "PERIOD", "STALENESS", "AGE"]
    assert row.split()[:7] == ["job", "Running", "16", "7/8", "1/1", "41.27", "1.8"]
    wide = plane.kubectl("get", "rljob", "job", "-n", namespace, "-o", "wide").stdout
    assert "Qwen/Qwen3-8B" in wide
    selected = plane.kubectl("get", "rljobs", "-n", namespace, "--field-selector", "status.phase=Pending").stdout
    assert selected == ""


def test_a_job_without_status_prints_too(plane: ControlPlane, jobs: str, namespace: str) -> None:
    plane.api.request("POST", jobs, job())
    row = plane.kubectl("get", "rljobs", "-n", namespace, "--no-headers").stdout
    assert row.split()[:2] == ["job", "16"]


def test_an_unknown_field_is_refused(plane: ControlPlane, jobs: str, namespace: str) -> None:
    body = job({"spec.sampler.replicas": 4}, namespace=namespace)
    done = plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump(body), check=False)
    assert done.returncode != 0
    assert "spec.sampler.replicas" in done.stderr
    with pytest.raises(ApiError, match=r'unknown field "spec\.sampler\.replicas"'):
        try_create(plane, jobs, body)


def test_what_a_template_leaves_open_is_kept(plane: ControlPlane, jobs: str) -> None:
    path = "spec/sampler/template/spec"
    open_fields = {
        f"{path}/terminationGracePeriodSeconds": 90,
        f"{path}/containers/0/args": ["--max-num-seqs=$(RLJOB_MAX_RUNNING)"],
        f"{path}/containers/0/resources": {"requests": {"cpu": 2, "memory": "1Gi"}},
        "spec/sampler/template/metadata": {"labels": {"team": "a"}},
    }
    body = job(open_fields)
    assert try_create(plane, jobs, body)["spec"]["sampler"]["template"] == body["spec"]["sampler"]["template"]


def test_status_is_written_through_its_subresource_alone(plane: ControlPlane, jobs: str) -> None:
    found = plane.api.request("POST", jobs, job() | {"status": a_status()})
    assert "status" not in found
    now = plane.api.request(
        "PUT", f"{jobs}/job/status", {**found, "status": a_status(), "spec": {**found["spec"], "gpus": 99}}
    )
    assert now["status"]["phase"] == "Running"
    assert now["spec"]["gpus"] == 16
    unchanged = plane.api.request("PUT", f"{jobs}/job", {**now, "status": {"phase": "Failed"}})
    assert unchanged["status"]["phase"] == "Running"
    assert unchanged["metadata"]["generation"] == 1


def test_a_status_comes_back_as_the_operator_wrote_it(plane: ControlPlane, jobs: str) -> None:
    found = plane.api.request("POST", jobs, job())
    written = RLJob.model_validate({**found, "status": a_status()}).status
    assert written is not None
    body = {**found, "status": written.model_dump(mode="json", by_alias=True, exclude_none=True)}
    stored = plane.api.request("PUT", f"{jobs}/job/status?fieldValidation=Strict", body)
    assert RLJob.model_validate(stored).status == written


def test_the_role_of_the_operator_reports_but_does_not_edit(plane: ControlPlane, jobs: str, namespace: str) -> None:
    named = {"fullnameOverride": namespace, "crds": {"install": False}}
    role = next(
        each for each in render(named) if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", namespace)
    )
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    plane.api.request("POST", f"{rbac}/clusterroles", role)
    binding = {
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": f"operator-{namespace}"}],
    }
    plane.api.request("POST", f"{rbac}/namespaces/{namespace}/rolebindings", binding)

    def may(verb: str, group: str, resource: str) -> bool:
        name, _, subresource = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": name, "subresource": subresource, "namespace": namespace}
        review = {"spec": {"user": f"operator-{namespace}", "resourceAttributes": asked}}
        answer = plane.api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    try:
        plane.wait_until("the role to bind", lambda: may("list", "rljob.dev", "rljobs"))
        allowed = (
            ("update", "rljob.dev", "rljobs/status"), ("create", "", "pods"), ("patch", "", "pods"),
            ("patch", "apps", "deployments"), ("create", "", "events"),
        )  # fmt: skip
        refused = (
            ("update", "rljob.dev", "rljobs"), ("patch", "rljob.dev", "rljobs"), ("delete", "rljob.dev", "rljobs"),
            ("get", "", "secrets"), ("create", "", "pods/exec"), ("update", "", "nodes"),
        )  # fmt: skip
        assert [action for action in allowed if not may(*action)] == []
        assert [action for action in refused if may(*action)] == []
    finally:
        plane.api.request("DELETE", f"{rbac}/clusterroles/{namespace}")
