from __future__ import annotations

import json
import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from rljob_operator.cli import app
from rljob_planner import plots, plots_of_runs
from rljob_planner.drawing import MissingExtraError, drawing
from rljob_planner.report_html import Page, Section, Table, Tile, render

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "crds" / "samples" / "math-short.yaml"
SCENARIO = ROOT / "planner" / "rljob_planner" / "data" / "scenarios" / "train-bound.yaml"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@cache
def page(*arguments: str) -> str:
    result = run("report", *arguments, "-o", "-")
    assert result.exit_code == 0, result.stderr
    return result.stdout


class _Balanced(HTMLParser):
    """Fails on tags that are not closed in order, and collects ids and addresses."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self._attributes(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._attributes(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def _attributes(self, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.addresses += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v]


def checked(html: str) -> _Balanced:
    parser = _Balanced()
    parser.feed(html)
    parser.close()
    assert not parser.open
    assert len(parser.ids) == len(set(parser.ids)), "an id stands twice"
    return parser


@pytest.mark.parametrize("file", [SMALL, SCENARIO], ids=["job", "scenario"])
def test_a_page_stands_alone(file: Path) -> None:
    html = page(str(file))
    parser = checked(html)
    assert all(address.startswith("#") for address in parser.addresses)
    assert set(re.findall(r"url\(([^)]+)\)", html)) <= {f"#{i}" for i in parser.ids}
    assert "<script" not in html
    assert not re.search(r"@import|https?://(?!www\.w3\.org/)", html)


@pytest.mark.parametrize("file", [SMALL, SCENARIO], ids=["job", "scenario"])
def test_every_picture_has_its_words(file: Path) -> None:
    for svg in re.findall(r"<svg.*?</svg>", page(str(file)), flags=re.DOTALL):
        root = ElementTree.fromstring(svg)
        named = root.attrib["aria-labelledby"].split()
        assert root.attrib["role"] == "img"
        texts = {e.attrib["id"]: e.text for e in root.iter() if e.attrib.get("id") in named}
        assert set(texts) == set(named)
        assert all(len(text or "") > 5 for text in texts.values())


def test_the_report_of_a_job_answers_the_questions() -> None:
    html = page(str(SMALL))
    plan = json.loads(run("plan", str(SMALL), "-o", "json").stdout)
    for heading in (
        "Why this split",
        "Staleness",
        "The run",
        "Response lengths",
        "Run time and cost",
        "What would help",
        "All candidates",
    ):
        assert f"<h2>{heading}</h2>" in html
    for name in ("split", "pareto", "staleness", "activity", "queue", "lengths", "sweep", "runtime", "elasticity"):
        assert f'aria-labelledby="{name}-title' in html
    s, t = plan["split"]["samplers"], plan["split"]["trainers"]
    assert f"{s['replicas']}×{s['gpusPerReplica']} samplers + {t['replicas']}×{t['gpusPerReplica']} trainers" in html
    assert "Qwen/Qwen3-8B" in html
    for candidate in plan["candidates"][1:]:
        assert candidate["reason"] in html


def test_both_themes_are_styled() -> None:
    html = page(str(SCENARIO))
    assert "prefers-color-scheme:dark" in html
    used = set(re.findall(r"var\((--[a-z]+)", html))
    light, dark = html.split("@media (prefers-color-scheme:dark)")[:2]
    for variable in used - {"--font", "--card"}:
        assert f"{variable}:#" in light
        assert f"{variable}:#" in dark


def test_a_plan_of_which_only_the_json_is_left_still_has_a_report(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(run("plan", str(SMALL), "-o", "json").stdout, encoding="utf-8")
    html = page(str(plan))
    checked(html)
    assert "A plan from plan.json" in html
    assert 'aria-labelledby="split-title' in html
    assert 'aria-labelledby="activity-title' not in html


def test_a_report_is_written_to_a_file(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = run("report", str(SCENARIO), "-o", str(out))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "no such file or directory" in run("report", str(SCENARIO), "-o", str(tmp_path / "no" / "r.html")).stderr


def test_a_report_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rljob-operator\[report\]'"), drawing():
        pass
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    result = run("report", str(SCENARIO))
    assert result.exit_code == 2
    assert "pip install 'rljob-operator[report]'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.yaml",), "no such file or directory"),
        ((str(SCENARIO), "--nodes", "8x8"), "options describe how to plan an RLJob"),
        ((), "say which job"),
    ],
)
def test_what_cannot_be_reported_is_said(arguments: tuple[str, ...], words: str) -> None:
    result = run("report", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_file_that_only_looks_like_a_plan_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"runTime": {}, "candidates": []}', encoding="utf-8")
    result = run("report", str(file))
    assert result.exit_code == 2
    assert "no plan that this version can read" in result.stderr


def test_an_agentic_scenario_shows_its_sandboxes(tmp_path: Path) -> None:
    document = yaml.safe_load((SCENARIO.parent / "async.yaml").read_text(encoding="utf-8"))
    document["workload"] |= {
        "environment": {"turns": 4, "secondsPerTurn": 2.0, "sandboxes": 100},
        "groupCorrelation": 0.5,
    }
    document |= {"steps": 60, "warmup": 10}
    file = tmp_path / "agentic.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    html = page(str(file))
    for words in ("Sandboxes in use", "in at most 100 sandboxes", "Correlation of lengths in a group"):
        assert words in html
    assert "100.0 in use at the mean" in run("simulate", str(file)).stdout


def test_a_page_says_what_is_thrown_away(tmp_path: Path) -> None:
    scenario = yaml.safe_load((SCENARIO.parent / "async.yaml").read_text(encoding="utf-8"))
    for bound, most, said in (("drop", 1, True), ("admission", 4, False)):
        file = tmp_path / f"{bound}.yaml"
        file.write_text(yaml.safe_dump(scenario | {"staleness": {"bound": bound, "max": most}}), encoding="utf-8")
        assert ("Thrown away" in page(str(file))) is said


def test_what_a_user_wrote_is_escaped() -> None:
    nasty = "<script>alert(1)</script> & co"
    html = render(
        Page(
            nasty,
            nasty,
            nasty,
            [nasty],
            [Tile(nasty, nasty, nasty)],
            [Section(nasty, nasty, [Table([nasty], [[nasty]], best=0)])],
        )
    )
    checked(html)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 12


def test_a_picture_is_the_same_each_time() -> None:
    points = [plots.SplitPoint(n, f"{8 - n}×1 + {n}×1", 10.0 + (n - 3) ** 2, False, 0.1 * n, 0.0) for n in range(1, 7)]
    assert plots.split_sweep(points, 2).svg == plots.split_sweep(points, 2).svg
    assert "5×1 + 3×1 takes 10.0 s" in plots.split_sweep(points, 2).alt


def test_only_what_nothing_beats_is_on_the_front() -> None:
    points = [
        plots.TradePoint(s, p, f"{s}/{p}", f)
        for s, p, f in ((1, 9, True), (2, 5, True), (2.5, 6, True), (3, 4, False), (4, 4.5, True))
    ]
    assert [p.label for p in plots._front(points)] == ["1/9", "2/5", "4/4.5"]


def test_mean_running_samples_of_a_column_are_exact() -> None:
    running = np.array(
        [(0.0, 0, 4), (1.0, 0, 2), (1.0, 1, 9), (3.0, 0, 0)],
        dtype=[("time_s", "f8"), ("replica", "i8"), ("running", "i8")],
    )
    means = plots_of_runs._mean_over(running, 0, np.array([0.0, 2.0, 4.0, 6.0]))
    assert means.tolist() == [3.0, 1.0, 0.0]


def test_a_thinned_curve_keeps_its_peaks() -> None:
    x = np.arange(10_000.0)
    y = np.zeros(10_000)
    y[1234], y[8765] = 7.0, -3.0
    thin_x, thin_y = plots_of_runs._thinned(x, y)
    assert len(thin_x) < 2_000
    assert (thin_y.max(), thin_y.min()) == (7.0, -3.0)
    assert (thin_x[0], thin_x[-1]) == (0.0, 9_999.0)
