"""Collects metrics for a diagnosis: from recorded scrapes, from dumps of range queries, or from a live Prometheus.

What people have at hand when a job is slow is what ``curl`` saved from a few pods, or what a colleague exported; so files of either
kind do, as long as somebody says how far apart scrapes were. Text in the exposition format carries no time of its own: it comes from
``--interval``, from a number in the file's name that is a time, or, with a word about it, from the file's date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_operator.evidence import NAMES, Recording, Track, tracks_of
from rljob_operator.exposition import ExpositionError, parse_exposition
from rljob_operator.prometheus import NONSENSE

if TYPE_CHECKING:
    from rljob_operator.prometheus import Prometheus

_EPOCH = re.compile(r"(?<!\d)(\d{10})(\d{3})?(?!\d)")
LEAST_INTERVAL_S = 1.0
"""Time between two scrapes below which the dates of files are those of a copy."""
_LEAST_EPOCH, _MOST_EPOCH = 1.5e9, 4e9


class RecordingError(Exception):
    """A recording that cannot be read; the message says which file and why."""


def read_recording(paths: Sequence[str | Path], interval_s: float | None = None) -> Recording:
    """The recording in these files and folders; raises RecordingError.

    Exposition texts given together, or in one folder, are scrapes of one target in this order, or in that of their names; a folder's
    subfolders are targets of their own, named after them. JSON files hold answers of ``/api/v1/query_range`` (or ``query``).
    ``interval_s``: seconds between two scrapes.
    """
    texts: list[Path] = []
    dumps: list[Path] = []
    targets: list[tuple[str, list[Path]]] = []
    for path in map(Path, paths):
        try:
            if not path.is_dir():
                (dumps if path.suffix == ".json" else texts).append(path)
                continue
            inside = sorted((p for p in path.iterdir() if not p.name.startswith(".")), key=_in_order)
        except OSError as error:
            raise RecordingError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        dumps += [p for p in inside if p.is_file() and p.suffix == ".json"]
        texts += [p for p in inside if p.is_file() and p.suffix != ".json"]
        targets += [
            (p.name, sorted((f for f in p.iterdir() if f.is_file() and not f.name.startswith(".")), key=_in_order))
            for p in inside
            if p.is_dir()
        ]
    if texts:
        targets.insert(0, ("", texts))
    tracks: list[Track] = []
    notes: list[str] = []
    timed = True
    for target, files in targets:
        found, has_times = _scrapes(target, files, interval_s, notes)
        tracks += found
        timed = timed and has_times
    for path in dumps:
        tracks += _dump(path)
    if not tracks:
        raise RecordingError(
            f"{', '.join(map(str, paths))}: there is no rljob_* or vllm:* metric in it: record what the trainer's and the samplers' "
            "pods show at /metrics"
        )
    if not timed and any(len(t.points) > 1 for t in tracks):
        notes.append("how far apart scrapes were is not known, so there are no rates: say it with --interval")
    return Recording(tuple(tracks), timed, tuple(dict.fromkeys(notes)))


async def record(prometheus: Prometheus, selector: str, *, at: float, window_s: float) -> Recording:
    """What a live Prometheus has of the series that ``selector`` picks, over the ``window_s`` before ``at`` (s since the epoch).

    Raw points, so that what is missing is seen to be. Raises PrometheusError, and RecordingError if there is nothing.
    """
    names = "|".join(NAMES)
    matchers = f'__name__=~"{names}"' + (f",{selector}" if selector else "")
    rows = await prometheus.query(f"{{{matchers}}}[{max(1, int(window_s * 1000))}ms]", at=at)
    tracks = tuple(Track(row.name, row.labels, row.points) for row in rows)
    if not tracks:
        raise RecordingError(
            f"Prometheus at {prometheus.url} has no rljob_* or vllm:* series with {selector or 'any labels'} in the last "
            f"{window_s:.0f} s: check that the job's pods are scraped, and the selector"
        )
    return Recording(tracks)


def _scrapes(
    target: str, files: Sequence[Path], interval_s: float | None, notes: list[str]
) -> tuple[list[Track], bool]:
    """The series of one target, and whether their times are seconds."""
    scrapes = []
    own: list[float | None] = []
    for path in files:
        try:
            samples = parse_exposition(path.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise RecordingError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        except UnicodeDecodeError:
            raise RecordingError(f"{path}: this is no text, so it is no scrape") from None
        except ExpositionError as error:
            raise RecordingError(str(error)) from None
        own.append(next((s.time_s for s in samples if s.time_s is not None), None))
        scrapes.append([(s.name, s.labels, s.value) for s in samples])
    times, timed = _times(files, own, interval_s, notes)
    return tracks_of(list(zip(times, scrapes, strict=True)), target), timed


def _times(
    files: Sequence[Path], own: Sequence[float | None], interval_s: float | None, notes: list[str]
) -> tuple[list[float], bool]:
    """When each scrape was, and whether that is in seconds."""
    order = [float(i) for i in range(len(files))]
    if interval_s is not None:
        return [i * interval_s for i in order], True
    for times in (own, [_named(p) for p in files]):
        known = [t for t in times if t is not None]
        if len(known) == len(files) and _rising(known):
            return known, True
    dates = [p.stat().st_mtime for p in files]
    if len(files) > 1 and all(later - earlier >= LEAST_INTERVAL_S for earlier, later in pairwise(dates)):
        notes.append(
            "scrapes are taken to be as far apart as the dates of their files: say it with --interval if they are not"
        )
        return dates, True
    return order, len(files) == 1


def _rising(times: Sequence[float]) -> bool:
    return all(later > earlier for earlier, later in pairwise(times))


def _named(path: Path) -> float | None:
    """The time in a file's name, in seconds since the epoch; None if there is none."""
    match = _EPOCH.search(path.name)
    if match is None:
        return None
    time = float(match[1]) + float(match[2] or 0) / 1000.0
    return time if _LEAST_EPOCH < time < _MOST_EPOCH else None


def _in_order(path: Path) -> list[tuple[int, int, str]]:
    """Names as people count: 2 before 10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", path.name) if part]


def _dump(path: Path) -> list[Track]:
    """The series in a dump of answers of Prometheus's API, however they are nested."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordingError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise RecordingError(f"{path}: this is no JSON: {error}") from None
    try:
        tracks = []
        for row in _rows(document):
            points = row["values"] if "values" in row else [row["value"]]
            numbers = tuple((float(t), float(v)) for t, v in points)
            finite = tuple((t, v) for t, v in numbers if abs(v) < NONSENSE)
            name = str(row["metric"].get("__name__", ""))
            if finite and name in NAMES:
                tracks.append(Track(name, {k: str(v) for k, v in row["metric"].items()}, finite))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(f"{path}: this is no answer of /api/v1/query_range ({error})") from None
    return tracks


def _rows(node: Any) -> Iterable[dict[str, Any]]:
    if isinstance(node, dict):
        if "metric" in node and ("values" in node or "value" in node):
            yield node
            return
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _rows(part)
