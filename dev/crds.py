"""Writes the CRDs from the models, or says that a file is out of date: ``python -m dev.crds [--check]``.

The generated files are kept in the repository, since users apply them from there and reviewers see in it what a change of
the models means for them. The chart gets copies, since helm reads nothing outside of a chart.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from rljob_planner.api.crd import crd_yaml, profile_crd_yaml

ROOT = Path(__file__).resolve().parents[1]
CRD_FILE = ROOT / "crds" / "rljob.dev_rljobs.yaml"
"""The CRD of RLJobs that users apply."""

PROFILE_CRD_FILE = ROOT / "crds" / "rljob.dev_rljobprofiles.yaml"
"""The CRD of RLJobProfiles that users apply."""

CHART_DIR = ROOT / "charts" / "rljob-operator" / "files" / "crds"
"""Where the chart has its copies, under the same names."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the files, or with ``--check`` returns 1 and shows what would change."""
    parser = argparse.ArgumentParser(prog="python -m dev.crds", description="Generate the CRDs from the models.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    check = parser.parse_args(arguments).check
    stale = [
        file
        for source, wanted in ((CRD_FILE, crd_yaml()), (PROFILE_CRD_FILE, profile_crd_yaml()))
        for file in (source, CHART_DIR / source.name)
        if _differs(file, wanted, check)
    ]
    return 1 if stale else 0


def _differs(file: Path, wanted: str, check: bool) -> bool:
    """Whether a file is out of date; it is shown how, or made good."""
    found = file.read_text(encoding="utf-8") if file.exists() else ""
    if not check:
        file.write_text(wanted, encoding="utf-8")
        return False
    if found == wanted:
        return False
    name = file.relative_to(ROOT)
    diff = difflib.unified_diff(found.splitlines(), wanted.splitlines(), str(name), "generated", lineterm="")
    print("\n".join(diff))
    print(f"{name} is out of date: run `python -m dev.crds`", file=sys.stderr)
    return True


if __name__ == "__main__":
    sys.exit(main())
