"""The operator's rights against what it really asked for, by the API server's audit log of all tests before this one.

Runs after everything else. What was refused is judged after any tests with an operator; what is granted and was never used is
judged only when all of tests/cluster ran.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from dev.chart import render
from dev.installer_role import PATH, text
from dev.rights import Judgement, Request, Right, granted, read
from tests.audited import Audited, Plane

_AGAIN = "a child that somebody else changes at the very moment of a write is read again, and that hangs on the moment"

WITHOUT_USE: dict[Right, str] = {
    Right("", "pods", "get"): _AGAIN,
    Right("", "services", "get"): _AGAIN,
    Right("networking.k8s.io", "networkpolicies", "get"): _AGAIN,
}
"""Rights of the chart that a run of all tests need not use, each with the reason why it is granted."""


@pytest.fixture(scope="module")
def planes(audited: Audited) -> list[Plane]:
    found = audited.planes()
    if not found:
        pytest.skip("no test before this one started an operator: run tests/cluster in the same session")
    return found


def test_nothing_that_the_operator_asked_for_was_refused(planes: list[Plane]) -> None:
    refused = [request for plane in planes for request in Judgement.of(plane.rights, plane.requests).refused]
    assert refused == [], f"rules are missing:\n{_summary(refused)}"


def test_the_operator_used_every_right_that_it_has(audited: Audited, planes: list[Plane]) -> None:
    why = audited.record.partly()
    if why is not None:
        pytest.skip(f"what is unused shows only after all of tests/cluster: {why}")
    rights = frozenset[Right]().union(*(plane.rights for plane in planes))
    judged = Judgement.of(rights, [request for plane in planes for request in plane.requests])
    unused = [str(right) for right in judged.unused if right not in WITHOUT_USE]
    assert unused == [], (
        f"unused: {', '.join(unused)}: take them out of the chart's roles, or say in WITHOUT_USE why they stay"
    )
    # A conflict may well have made use of one of these; that it is granted no more is what would make the table lie.
    gone = [str(right) for right in WITHOUT_USE if right not in rights]
    assert gone == [], "these are granted no more: take them out of WITHOUT_USE"


def test_an_unused_and_a_missing_right_would_be_told() -> None:
    get, watch = Right("apps", "deployments", "get"), Right("apps", "deployments", "watch")

    def request(right: Right, code: int = 200, *, refused: bool = False) -> Request:
        return Request("operator", right, "default", code, refused, created=code == 201, message="")

    judged = Judgement.of(
        [get, watch, Right("", "leases", "get", "one")],
        [
            request(Right("apps", "deployments", "get", "name")),
            request(Right("", "leases", "get", "two")),
            request(Right("", "pods", "patch", "name"), 403, refused=True),
        ],
    )
    assert set(judged.unused) == {watch, Right("", "leases", "get", "one")}
    assert [str(each.right) for each in judged.refused] == ["patch pods name"]
    # A patch that makes its object takes the right to create it.
    both = [Right("", "pods", "patch"), Right("", "pods", "create"), Right("", "pods", "delete")]
    made = Judgement.of(both, [request(Right("", "pods", "patch", "name"), 201)])
    assert made.unused == (Right("", "pods", "delete"),)


def test_requests_are_read_as_the_api_server_notes_them(tmp_path: Path) -> None:
    user = "system:serviceaccount:rljob-system:rljob-operator"

    def event(verb: str, code: int, decision: str = "allow", message: str = "", **at: str) -> str:
        status = {"code": code, **({"message": message} if message else {})}
        found = {
            "verb": verb, "user": {"username": user}, "objectRef": at or None, "responseStatus": status,
            "annotations": {"authorization.k8s.io/decision": decision},
        }  # fmt: skip
        return json.dumps(found) + "\n"

    pods = {"resource": "pods", "apiVersion": "v1", "namespace": "team"}
    status = {"resource": "rljobs", "subresource": "status", "apiGroup": "rljob.dev", "name": "job"}
    no_create = f'pods "a" is forbidden: User "{user}" cannot create resource "pods" in API group ""'
    log = tmp_path / "log"
    log.write_text(
        event("list", 200, **pods)
        + event("update", 409, **status)
        + event("get", 403, "forbid", "forbidden", resource="secrets")
        + event("create", 403, "allow", 'pods "a" is forbidden: exceeded quota: small', **pods)
        + event("patch", 403, "allow", no_create, name="a", **pods)
        + event("patch", 201, name="a", **pods)
        + event("get", 200)
        + event("list", 200, resource="nodes").replace(user, "somebody-else")
        + event("delete", 200, **pods).rstrip("\n")
    )
    requests = read(log, user)
    assert [(str(request.right), request.refused) for request in requests] == [
        ("list pods", False),
        ("update rljobs.rljob.dev/status job", False),
        ("get secrets", True),
        ("create pods", False),
        ("patch pods a", True),
        ("patch pods a", False),
    ]
    assert [str(use) for use in requests[-1].uses] == ["patch pods a", "create pods"]
    assert requests[2].uses == ()


def _summary(refused: Sequence[Request]) -> str:
    told = {f"{request.right} in {request.namespace or 'the cluster'}: {request.message}" for request in refused}
    return "\n".join(sorted(told)[:20])


def test_the_installers_role_is_made_from_the_chart() -> None:
    assert PATH.read_text(encoding="utf-8") == text(), "run python -m dev.installer_role"


def test_the_operators_rights_are_narrow() -> None:
    roles = [each for each in render() if each["kind"] in ("ClusterRole", "Role")]
    own = [role for role in roles if not any("aggregate-to" in label for label in role["metadata"]["labels"])]
    rights = granted(rule for role in own for rule in role["rules"])
    assert [str(right) for right in rights if "*" in (right.group, right.resource, right.verb)] == []
    assert [str(right) for right in rights if right.resource.startswith(("secrets", "pods/", "serviceaccounts"))] == []
    jobs = {right.verb for right in rights if right.resource == "rljobs"}
    assert jobs == {"get", "list", "watch"}, "it reports on jobs, and changes none"
    removed = {right.resource for right in rights if right.verb in ("delete", "deletecollection")}
    assert removed == {"deployments", "services", "networkpolicies"}, "what a spec may cease to ask for, and no more"
