"""The folders ``operator`` and ``planner`` are no packages: from the repository's root ``import operator`` must be Python's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_operator_is_the_standard_librarys_from_the_root() -> None:
    code = "import operator, json, collections; print(operator.__file__); print(operator.itemgetter(1)('ab'))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    where, item = ran.stdout.split()
    assert not Path(where).is_relative_to(ROOT)
    assert item == "b"


def test_the_folders_are_no_packages() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "planner" / "__init__.py").exists()
