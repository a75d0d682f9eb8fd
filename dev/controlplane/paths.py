"""Where the local control plane keeps what must outlive a run, and what must not.

Everything lies under one per-user cache directory, so that a user can look at it, move it (``XDG_CACHE_HOME``) and
delete it as a whole:

- ``bin/<family>-<version>-<key>/``: the built binaries, one directory for each Go module file;
- ``go/``: module and build caches of a build that has not finished yet; removed once every family is built;
- ``toolchain/``: a Go toolchain, present only on machines that have none;
- ``run/<name>/``: the data directories of planes that run now.
"""

from __future__ import annotations

import os
from pathlib import Path

GO_MODULES_DIR = Path(__file__).parent / "go"
"""The directory with one ``go.mod``/``go.sum`` pair for each family of binaries."""


def cache_dir() -> Path:
    """Return the per-user cache directory of this project (not created)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "rljob-operator"


def run_dir() -> Path:
    """Return the directory that holds one data directory for each running plane (not created)."""
    return cache_dir() / "run"
