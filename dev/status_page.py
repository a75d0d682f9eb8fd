"""``python -m dev.status_page``: run the demo and photograph the operator's status page for the docs.

The pictures are of a real run, in a real browser: what a reader of the docs sees is what the page is. The JSON of the same moment is kept
beside the demo's other results, for whoever wants to know what a picture shows.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from dev.controlplane import ensure_built
from dev.demo.__main__ import Demo
from dev.demo.view import View
from dev.demo.world import HERE, ROOT, TEAM, World

IMAGES = ROOT / "docs" / "img"

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

SETTLED_S = 60.0
"""How long the last move may take to be measured before the picture is taken without that."""


def browser() -> str | None:
    """A Chromium of this machine, None if there is none."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def photograph(url: str, path: Path, *, width: int, height: int, dark: bool = False) -> None:
    """A picture of a page, in pixels; raises RuntimeError without a browser, CalledProcessError if it fails."""
    program = browser()
    if program is None:
        raise RuntimeError(f"a picture needs one of {', '.join(BROWSERS)}: install one")
    scheme = "0" if dark else "1"
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={path}",
                f"--blink-settings=preferredColorScheme={scheme}", url,
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )  # fmt: skip


class PhotographedDemo(Demo):
    """The demo, whose status page is photographed before it ends."""

    def _watch(self, world: World, view: View) -> None:
        super()._watch(world, view)
        view.say("waiting for the last move to be measured")
        deadline = time.monotonic() + SETTLED_S
        while (
            time.monotonic() < deadline
            and (self._history.status.get("moves") or {}).get("measured", {}).get("gain") is None
        ):
            world.check()
            time.sleep(1.0)
        page = f"{world.status_page_url}/jobs/{TEAM}/{world.name}?refresh=off"
        photograph(page, IMAGES / "status-page.png", width=1280, height=1200)
        photograph(
            f"{world.status_page_url}/?refresh=off", IMAGES / "status-page-jobs.png", width=1280, height=330, dark=True
        )
        with urllib.request.urlopen(f"{world.status_page_url}/api/jobs/{TEAM}/{world.name}", timeout=10) as response:
            (self._output / "status-page.json").write_bytes(response.read())
        view.say("photographed the status page")


def main() -> int:
    """Run; returns the demo's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m dev.status_page", description="Pictures of the status page for the docs."
    )
    parser.add_argument("--output", type=Path, default=ROOT / ".demo", help="folder for the demo's results")
    args = parser.parse_args()
    if browser() is None:
        print(f"a picture needs one of {', '.join(BROWSERS)}: install one", file=sys.stderr)
        return 1
    shutil.rmtree(args.output, ignore_errors=True)
    args.output.mkdir(parents=True)
    ensure_built()
    return PhotographedDemo(args.output, HERE / "job.yaml", HERE / "emulator.yaml", 250.0).run()


if __name__ == "__main__":
    sys.exit(main())
