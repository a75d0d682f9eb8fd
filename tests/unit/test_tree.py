"""What the tree holds is what a clone gets."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
MADE = ("__pycache__", ".egg-info", ".pytest_cache", ".nbi", ".nbc")
"""Parts of the names of what tools write beside our sources."""


def test_no_source_is_hidden_from_git() -> None:
    """A pattern of .gitignore that fits a source makes all pass here and fail on every clone."""
    command = ["git", "ls-files", "-z", "--others", "--ignored", "--exclude-standard"]
    parts = [
        part.name
        for part in ROOT.iterdir()
        if part.is_dir() and not part.name.startswith((".", "build", "dist", "site"))
    ]
    try:
        listed = subprocess.run([*command, "--", *parts], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout of git")
    hidden = [PurePosixPath(path) for path in listed.stdout.split("\0") if path]
    made = [
        path
        for path in hidden
        if path.is_relative_to("runtime/build") or any(part.endswith(MADE) for part in path.parts)
    ]
    assert sorted(set(hidden) - set(made)) == []
