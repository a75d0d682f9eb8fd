"""What all API models share: Kubernetes spelling, closed schemas, rules, and the two string types of the API.

Kubernetes writes fields in camelCase, has no duration or percent type and rejects floats in well-kept APIs, so durations
(``90s``, ``15m``) and percents (``5%``) are strings with a pattern. The properties beside them (``…_s``, ``…_fraction``)
give the number, so that nobody parses a string twice.

A job is checked in two places: by the API server, through the CRD, and by the planner that reads a file without a cluster.
Both must say the same of the same job, so a rule is written once (``Rule``): its CEL expression, its message and its
Python twin stand side by side, and what Kubernetes does before it validates (nulls count as absent) is done here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError

# Six digits and sixteen characters keep the longest duration within what CEL's own durations hold (292 years).
DURATION_PATTERN = r"^([0-9]{1,6}(\.[0-9]{1,6})?(ms|s|m|h))+$"
PERCENT_PATTERN = r"^[0-9]{1,6}(\.[0-9]{1,6})?%$"

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Rule:
    """A rule that a type and its bounds can't say, checked by the API server and by the models alike."""

    rule: str
    """The CEL expression, ``self`` being the object that the rule belongs to."""
    message: str
    """What is wrong and what to write instead; the same from both."""
    holds: Callable[[Any], bool] | None
    """The Python twin, on the model. None for a rule on an update (``oldSelf``), which a single file can't break."""
    field: str = ""
    """The field that the error points at, by its path below the object (``queue.capacity``); empty for the object itself."""


class ApiModel(BaseModel):
    """Base of every API model: camelCase on the wire, immutable, unknown fields are errors."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules of this object beyond the constraints of its fields."""

    @model_validator(mode="before")
    @classmethod
    def _absent_if_null(cls, value: Any) -> Any:
        """Drops nulls, as the API server does with fields that are not nullable, before defaults are filled in."""
        if isinstance(value, dict):
            return {key: item for key, item in value.items() if item is not None}
        return value

    @model_validator(mode="after")
    def _keeps_rules(self) -> Self:
        """Checks the rules; every broken one is an error of its own, at the field that it names."""
        broken = [rule for rule in type(self).rules if rule.holds is not None and not rule.holds(self)]
        if broken:
            raise ValidationError.from_exception_data(
                type(self).__name__,
                [
                    InitErrorDetails(
                        type=PydanticCustomError("rule", "{message}", {"message": rule.message}),
                        loc=tuple(rule.field.split(".")) if rule.field else (),
                        input=self,
                    )
                    for rule in broken
                ],
            )
        return self


def duration_s(text: str) -> float:
    """Seconds in a duration such as ``90s``, ``15m`` or ``1h30m``; raises ValueError with an example otherwise."""
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is not a duration: write a number and a unit, such as 90s, 15m or 1h30m")
    return sum(float(number) * _UNIT_S[unit] for number, _, unit in re.findall(r"([0-9]+(\.[0-9]+)?)(ms|s|m|h)", text))


def percent_fraction(text: str) -> float:
    """The fraction 0.05 of a percent such as ``5%``; raises ValueError with an example otherwise."""
    if not re.fullmatch(PERCENT_PATTERN, text):
        raise ValueError(f"{text!r} is not a percent: write a number and a percent sign, such as 5%")
    return float(text[:-1]) / 100.0


def _checked(kind: str, parse: Callable[[str], float]) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise PydanticCustomError(kind, "{message}", {"message": str(error)}) from error
        return text

    return check


# The pattern stands in the schema alone: the validator says the same with an example in its message.
Duration = Annotated[
    str,
    Field(max_length=16, json_schema_extra={"pattern": DURATION_PATTERN}),
    AfterValidator(_checked("duration", duration_s)),
]
"""A length of time: a number and a unit of ``ms``, ``s``, ``m`` or ``h``, repeated at will (``1h30m``)."""

Percent = Annotated[
    str,
    Field(max_length=16, json_schema_extra={"pattern": PERCENT_PATTERN}),
    AfterValidator(_checked("percent", percent_fraction)),
]
"""A share in percent, such as ``5%``."""

Int = Annotated[int, Field(strict=True)]
"""A whole number: ``8``, never ``"8"`` or ``true``, as in the API server."""

Bool = Annotated[bool, Field(strict=True)]
"""``true`` or ``false``, never ``"yes"`` or ``1``, as in the API server."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A number: ``1.5`` or ``2``, never ``"1.5"``, as in the API server, and never infinite or no number at all, as in JSON."""
