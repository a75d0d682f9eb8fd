"""Rights as single facts, so that what is granted, what was used and what was refused can be compared.

A rule of RBAC grants a product of verbs, resources and names, and a product hides what of it nobody needs. Taken apart, each right
is one verb on one resource (on one name, where the rule names some), and the API server's audit log has the same facts of
what was really asked for. The check of the operator's rights is then a difference of two sets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

Json = Mapping[str, Any]

FORBIDDEN = 403

_SECOND_LOOK = ("cannot create resource", "cannot set blockOwnerDeletion")
"""What the API server says when it let a request in and found only then that it takes one more right."""


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource."""

    group: str
    """API group, empty for the core."""
    resource: str
    """Plural of the resource, with its subresource: ``rljobs/status``."""
    verb: str
    """``get``, ``list``, ``watch``, ``create``, ``update``, ``patch``, ``delete``, ..."""
    name: str = ""
    """The only object that it holds for; empty for any."""

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        resource, _, sub = self.resource.partition("/")
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {resource}{group}{'/' if sub else ''}{sub}{name}"

    def covers(self, use: Right) -> bool:
        """Whether this right allows ``use``."""
        same = (self.group, self.resource, self.verb) == (use.group, use.resource, use.verb)
        return same and self.name in ("", use.name)

    def as_json(self) -> dict[str, str]:
        """Its fields."""
        return {"group": self.group, "resource": self.resource, "verb": self.verb, "name": self.name}

    @classmethod
    def from_json(cls, found: Json) -> Self:
        """The inverse of ``as_json``."""
        return cls(found["group"], found["resource"], found["verb"], found.get("name", ""))


def granted(rules: Iterable[Json]) -> frozenset[Right]:
    """The single rights of RBAC rules, those to URLs that are no resources left out."""
    return frozenset(
        Right(group, resource, verb, name)
        for rule in rules
        for group in rule.get("apiGroups") or ()
        for resource in rule.get("resources") or ()
        for verb in rule.get("verbs") or ()
        for name in rule.get("resourceNames") or ("",)
    )


@dataclass(frozen=True)
class Request:
    """One request, as the audit log has it."""

    user: str
    """Who sent it: ``system:serviceaccount:<namespace>:<name>``."""
    right: Right
    """What it needs, with the object's name."""
    namespace: str
    """Namespace that it went to; empty for none."""
    code: int
    """HTTP status of the answer."""
    refused: bool
    """Whether it was refused for want of a right: an exceeded quota is Forbidden too, and no want of a right."""
    created: bool
    """Whether a patch made the object: that takes the right to create it as well."""
    message: str
    """What the API server said of a failure."""

    @property
    def uses(self) -> tuple[Right, ...]:
        """The rights that it made use of, none if it was refused."""
        if self.refused:
            return ()
        needed = self.right
        if not self.created:
            return (needed,)
        # The API server asks its authorizer a second time, without a name, and does not note that.
        return needed, Right(needed.group, needed.resource, "create")


def read(log: Path, user: str) -> list[Request]:
    """The requests of one user in an audit log; a line that is still being written is left out."""
    found = []
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            # Most of a log of hundred thousand lines is never parsed.
            if user not in line or not line.endswith("\n"):
                continue
            request = _request(json.loads(line))
            if request is not None and request.user == user:
                found.append(request)
    return found


def _request(event: Json) -> Request | None:
    """The request of an event; None for one that asks for no resource (``/version``, ``/apis``)."""
    at = event.get("objectRef")
    if at is None or not at.get("resource"):
        return None
    resource = f"{at['resource']}/{at['subresource']}" if at.get("subresource") else at["resource"]
    status = event.get("responseStatus") or {}
    code, message = int(status.get("code", 0)), str(status.get("message", ""))
    decision = (event.get("annotations") or {}).get("authorization.k8s.io/decision")
    verb = event["verb"]
    return Request(
        user=event["user"]["username"],
        right=Right(at.get("apiGroup", ""), resource, verb, "" if verb == "create" else at.get("name", "")),
        namespace=at.get("namespace", ""),
        code=code,
        refused=code == FORBIDDEN and (decision == "forbid" or any(words in message for words in _SECOND_LOOK)),
        created=verb == "patch" and code == 201,
        message=message,
    )


@dataclass(frozen=True)
class Judgement:
    """Rights against requests."""

    unused: tuple[Right, ...]
    """Granted, and never made use of."""
    refused: tuple[Request, ...]
    """Asked for, and not granted."""

    @classmethod
    def of(cls, rights: Iterable[Right], requests: Sequence[Request]) -> Self:
        """Compare what is granted with what was asked for."""
        uses = {use for request in requests for use in request.uses}
        unused = tuple(sorted(right for right in set(rights) if not any(right.covers(use) for use in uses)))
        return cls(unused, tuple(request for request in requests if request.refused))
