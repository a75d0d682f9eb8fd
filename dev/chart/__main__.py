"""Writes the chart's README, or says that it is out of date: ``python -m dev.chart [--check]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dev.chart import CHART, ROOT
from dev.chart.readme import readme


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes it, or with ``--check`` returns 1 if it is out of date."""
    parser = argparse.ArgumentParser(prog="python -m dev.chart", description="Generate the chart's README.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is out of date")
    check = parser.parse_args(arguments).check
    file, wanted = CHART / "README.md", readme()
    if file.exists() and file.read_text(encoding="utf-8") == wanted:
        return 0
    if check:
        print(f"{file.relative_to(ROOT)} is out of date: run `python -m dev.chart`", file=sys.stderr)
        return 1
    file.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
