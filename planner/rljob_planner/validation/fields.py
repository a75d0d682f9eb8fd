"""Fields of a row of ``cases``, read by kind; what cannot be what it should be is named and costs its own row alone.

A hidden error is worse than a hole, so a wrong value is not read as null: its row keeps its place in the table without a prediction, and
says which field is wrong and what may stand there. Measurements are another matter: a prediction does not need them, so
one that cannot be a measurement is left out with a remark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

_SHOWN = 40
MOST = 1_000_000
"""The largest count of GPUs, prompts or samples that is taken seriously."""
MOST_TOKENS = 10_000_000
"""The longest sequence that is taken seriously; what is beyond it is a slip of a unit."""


class Fields:
    """Reads typed fields of a mapping and collects what is wrong with them in ``faults``."""

    def __init__(self, fields: object, where: str = "", faults: list[str] | None = None) -> None:
        self.faults = faults if faults is not None else []
        self.where = where
        if fields is not None and not isinstance(fields, Mapping):
            self.faults.append(f"{where.rstrip('.')} must be a mapping of fields, not {shown(fields)}")
            fields = None
        self.fields: Mapping[Any, Any] = fields if isinstance(fields, Mapping) else {}

    def text(self, name: str) -> str | None:
        """A name or words."""
        value = self.fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self._wrong(name, "text", value)
            return None
        return str(value).strip() or None

    def tokens(self, name: str) -> float | None:
        """A mean number of tokens."""
        found = self.number(name, 1.0)
        if found is not None and found > MOST_TOKENS:
            self._wrong(name, f"a number of at most {MOST_TOKENS:,} tokens", self.fields.get(name))
            return None
        return found

    def number(self, name: str, least: float = 0.0, *, above: bool = False, infinite: bool = False) -> float | None:
        """A number of at least (or ``above``) ``least``; the word ``inf`` where it may be ``infinite``."""
        value = self.fields.get(name)
        if value is None:
            return None
        if infinite and isinstance(value, str) and value.strip().lower() in ("inf", ".inf", "infinity"):
            return math.inf
        found = _finite(value, infinite=infinite)
        if found is None or found < least or (above and found <= least):
            self._wrong(name, f"a number {'above' if above else 'of at least'} {least:g}", value)
            return None
        return found

    def whole(self, name: str, most: int = MOST) -> int | None:
        """A whole number from 1 to ``most``."""
        value = self.fields.get(name)
        if value is None:
            return None
        found = _finite(value)
        if found is None or found != int(found) or not 1 <= found <= most:
            self._wrong(name, f"a whole number from 1 to {most:,}", value)
            return None
        return int(found)

    def whole_or(self, names: Iterable[str], default: int, most: int = MOST) -> int:
        """The first of these that is there."""
        return next((v for v in (self.whole(n, most) for n in names) if v is not None), default)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, bool):
            self._wrong(name, "true or false", value)
            return default
        return default if value is None else value

    def part(self, name: str) -> Fields:
        """The fields under a name."""
        return Fields(self.fields.get(name), f"{self.where}{name}.", self.faults)

    def _wrong(self, name: str, what: str, value: object) -> None:
        self.faults.append(f"{self.where}{name} must be {what}, not {shown(value)}")


def measurements(value: object) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What was measured, without what cannot have been, and a remark for each that was left out.

    Times, rates, shares and staleness are never negative; zero may be one (a wait) and may not (a step), which is for those to say
    who compare it.
    """
    if value is None:
        return {}, ()
    if not isinstance(value, Mapping):
        return {}, (f"measured must be a mapping of measurements, not {shown(value)}: left out",)
    found: dict[str, Any] = {}
    remarks = []
    for name, said in value.items():
        if isinstance(said, Mapping):
            points = {n: v for n, v in said.items() if _finite(n) is not None and (_finite(v) or 0.0) > 0}
            if len(points) < len(said):
                remarks.append(f"measured.{name}: points that are no numbers above zero were left out")
            found[str(name)] = points
        elif isinstance(said, int | float) and not isinstance(said, bool) and (_finite(said) or 0.0) <= 0 and said != 0:
            remarks.append(f"measured.{name} {shown(said)} is no measurement: left out")
        elif said == 0 and str(name).startswith(_NEVER_ZERO):
            remarks.append(f"measured.{name} 0 is no measurement: left out")
        elif isinstance(said, str) and _NUMBER.fullmatch(said.strip()):
            remarks.append(f"measured.{name} {shown(said)} is text and not a number: left out")
        else:
            found[str(name)] = said
    return found, tuple(remarks)


_NEVER_ZERO = ("step_time", "effective_train_tokens", "train_tokens", "tokens_per_s", "weight_sync_s", "speedup")


_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


def _finite(value: object, *, infinite: bool = False) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return None if math.isnan(number) or (math.isinf(number) and not infinite) else number


def shown(value: object) -> str:
    """A value as an error shows it."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole numbers of over 4300 digits
        return f"one of {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
