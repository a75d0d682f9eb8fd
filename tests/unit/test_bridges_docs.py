"""The page on frameworks says of each bridge what its table says: the metrics, all of them and no other, and the keys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rljob_runtime.bridges import FRAMEWORKS
from rljob_runtime.bridges.dialect import Dialect

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "frameworks.md").read_text(encoding="utf-8")
DIALECTS = [dialect for framework in FRAMEWORKS.values() for dialect in framework.dialects]


def table_of(dialect: Dialect) -> list[str]:
    """The rows of the table that follows the line which names the dialect."""
    _, found, after = PAGE.partition(f"\n**{dialect.name}**")
    assert found, f"docs/frameworks.md has no table for {dialect.name}"
    return [
        line for line in re.split(r"\n\n(?!\|)", after.split("\n\n", 1)[1])[0].splitlines() if line.startswith("| `")
    ]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_the_table_of_a_dialect_names_its_metrics_and_no_other(dialect: Dialect) -> None:
    named = [re.match(r"\| `(\w+)`", row) for row in table_of(dialect)]
    assert {match[1] for match in named if match} == dialect.measured


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_the_table_of_a_dialect_names_every_key_that_it_rests_on(dialect: Dialect) -> None:
    table = " ".join(table_of(dialect))
    keys = {key for rule in dialect.rules for key in (*rule.needs, *rule.optional)}
    # What a tap adds of a call's other arguments is no key of the log.
    logged = {key for key in keys if not key.startswith(("args.", "state."))}
    assert {key for key in logged if f"`{key}`" not in table} == set()


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_the_version_that_a_table_was_read_from_is_said(dialect: Dialect) -> None:
    _, _, after = PAGE.partition(f"\n**{dialect.name}**")
    assert dialect.version in after.partition("\n")[0]


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_each_framework_has_its_section_with_what_to_add_and_what_can_be_resized(name: str) -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (section,) = [s for s in sections if f"`RLJOB_BRIDGE={name}`" in s and not s.startswith("Switching")]
    for part in ("\nAdd `", "Not measured:", "Staleness:", "Resizing:"):
        assert part in section, part


def test_every_setting_of_the_page_is_one_that_is_read() -> None:
    read = "".join(
        path.read_text(encoding="utf-8")
        for path in (Path(__file__).resolve().parents[2] / "runtime" / "rljob_runtime" / "bridges").glob("*.py")
    )
    for variable in set(re.findall(r"`(RLJOB_BRIDGE_[A-Z_]+)", PAGE)):
        assert variable in read, variable
    for metric in set(re.findall(r"`(rljob_bridge_\w+)`", PAGE)):
        assert metric in read, metric
