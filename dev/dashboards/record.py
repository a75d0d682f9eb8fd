"""``python -m dev.dashboards.record``: run the demo and keep what Prometheus answers to every query of the dashboards.

The pictures in the docs are of a real run. Its answers are kept in the repository, compressed, so that a panel that moves or changes its
colour is drawn anew without another run; only a query that is new needs one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dev.controlplane import ensure_built
from dev.dashboards.__main__ import BOARDS
from dev.dashboards.panels import Json
from dev.dashboards.queries import Filling, asked
from dev.demo.__main__ import Demo
from dev.demo.view import View
from dev.demo.world import HERE, ROOT, TEAM, World

FILE = Path(__file__).resolve().parent / "recorded.json.gz"
"""The answers of a run of the demo."""

STEP_S = 2.0
"""Distance of the points on a graph."""

RATE_S = 10.0
"""``$__rate_interval`` of the pictures."""

WINDOW = "20s"
"""``$window`` of the pictures: several of the demo's steps."""

SETTLED_S = 60.0
"""How long the last move may take to be measured before the recording ends without that."""


def ask(url: str, path: str, **parameters: Any) -> list[Json]:
    """What Prometheus answers; raises OSError with its message for a query that it refuses."""
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=60) as response:
        data = json.load(response)["data"]
    found: list[Json] = data["result"]
    return found


def record(
    url: str,
    dashboards: Iterable[Json],
    variables: Mapping[str, str],
    *,
    from_s: float,
    to_s: float,
    step_s: float = STEP_S,
) -> Json:
    """The answers of the Prometheus at ``url`` to all queries, by the query as the dashboard has it.

    Times are seconds since the epoch. Ranges have a point every ``step_s`` seconds; what is shown as one value is asked for at the end.
    """
    from_s, to_s = from_s // step_s * step_s, to_s // step_s * step_s
    filling = Filling(variables, RATE_S, to_s - from_s)
    answers: dict[str, Json] = {}
    for query in {one.expr: one for board in dashboards for one in asked(board)}.values():
        expr = filling.fill(query.expr)
        ranges = ask(url, "query_range", query=expr, start=from_s, end=to_s, step=step_s)
        answers[query.expr] = {
            "range": [{"metric": s["metric"], "values": [[t, _short(v)] for t, v in s["values"]]} for s in ranges],
            "instant": [
                {"metric": s["metric"], "value": [s["value"][0], _short(s["value"][1])]}
                for s in ask(url, "query", query=expr, time=to_s)
            ],
        }
    return {"from": from_s, "to": to_s, "step": step_s, "variables": dict(variables), "answers": answers}


def _short(value: str) -> str:
    """A value with as many digits as a graph can show; times in milliseconds keep all."""
    number = float(value)
    return value if abs(number) >= 1e6 else f"{number:.6g}"


def save(recorded: Json, path: Path = FILE) -> None:
    """Keep a recording; the same answers give the same bytes."""
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
        file.write(json.dumps(recorded, sort_keys=True, separators=(",", ":")).encode())


def load(path: Path = FILE) -> Json:
    """A recording that was kept."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found: Json = json.load(file)
    return found


class RecordedDemo(Demo):
    """The demo, whose Prometheus is asked before it ends."""

    def _watch(self, world: World, view: View) -> None:
        began_s = time.time()
        super()._watch(world, view)
        view.say("waiting for the last move to be measured")
        deadline = time.monotonic() + SETTLED_S
        while (
            time.monotonic() < deadline
            and (self._history.status.get("moves") or {}).get("measured", {}).get("gain") is None
        ):
            world.check()
            time.sleep(1.0)
        view.say("asking Prometheus for everything that the dashboards show")
        boards = [board.json() for board in BOARDS.values()]
        names = {"namespace": TEAM, "job": world.name, "window": WINDOW}
        # The gauges of a pass that has just ended have to be scraped.
        time.sleep(2.0)
        save(record(world.prometheus_url, boards, names, from_s=began_s, to_s=time.time()))


def main() -> int:
    """Run the demo and record."""
    parser = argparse.ArgumentParser(prog="python -m dev.dashboards.record", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=ROOT / ".demo", help="folder for the demo's results (default: .demo)"
    )
    output = parser.parse_args().output
    # What an earlier run has left would be read as steps of this one.
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    ensure_built()
    return RecordedDemo(output, HERE / "job.yaml", HERE / "emulator.yaml", limit_s=250.0).run()


if __name__ == "__main__":
    sys.exit(main())
