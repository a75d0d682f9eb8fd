"""Writes the CRD from the models, or says that the file is out of date: ``python -m dev.crds [--check]``.

The generated file is kept in the repository, since users apply it from there and reviewers see in it what a change of
the models means for them.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from rljob_planner.api.crd import crd_yaml

ROOT = Path(__file__).resolve().parents[1]
CRD_FILE = ROOT / "crds" / "rljob.dev_rljobs.yaml"
"""The CRD that users apply."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the file, or with ``--check`` returns 1 and shows what would change."""
    parser = argparse.ArgumentParser(prog="python -m dev.crds", description="Generate the CRD from the models.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is out of date")
    wanted = crd_yaml()
    found = CRD_FILE.read_text(encoding="utf-8") if CRD_FILE.exists() else ""
    if not parser.parse_args(arguments).check:
        CRD_FILE.write_text(wanted, encoding="utf-8")
        return 0
    if found == wanted:
        return 0
    name = CRD_FILE.relative_to(ROOT)
    diff = difflib.unified_diff(found.splitlines(), wanted.splitlines(), str(name), "generated", lineterm="")
    print("\n".join(diff))
    print(f"{name} is out of date: run `python -m dev.crds`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
