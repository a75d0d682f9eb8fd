"""What the pods say to the scheduler, so that it fills nodes instead of spreading over them."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.template import pod_template
from tests.operator.objects import SPLIT, job, template

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def made(role: str = "sampler", **pod_spec: Any) -> dict[str, Any]:
    return dict(pod_template(job(**{role: {"template": template(**pod_spec)}}), role, SPLIT)["spec"])


@pytest.mark.parametrize("role", ["sampler", "trainer"])
def test_pods_like_the_company_of_other_jobs_pods_and_are_not_spread(role: str) -> None:
    spec = made(role)
    (wish,) = spec["affinity"]["podAffinity"][PREFERRED]
    assert wish["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert wish["podAffinityTerm"]["namespaceSelector"] == {}, "jobs of all namespaces share the nodes"
    (expression,) = wish["podAffinityTerm"]["labelSelector"]["matchExpressions"]
    assert expression == {"key": "rljob.dev/role", "operator": "In", "values": ["sampler", "trainer"]}
    (constraint,) = spec["topologySpreadConstraints"]
    assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
    assert constraint["labelSelector"]["matchLabels"]["rljob.dev/role"] not in ("sampler", "trainer")


def test_the_users_own_affinity_is_kept() -> None:
    zone = {"weight": 7, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}}
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}}
    required = [{"topologyKey": "rack", "labelSelector": {}}]
    affinity = {
        "nodeAffinity": node,
        "podAffinity": {PREFERRED: [zone], "requiredDuringSchedulingIgnoredDuringExecution": required},
    }
    found = made(affinity=affinity)["affinity"]
    assert found["nodeAffinity"] == node
    assert found["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == required
    assert found["podAffinity"][PREFERRED][0] == zone
    assert len(found["podAffinity"][PREFERRED]) == 2


@pytest.mark.parametrize(
    "said",
    [
        {"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}]}}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
    ],
)
def test_a_template_that_says_how_to_spread_is_obeyed(said: dict[str, Any]) -> None:
    spec = made(**said)
    for field in ("affinity", "topologySpreadConstraints"):
        assert spec.get(field) == said.get(field)
