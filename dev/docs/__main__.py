"""Writes the generated documents: ``python -m dev.docs``, or some of them by name; with ``--check`` only says which are out of date.

The comparison with measurements comes first, since another page quotes it, and takes the longest.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dev.docs import api, command_line, first_principles, metrics, planner
from dev.docs.example import ROOT
from dev.docs.page import StaleProseError, differences

DOCS = ROOT / "docs"

PAGES: dict[str, Callable[[], str]] = {
    "first-principles.md": first_principles.text,
    "planner.md": planner.text,
    "cli.md": command_line.text,
    "metrics.md": metrics.text,
    "api.md": api.text,
}
"""Pages that are written and compared here; docs/validation.md has a module and a test of its own."""


def outdated(name: str) -> list[str]:
    """What differs between a committed page and what it would be today; empty if nothing does."""
    path = DOCS / name
    if not path.is_file():
        return [f"{path.relative_to(ROOT)} is not there"]
    try:
        return differences(path.read_text(encoding="utf-8"), PAGES[name]())
    except StaleProseError as error:
        return [str(error)]


def write(name: str) -> Path:
    """Write one page."""
    path = DOCS / name
    path.write_text(PAGES[name](), encoding="utf-8")
    return path


def write_figures() -> list[Path]:
    """Draw all figures."""
    from dev.docs import style

    written = []
    for name, draw in first_principles.FIGURES.items():
        path = DOCS / "img" / f"{name}.svg"
        style.save(draw(), path)
        written.append(path)
    return written


def main(arguments: Sequence[str]) -> int:
    """Write everything or the pages that are named, or compare."""
    if list(arguments) == ["--check"]:
        found = {name: lines for name in PAGES if (lines := outdated(name))}
        for name, lines in found.items():
            print(f"docs/{name} is out of date; write it with: python -m dev.docs")
            print("\n".join(f"  {line}" for line in lines[:10]))
        return 1 if found else 0
    if any(name not in PAGES for name in arguments):
        print(f"usage: python -m dev.docs [--check | {' | '.join(PAGES)} ...]", file=sys.stderr)
        return 2
    begin = time.perf_counter()
    if not arguments:
        importlib.import_module("dev.docs.validation").generate()
    for name in arguments or PAGES:
        print(write(name).relative_to(ROOT), flush=True)
        for path in write_figures() if name == "first-principles.md" else []:
            print(path.relative_to(ROOT), flush=True)
    print(f"in {time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
