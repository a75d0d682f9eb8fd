"""The generated CRD: up to date, in the dialect of Kubernetes, and no laxer than the models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import Field

from dev import crds
from rljob_planner.api.base import ApiModel
from rljob_planner.api.crd import INT_OR_STRING, PRESERVE, crd, crd_yaml, object_schema, structural
from rljob_planner.api.reading import InvalidJobError, read_job
from rljob_planner.api.status import ConditionType, Phase
from tests.crd_cases import ABSENT, edited, job
from tests.crd_violations import FULL, VIOLATIONS, Violation

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "crds" / "samples").glob("*.yaml"))
SCHEMA = object_schema()
SPEC = SCHEMA["properties"]["spec"]


def as_json_schema(node: Mapping[str, Any]) -> dict[str, Any]:
    """A structural schema as plain JSON Schema, closed where Kubernetes refuses unknown fields."""
    found = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if INT_OR_STRING in node:
        found["type"] = ["integer", "string"]
    if "properties" in node:
        found["properties"] = {name: as_json_schema(child) for name, child in node["properties"].items()}
        found["additionalProperties"] = PRESERVE in node
    for key in ("items", "additionalProperties"):
        if key in node:
            found[key] = as_json_schema(node[key])
    return found


def validator() -> jsonschema.Draft202012Validator:
    schema = as_json_schema(SCHEMA)
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(schema)


VALIDATOR = validator()


def accepts(document: Any) -> bool:
    """Whether the schema, without its rules, takes a document."""
    return bool(VALIDATOR.is_valid(document))


def nodes(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def test_the_file_is_up_to_date() -> None:
    assert crds.main(["--check"]) == 0, "run `python -m dev.crds`"


def test_a_stale_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(crds, "ROOT", tmp_path)
    monkeypatch.setattr(crds, "CRD_FILE", tmp_path / "crd.yaml")
    monkeypatch.setattr(crds, "PROFILE_CRD_FILE", tmp_path / "profiles.yaml")
    monkeypatch.setattr(crds, "CHART_DIR", tmp_path)
    (tmp_path / "crd.yaml").write_text(crd_yaml().replace("shortNames", "shortnames"), encoding="utf-8")
    assert crds.main(["--check"]) == 1
    assert "-    shortnames:" in capsys.readouterr().out
    assert crds.main([]) == 0
    assert crds.main(["--check"]) == 0


def test_the_file_says_what_the_generator_made() -> None:
    assert yaml.safe_load(crd_yaml()) == json.loads(json.dumps(crd()))


def test_client_side_apply_has_room_for_it() -> None:
    # kubectl keeps the whole object as JSON in an annotation of at most 256 KiB.
    assert len(json.dumps(crd())) < 150_000


def test_every_field_has_a_description() -> None:
    unexplained = [
        path for path, node in nodes(SCHEMA)
        if "description" not in node and not path.endswith("[]") and path not in ("", ".metadata")
    ]  # fmt: skip
    assert unexplained == []


def test_the_schema_is_structural() -> None:
    for path, node in nodes(SCHEMA):
        assert ("type" in node) != (INT_OR_STRING in node), path
        assert not {"$ref", "anyOf", "oneOf", "allOf", "nullable", "const", "prefixItems", "title"} & set(node), path
        assert not isinstance(node.get("additionalProperties"), bool), path
        assert not ("properties" in node and "additionalProperties" in node), path
        if node.get("type") == "array":
            assert "items" in node, path
            assert node["x-kubernetes-list-type"] in ("atomic", "map"), path


def test_the_status_has_no_defaults() -> None:
    assert [path for path, node in nodes(SCHEMA["properties"]["status"]) if "default" in node] == []


def test_conditions_are_a_map_by_type() -> None:
    conditions = SCHEMA["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert conditions["items"]["properties"]["type"]["enum"] == list(ConditionType)
    assert SCHEMA["properties"]["status"]["properties"]["phase"]["enum"] == list(Phase)


def test_every_column_shows_a_field_of_the_schema() -> None:
    (version,) = crd()["spec"]["versions"]
    for column in version["additionalPrinterColumns"]:
        at: Any = SCHEMA
        path = column["jsonPath"].split("[?")[0].removeprefix(".").split(".")
        if path[0] == "metadata":
            continue
        for part in path:
            at = at["properties"][part]
        assert "[?" in column["jsonPath"] or at["type"] == column["type"], column


def test_a_type_that_kubernetes_cannot_spell_is_refused() -> None:
    class Odd(ApiModel):
        either: bool | str = Field(description="One or the other.")

    with pytest.raises(ValueError, match="one type"):
        structural(Odd)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_valid(sample: Path) -> None:
    document = yaml.safe_load(sample.read_text(encoding="utf-8"))
    assert accepts(document)
    assert read_job(document).metadata["name"] == sample.stem
    if "targetRef" in document["spec"]["sampler"]:
        return
    containers = [document["spec"][role]["template"]["spec"]["containers"][0] for role in ("sampler", "trainer")]
    assert "--tensor-parallel-size=$(RLJOB_TENSOR_PARALLEL)" in containers[0]["args"]
    assert "--max-num-seqs=$(RLJOB_MAX_RUNNING)" in containers[0]["args"]


def test_samples_cover_the_modes() -> None:
    documents = [yaml.safe_load(sample.read_text(encoding="utf-8")) for sample in SAMPLES]
    assert len(documents) >= 4
    assert {"Auto", "Recommend"} <= {document["spec"]["rebalance"]["mode"] for document in documents}
    assert {"admission", "hold", "drop"} <= {document["spec"]["staleness"]["bound"] for document in documents}


LENGTHS = "spec.workload.responseTokens"


def test_the_full_job_is_valid() -> None:
    assert accepts(FULL)
    read_job(FULL)


def test_the_full_job_says_everything() -> None:
    said = {violation.path for violation in VIOLATIONS}
    for path, node in nodes(SPEC, "spec"):
        name = path.replace(".", "/")
        left_out = ("responseTokens/quantiles", "responseTokens/histogram", "model/config", "sampler/nodes", "trainer/nodes",
                    "template", "targetRef", "selector", "mean")  # fmt: skip
        if "[]" not in path and node.get("type") != "object" and not any(part in name for part in left_out):
            assert name in said, path


@pytest.mark.parametrize("violation", VIOLATIONS, ids=lambda v: f"{v.path}:{v.constraint}")
def test_what_the_schema_refuses_the_models_refuse_too(violation: Violation) -> None:
    assert not accepts(violation.document)
    with pytest.raises(InvalidJobError) as caught:
        read_job(violation.document)
    assert caught.value.problems


@pytest.mark.parametrize(
    "lengths",
    [
        {"max": 4096, "quantiles": {"0.5": 700}},
        {"max": 4096, "quantiles": {"0.5": 700, "0.9": "2000"}},
        {"max": 4096, "quantiles": {"0.5": 0, "0.9": 2000}},
        {"max": 4096, "quantiles": {f"0.{n:03}": n for n in range(1, 34)}},
        {"max": 4096, "histogram": []},
        {"max": 4096, "histogram": [[512]]},
        {"max": 4096, "histogram": [[512, 1, 2]]},
        {"max": 4096, "histogram": [[512, -1]]},
        {"max": 4096, "histogram": [[512, 1.5]]},
        {"max": 4096, "histogram": [[n, 1] for n in range(1, 258)]},
    ],
)
def test_lengths_that_the_schema_refuses(lengths: dict[str, Any]) -> None:
    document = edited(FULL, {LENGTHS: lengths})
    assert not accepts(document)
    with pytest.raises(InvalidJobError):
        read_job(document)


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        ({"spec.gpus": "64"}, "spec.gpus: write a whole number, without quotes"),
        ({"spec.gpus": ABSENT}, "spec.gpus: is missing"),
        ({"spec.sampler.replicas": 2}, "spec.sampler.replicas: there is no such field: did you mean minReplicas?"),
        ({"spec.trainer.min_replicas": 2}, "spec.trainer.min_replicas: there is no such field: did you mean minReplicas?"),
        ({"spec.metrics.url": "x"}, "spec.metrics.url: there is no such field: write one of prometheus"),
        ({"spec.nodes.tolerations": [{"foo": 1}]}, "spec.nodes.tolerations[0].foo: there is no such field: write one of key, "
                                                   "operator, value, effect, tolerationSeconds"),
        ({"spec.trainer.kind": "Job"}, "spec.trainer.kind: input should be 'Deployment' or 'StatefulSet'"),
        ({"spec.rebalance.minGain": "5"},
         "spec.rebalance.minGain: '5' is not a percent: write a number and a percent sign, such as 5%"),
        ({"spec.rebalance.cooldown": "15"},
         "spec.rebalance.cooldown: '15' is not a duration: write a number and a unit, such as 90s, 15m or 1h30m"),
        ({"spec.sampler.template.spec.containers": [{"image": "x"}]},
         "spec.sampler.template.spec.containers[0].name: is missing"),
        ({"spec.sampler.template.spec.containers": [{"name": "x"}, {"name": "x"}]},
         "spec.sampler.template.spec.containers: two containers are called x: give each its own name"),
        ({"spec.suspend": "yes"}, "spec.suspend: write true or false, without quotes"),
        ({"apiVersion": ABSENT}, "apiVersion: is missing: write apiVersion: rljob.dev/v1alpha1"),
        ({"apiVersion": "rljob.dev/v1"}, "apiVersion: input should be 'rljob.dev/v1alpha1'"),
        ({"kind": "Deployment"}, "kind: is 'Deployment': write RLJob"),
        ({"metadata": {}}, "metadata.name: is missing: write a name for the job"),
    ],
)  # fmt: skip
def test_a_problem_says_where_it_is_and_what_to_write(edits: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidJobError) as caught:
        read_job(job(edits))
    assert caught.value.problems == (problem,)


def test_something_else_than_a_job_is_refused() -> None:
    with pytest.raises(InvalidJobError, match="this is no RLJob"):
        read_job(["a"])


def test_nulls_count_as_absent() -> None:
    read = read_job(job({"spec.nodes": None, "spec.queue": None, "spec.rebalance.mode": None}))
    assert read.spec == read_job(job()).spec
