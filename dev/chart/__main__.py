"""Writes the chart's generated files, or says that one is out of date: ``python -m dev.chart [--check]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dev.chart import CHART, ROOT
from dev.chart.readme import readme
from dev.chart.roles import FILES, role_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the files, or with ``--check`` returns 1 and names what is out of date."""
    parser = argparse.ArgumentParser(prog="python -m dev.chart", description="Generate the chart's README and roles.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    check = parser.parse_args(arguments).check
    stale = False
    for file, wanted in {CHART / "README.md": readme(), **{file: role_text(file) for file in FILES}}.items():
        if file.exists() and file.read_text(encoding="utf-8") == wanted:
            continue
        if check:
            print(f"{file.relative_to(ROOT)} is out of date: run `python -m dev.chart`", file=sys.stderr)
            stale = True
        else:
            file.write_text(wanted, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
