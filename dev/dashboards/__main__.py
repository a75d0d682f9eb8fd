"""``python -m dev.dashboards``: write the dashboards' JSON and what the docs say of each panel; ``--check`` only says what is out of date."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dev.dashboards import fleet, job, planner_truth
from dev.dashboards.board import Board

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "charts" / "rljob-operator" / "dashboards"

PAGE = ROOT / "docs" / "dashboards.md"

BOARDS: dict[str, Board] = {"fleet": fleet.BOARD, "job": job.BOARD, "planner": planner_truth.BOARD}
"""The dashboards by the name of their file."""


def path_of(name: str) -> Path:
    """Where a dashboard's JSON is."""
    return FOLDER / f"{name}.json"


def text_of(name: str) -> str:
    """A dashboard's JSON as it is written."""
    return json.dumps(BOARDS[name].json(), indent=1, ensure_ascii=False) + "\n"


def page_text() -> str:
    """The page in the docs, with the list of panels below each dashboard as it is today; what surrounds the lists stays."""
    text = PAGE.read_text(encoding="utf-8")
    for name, board in BOARDS.items():
        lists = []
        for section in board.sections:
            lists += [f"{section.title}:", "", *(f"- **{p.title}**: {p.description}" for p in section.panels), ""]
        begin, end = f"<!-- panels of {name} -->", "<!-- end of panels -->"
        before, found, rest = text.partition(begin)
        if not found:
            raise ValueError(f"{PAGE}: there is no {begin}, below which the panels are listed")
        text = before + begin + "\n\n" + "\n".join(lists) + "\n" + end + rest.partition(end)[2]
    return text


def outdated() -> list[Path]:
    """Files that differ from what would be written today."""
    page = [PAGE] if PAGE.read_text(encoding="utf-8") != page_text() else []
    return page + [
        path_of(n) for n in BOARDS if not path_of(n).is_file() or path_of(n).read_text(encoding="utf-8") != text_of(n)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(prog="python -m dev.dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    if parser.parse_args(arguments).check:
        for path in outdated():
            print(f"{path.relative_to(ROOT)} is out of date; write it with: make dashboards", file=sys.stderr)
        return 1 if outdated() else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in BOARDS:
        path_of(name).write_text(text_of(name), encoding="utf-8")
        print(path_of(name).relative_to(ROOT))
    PAGE.write_text(page_text(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
