"""What all API models share: Kubernetes spelling, closed schemas, and the two string types of the API.

Kubernetes writes fields in camelCase, has no duration or percent type and rejects floats in well-kept APIs, so durations
(``90s``, ``15m``) and percents (``5%``) are strings with a pattern. The properties beside them (``…_s``, ``…_fraction``)
give the number, so that nobody parses a string twice.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
PERCENT_PATTERN = r"^[0-9]+(\.[0-9]+)?%$"

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class ApiModel(BaseModel):
    """Base of every API model: camelCase on the wire, immutable, unknown fields are errors."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


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


def _check_duration(text: str) -> str:
    duration_s(text)
    return text


def _check_percent(text: str) -> str:
    percent_fraction(text)
    return text


Duration = Annotated[str, Field(pattern=DURATION_PATTERN, examples=["90s", "15m"]), AfterValidator(_check_duration)]
"""A length of time: a number and a unit of ``ms``, ``s``, ``m`` or ``h``, repeated at will (``1h30m``)."""

Percent = Annotated[str, Field(pattern=PERCENT_PATTERN, examples=["5%"]), AfterValidator(_check_percent)]
"""A share in percent, such as ``5%``."""
