"""What a row of a file states: fields read one at a time, and in words which of them say nothing.

A file of measurements is as good as its sources, so a row with a hole in it is the ordinary case: it stays in the table without a
prediction, names the field, and leaves all other rows alone. Only a file whose shape is wrong (a mapping where a list
of rows should be) is refused as a whole, since then nobody can say what its rows are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rljob_planner.errors import PlanningError

_SHOWN = 40
TABLES = ("splitwise_points", "blis_ground_truth_itl", "llmservingsim_ground_truth")
"""Parts of a file that are one table each."""
POINTS = "rows_bs_ttft_tpot"
"""The rows of a curve: requests in flight, milliseconds to the first token, milliseconds a token."""


class Stated:
    """Reads fields by kind; what is null or makes no sense comes back as None and is named in ``reason``."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self._null: list[str] = []
        self._wrong: list[str] = []

    def text(self, name: str) -> str | None:
        """A name."""
        value = self._fields.get(name)
        if value is None:
            self._null.append(name)
        elif isinstance(value, bool | list | dict) or not str(value).strip():
            self._wrong.append(f"{name} {_short(value)} is no name")
        else:
            return str(value).strip()
        return None

    def text_or_none(self, name: str) -> str | None:
        """A name that a row may well leave out."""
        return None if self._fields.get(name) is None else self.text(name)

    def whole(self, name: str, most: int) -> int | None:
        """A whole number from 1 to ``most``."""
        value = self._number(name)
        if value is None:
            return None
        if not 1 <= value <= most or value != int(value):
            self._wrong.append(f"{name} {_short(self._fields[name])} is no whole number from 1 to {most}")
            return None
        return int(value)

    def milliseconds(self, name: str) -> float | None:
        """A measured time above zero."""
        value = self._number(name)
        if value is not None and value <= 0:
            self._wrong.append(f"{name} {_short(self._fields[name])} is no time above 0 ms")
            return None
        return value

    def milliseconds_or_none(self, name: str) -> float | None:
        """A measured time that a prediction can do without."""
        return None if self._fields.get(name) is None else self.milliseconds(name)

    @property
    def reason(self) -> str | None:
        """Which of the fields read so far are null or wrong; None if all are there."""
        null = [f"null in the file: {', '.join(self._null)}"] if self._null else []
        return "; ".join([*null, *self._wrong]) or None

    def _number(self, name: str) -> float | None:
        value = self._fields.get(name)
        if value is None:
            self._null.append(name)
            return None
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            self._wrong.append(f"{name} {_short(value)} is no number")
            return None
        return number


def cell_fields(columns: tuple[str, ...], row: list[Any]) -> dict[str, Any]:
    """A row of a table by column; what a short row lacks is null."""
    return dict(zip(columns, [*row, *[None] * (len(columns) - len(row))], strict=False))


def check_shape(document: Mapping[str, Any], name: str) -> None:
    """Raises PlanningError ``InvalidCases`` with key and row where a file's serving measurements are no lists of rows."""
    for i, curve in enumerate(_list(document, "serving_points", name)):
        where = f"{name}: serving_points[{i}]"
        _mapping(curve, where, "model, gpu, engine, precision, tp, isl, osl and " + POINTS)
        for j, row in enumerate(_list(curve, POINTS, where, ".")):
            if row is not None and not isinstance(row, list):
                raise _invalid(f"{where}.{POINTS}[{j}] must be a list [batch, ttft, tpot], not {_short(row)}")
    for i, table in enumerate(_list(document, "nim_points", name)):
        _check_table(table, f"{name}: nim_points[{i}]")
    for key in TABLES:
        if document.get(key) is not None:
            _check_table(document[key], f"{name}: {key}")
    for key in ("training_throughput", "weight_sync"):
        if isinstance(document.get(key), Mapping) and document[key].get("rows"):
            _check_table(document[key], f"{name}: {key}")
    for i, rule in enumerate(_list(document, "exclusions", name)):
        where = f"{name}: exclusions[{i}]"
        _mapping(rule, where, "a reason, and the model, engine, gpu or max_ttft_ms that it is for")
        if not rule.get("reason"):
            raise _invalid(f"{where} has no reason: write why these rows are not judged")
        limit = rule.get("max_ttft_ms", 0)
        if isinstance(limit, bool) or not isinstance(limit, int | float) or math.isnan(limit):
            raise _invalid(f"{where}.max_ttft_ms must be a number of milliseconds, not {_short(limit)}")


def _check_table(table: Any, where: str) -> None:
    _mapping(table, where, "columns and rows")
    columns = table.get("columns")
    if not isinstance(columns, list) or not all(isinstance(c, str) for c in columns):
        raise _invalid(f"{where}.columns must be a list of names, not {_short(columns)}")
    for j, row in enumerate(_list(table, "rows", where, ".")):
        if not isinstance(row, list) or len(row) > len(columns):
            raise _invalid(f"{where}.rows[{j}] must be a list of {', '.join(columns)}, not {_short(row)}")


def _list(fields: Mapping[str, Any], key: str, where: str, dot: str = ": ") -> list[Any]:
    found = fields.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise _invalid(f"{where}{dot}{key} must be a list of rows, not {_short(found)}")
    return found


def _mapping(value: Any, where: str, fields: str) -> None:
    if not isinstance(value, Mapping):
        raise _invalid(f"{where} must be a mapping with {fields}, not {_short(value)}")


def _invalid(message: str) -> PlanningError:
    return PlanningError("InvalidCases", message)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole numbers of over 4300 digits
        return f"of {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
