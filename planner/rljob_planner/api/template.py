"""The part of a pod template that can be checked when a job is applied.

A whole PodTemplateSpec would make the CRD several times as large as everything else in it, and age with each Kubernetes
release. So a template is open: only what rules speak of is declared (that there are containers, that they have names, which
resources they ask for), everything else is kept as written and is checked by a server-side dry run of a Pod before anything
is created.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, field_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from rljob_planner.api.base import ApiModel


class OpenModel(ApiModel):
    """Base of objects of which only a part is declared; other fields are kept as written."""

    model_config = ConfigDict(extra="allow")


Quantity = Annotated[int, Field(strict=True)] | Annotated[str, Field(max_length=64)]
"""An amount of a resource, such as ``4`` or ``32Gi``."""


class Resources(OpenModel):
    """Resources of a container, as in the core API; its GPUs are set by the operator."""

    limits: dict[str, Quantity] | None = Field(
        default=None, max_length=32, description="Most that the container may use, by resource."
    )
    requests: dict[str, Quantity] | None = Field(
        default=None, max_length=32, description="What is set aside for the container, by resource."
    )


class Container(OpenModel):
    """A container, as in the core API."""

    name: str = Field(min_length=1, max_length=63, description="Name of the container.")
    resources: Resources | None = Field(
        default=None,
        description="Resources of the container, without GPUs: the operator sets those of the first container.",
    )


class PodSpec(OpenModel):
    """A PodSpec, as in the core API; fields beyond those named here are kept as written."""

    containers: tuple[Container, ...] = Field(
        min_length=1,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        description="Containers of the pod, each with a name of its own; the first one gets the GPUs.",
    )

    @field_validator("containers")
    @classmethod
    def _named_apart(cls, containers: tuple[Container, ...]) -> tuple[Container, ...]:
        """The twin of the list's map key in the CRD."""
        names = [container.name for container in containers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise PydanticCustomError(
                "duplicate", "two containers are called {name}: give each its own name", {"name": twice[0]}
            )
        return containers


class PodTemplate(OpenModel):
    """A PodTemplateSpec, as in the core API: metadata and the spec of a pod."""

    metadata: dict[str, Any] | None = Field(default=None, description="Labels and annotations of the pods.")
    spec: PodSpec = Field(description="The pod, as in the core API; what is not listed here is kept as written.")


class _CheckedAs:
    """Checks a plain dict against a model and documents it as such, but leaves it a plain dict."""

    def __init__(self, model: type[ApiModel]) -> None:
        self.model = model

    def _check(self, value: dict[str, Any]) -> dict[str, Any]:
        self.model.model_validate(value)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self.model.__pydantic_core_schema__)


Template = Annotated[dict[str, Any], _CheckedAs(PodTemplate)]
"""A PodTemplateSpec as the user wrote it."""


def containers_asking_for(template: dict[str, Any], resource: str) -> tuple[str, ...]:
    """Names of the containers of a checked template (empty: none was written) whose limits or requests name ``resource``."""
    return tuple(
        container["name"]
        for container in (template.get("spec") or {}).get("containers") or ()
        if any(resource in ((container.get("resources") or {}).get(kind) or {}) for kind in ("limits", "requests"))
    )
