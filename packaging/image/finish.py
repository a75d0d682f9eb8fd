"""Last step of the image's build stage: what the environment holds is made final, and the simulator compiled against it.

Byte code is valid for the time at which its source was changed, and layers of an image carry times to the second at best. So every file first
gets one whole second, the same in every build, and only then anything is compiled; a container, its root being read-only, would
else compile all of it again at each start.
"""

from __future__ import annotations

import compileall
import os
import shutil
import sys
from pathlib import Path

MADE_AT_S = int(os.environ.get("SOURCE_DATE_EPOCH", "1767225600"))
"""What every file's time becomes, seconds since the epoch."""


def main(environment: Path) -> None:
    """Finish the virtual environment at a path; raises RuntimeError if the simulator was not compiled to where it is looked for."""
    for folder in sorted(environment.glob("lib/python*/site-packages/*/**/tests")):
        # A sixth of the environment; nothing that runs imports them.
        shutil.rmtree(folder, ignore_errors=True)
    for path in [environment, *environment.rglob("*")]:
        os.utime(path, (MADE_AT_S, MADE_AT_S), follow_symlinks=False)
    if not compileall.compile_dir(environment / "lib", quiet=2, workers=1):
        print("some files are not of this Python and were left uncompiled", file=sys.stderr)

    from rljob_planner.simulate import warm_up

    warm_up()
    cache = Path(os.environ["NUMBA_CACHE_DIR"])
    compiled = list(cache.glob("*.bin"))
    if not compiled:
        raise RuntimeError(f"the simulator was compiled, but its machine code is not in {cache}")
    for path in [cache, *cache.rglob("*")]:
        # Whoever the container runs as may read it.
        path.chmod(0o755 if path.is_dir() else 0o644)
    size = sum(path.stat().st_size for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    print(
        f"{compiled[0].name} has {compiled[0].stat().st_size / 2**10:.0f} KiB, the environment {size / 2**20:.0f} MiB"
    )


if __name__ == "__main__":
    main(Path(sys.prefix))
