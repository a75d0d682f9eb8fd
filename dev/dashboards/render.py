"""``python -m dev.dashboards.render``: draw the dashboards for the docs from a recorded run, with Grafana's own components.

There is no server of Grafana in it. A small page takes a dashboard's JSON and Prometheus's answers, lets Grafana's packages do what they do in
a browser (units, overrides, legends, graphs), and headless Chromium takes the picture. The packages are installed and built once, in the
user's cache. Beside the pictures stands of which JSON they are: a test says when a dashboard has changed and its picture has not.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from dev.dashboards.__main__ import BOARDS, ROOT, path_of
from dev.dashboards.panels import Json
from dev.dashboards.record import FILE, load

HERE = Path(__file__).resolve().parent
PAGE = HERE / "page"
IMAGES = ROOT / "docs" / "img"
DIGESTS = IMAGES / "dashboards.sha256"
"""Of which JSON the pictures are, in the format of sha256sum."""

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
COLORS = 200
"""Colours of a picture: as many as keep letters smooth, and a fifth of the bytes of all."""


class RenderError(RuntimeError):
    """Something that is needed to draw is missing, or failed; the message says what to do."""


def cache() -> Path:
    """Where the page is built: beside the cache of the control plane, by what it is built from."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rljob-operator" / "grafana"
    lock = hashlib.sha256((PAGE / "package-lock.json").read_bytes()).hexdigest()[:12]
    return base / lock


def picture_of(name: str) -> Path:
    """Where a dashboard's picture is."""
    return IMAGES / f"dashboard-{name}.png"


def digest_of(name: str) -> str:
    """Of the JSON that a dashboard has in the chart."""
    return hashlib.sha256(path_of(name).read_bytes()).hexdigest()


def digests() -> dict[str, str]:
    """Of which JSON each dashboard's picture is, by the dashboard's name; empty if none was drawn."""
    if not DIGESTS.is_file():
        return {}
    pairs = [line.split() for line in DIGESTS.read_text(encoding="utf-8").splitlines()]
    return {Path(file).stem.removeprefix("dashboard-"): digest for digest, file in pairs}


def build() -> Path:
    """Build the page; returns the folder of its files. The first time this takes a minute for Grafana's packages."""
    npm = shutil.which("npm")
    if npm is None:
        raise RenderError("npm is not here: install Node.js 20 or newer, which brings it")
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    for file in PAGE.iterdir():
        if file.is_file():
            shutil.copy2(file, folder / file.name)
    if not (folder / "node_modules" / ".installed").exists():
        print(f"Installing Grafana's packages into {folder}", flush=True)
        _run([npm, "ci", "--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund"], folder)
        (folder / "node_modules" / ".installed").touch()
    _run([npm, "run", "--silent", "build"], folder)
    return folder / "dist"


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise RenderError(f"{' '.join(command)} failed in {folder}:\n{(done.stdout + done.stderr)[-3000:]}")


def payload(name: str, recorded: Json) -> Json:
    """What the page draws: the dashboard with the answers of each panel; raises RenderError for a query that was not recorded."""
    dashboard = json.loads(path_of(name).read_text(encoding="utf-8"))
    answers = recorded["answers"]
    for panel in dashboard["panels"]:
        panel["answers"] = []
        for target in panel.get("targets", ()):
            if target["expr"] not in answers:
                raise RenderError(
                    f"{name}: {panel['title']}: {target['expr']} is not in {FILE.name}: record a run with python -m dev.dashboards.record"
                )
            answer = answers[target["expr"]]
            panel["answers"].append({"refId": target["refId"], "legend": target["legendFormat"], **answer})
    marks = {
        (float(value), one["iconColor"])
        for one in dashboard["annotations"]["list"]
        for series in answers[one["expr"]]["range"]
        for _, value in series["values"]
    }
    shown = [v["name"] for v in dashboard["templating"]["list"] if v["name"] in recorded["variables"]]
    return {
        "dashboard": dashboard,
        "from": recorded["from"] * 1000,
        "to": recorded["to"] * 1000,
        "step": recorded["step"] * 1000,
        "variables": {name: recorded["variables"][name] for name in shown},
        "annotations": [{"time": time_ms, "color": color} for time_ms, color in sorted(marks)],
    }


def height_of(dashboard: Json) -> int:
    """Pixels of a dashboard's page, as main.jsx lays it out."""
    bottom = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard["panels"])
    return int(76 + bottom * 38 + 20)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def draw(name: str, page: Path, recorded: Json, out: Path) -> None:
    """Draw one dashboard into a PNG."""
    chromium = next((found for each in CHROMIUM if (found := shutil.which(each))), None)
    if chromium is None:
        raise RenderError(f"no browser is here: install one of {', '.join(CHROMIUM)}")
    data = payload(name, recorded)
    with tempfile.TemporaryDirectory(prefix="dashboards-") as scratch:
        folder = Path(scratch)
        shutil.copytree(page, folder / "site")
        (folder / "site" / "payload.json").write_text(json.dumps(data))
        handler = functools.partial(_Quiet, directory=str(folder / "site"))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            raw = folder / "raw.png"
            command = [
                chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}",
                f"--window-size=1600,{height_of(data['dashboard'])}", "--force-device-scale-factor=1", "--timeout=30000",
                "--virtual-time-budget=15000", f"--screenshot={raw}", f"http://127.0.0.1:{server.server_port}/index.html",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            server.shutdown()
        if not raw.exists():
            raise RenderError(f"{chromium} took no picture:\n{done.stderr[-2000:]}")
        _compress(raw, out)


def _compress(raw: Path, out: Path) -> None:
    from PIL import Image

    with Image.open(raw) as full:
        small = full.convert("RGB").quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        out.parent.mkdir(parents=True, exist_ok=True)
        small.save(out, optimize=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw all dashboards, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m dev.dashboards.render", description=__doc__)
    parser.add_argument("names", nargs="*", default=[*BOARDS], help=f"which: {', '.join(BOARDS)} (default: all)")
    parser.add_argument("--recorded", type=Path, default=FILE, help="answers that were kept by dev.dashboards.record")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder for the pictures (default: docs/img)")
    options = parser.parse_args(arguments)
    try:
        page, recorded = build(), load(options.recorded)
        for name in options.names:
            out = options.images / picture_of(name).name
            draw(name, page, recorded, out)
            print(
                f"{out.relative_to(ROOT) if out.is_relative_to(ROOT) else out}: {out.stat().st_size // 1024} kB",
                flush=True,
            )
    except RenderError as error:
        print(error, file=sys.stderr)
        return 1
    if options.images == IMAGES:
        now = digests() | {name: digest_of(name) for name in options.names}
        DIGESTS.write_text(
            "".join(f"{now[name]}  {picture_of(name).name}\n" for name in BOARDS if name in now), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
