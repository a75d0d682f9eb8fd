"""A report as one HTML page that needs nothing else: no script, no network, readable on light and dark screens, on paper and aloud.

What a page says is put together elsewhere (``report_pages``); here is only how it looks. Every picture carries its words, and every
text that came from a user is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rljob_planner import __version__
from rljob_planner.drawing import Plot

_STYLE = """
:root{color-scheme:light dark;--font:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial;
--ink:#1d2530;--muted:#5f6b7a;--grid:#dfe4ea;--paper:#fefefd;--card:#f5f6f4;--samplers:#20719e;--trainers:#c66a15;
--best:#14795a;--limit:#b5382a;--quiet:#a9b4c1}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ec;--muted:#9aa6b2;--grid:#2b323a;--paper:#14181d;--card:#1c2127;
--samplers:#63b0dc;--trainers:#e89b50;--best:#4cc499;--limit:#f0806f;--quiet:#5b6672}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 var(--font),sans-serif;-webkit-text-size-adjust:100%}
main{max-width:58rem;margin:0 auto;padding:3rem 1.25rem 4rem}
h1{font-size:1.15rem;font-weight:600;color:var(--muted);margin:0 0 .4rem}
.answer{font-size:1.9rem;line-height:1.25;font-weight:650;letter-spacing:-.01em;margin:0 0 .75rem;text-wrap:balance}
.why{font-size:1.08rem;max-width:46rem;margin:0;text-wrap:pretty}
.words{color:var(--muted);font-size:.92rem;margin:.9rem 0 0;padding:0;list-style:none;max-width:46rem}
.words li+li{margin-top:.35rem}
dl.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:.6rem;margin:2rem 0 0}
dl.tiles div{background:var(--card);padding:.85rem 1rem;border-radius:8px}
dt{color:var(--muted);font-size:.82rem}
dd{margin:0}
dd b{font-size:1.3rem;font-weight:650;font-variant-numeric:tabular-nums}
dd span{display:block;color:var(--muted);font-size:.85rem;line-height:1.4}
section{margin-top:3.25rem}
h2{font-size:1.3rem;font-weight:650;letter-spacing:-.005em;margin:0 0 .35rem}
h2+p{margin-top:0}
h3{font-size:1rem;font-weight:600;margin:2rem 0 .5rem}
p{max-width:46rem}
figure{margin:1.25rem 0 0}
figure .scroll svg{display:block;width:100%;min-width:34rem;height:auto;overflow:visible}
figcaption{color:var(--muted);font-size:.9rem;max-width:46rem;margin-top:.5rem}
details{color:var(--muted);font-size:.9rem;margin-top:.35rem}
summary{cursor:pointer}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem;margin-top:.75rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.42rem .9rem .42rem 0;border-bottom:1px solid var(--grid);vertical-align:top}
th{color:var(--muted);font-weight:500}
td.n,th.n{text-align:right;white-space:nowrap}
tr.best td,tr.best th{color:var(--best);font-weight:650}
tr.out td{color:var(--muted)}
footer{margin-top:4rem;padding-top:1rem;border-top:1px solid var(--grid);color:var(--muted);font-size:.85rem}
@media print{main{padding:0;max-width:none}section,figure{break-inside:avoid}details{display:none}}
"""


@dataclass(frozen=True)
class Tile:
    """A number that everybody looks for first."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under heads; ``numeric`` columns are aligned to the right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()
    best: int | None = None
    """The row that was chosen."""
    out: frozenset[int] = frozenset()
    """Rows that are not possible."""


@dataclass(frozen=True)
class Section:
    """A part of a page: a question, its answer in words, its pictures and its tables."""

    heading: str
    text: str = ""
    parts: Sequence[Plot | Table] = ()
    notes: Sequence[str] = ()
    """Remarks, a sentence each."""


@dataclass(frozen=True)
class Page:
    """A report."""

    title: str
    """The job in a line."""
    answer: str
    """What to do, in a line."""
    why: str
    words: Sequence[str] = ()
    """What it rests on, in sentences."""
    tiles: Sequence[Tile] = ()
    sections: Sequence[Section] = ()


def render(page: Page) -> str:
    """The page as HTML."""
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{escape(page.title)}</title><style>{_STYLE}</style></head><body><main>",
            f'<header><h1>{escape(page.title)}</h1><p class="answer">{escape(page.answer)}</p><p class="why">{escape(page.why)}</p>',
            _list(page.words),
            "</header>",
            _tiles(page.tiles),
            *(_section(section) for section in page.sections),
            f"<footer>Simulated by rljob {escape(__version__)}. Times are wall-clock; a step is one optimizer step, and its period the time ",
            "between two published policy versions. Staleness is the trainer's version when a step starts less the version that a ",
            "sample began with.</footer></main></body></html>\n",
        )
    )


def _list(words: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(word)}</li>" for word in words)
    return f'<ul class="words">{items}</ul>' if items else ""


def _tiles(tiles: Sequence[Tile]) -> str:
    if not tiles:
        return ""
    cells = "".join(
        f"<div><dt>{escape(t.name)}</dt><dd><b>{escape(t.value)}</b>"
        + (f"<span>{escape(t.note)}</span>" if t.note else "")
        + "</dd></div>"
        for t in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _section(section: Section) -> str:
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    several = sum(isinstance(part, Plot) for part in section.parts) > 1
    parts = "".join(_figure(part, titled=several) if isinstance(part, Plot) else _table(part) for part in section.parts)
    return f"<section><h2>{escape(section.heading)}</h2>{text}{_list(section.notes)}{parts}</section>"


def _figure(plot: Plot, titled: bool) -> str:
    title = f"<h3>{escape(plot.title)}</h3>" if titled else ""
    caption = escape(plot.caption)
    return f'<figure>{title}<div class="scroll">{plot.svg}</div><figcaption>{caption}<details><summary>In words</summary>{escape(plot.alt)}</details></figcaption></figure>'


def _table(table: Table) -> str:
    def cell(tag: str, column: int, text: str) -> str:
        number = ' class="n"' if column in table.numeric else ""
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{number}{scope}>{escape(text)}</{tag}>"

    head = "".join(cell("th", i, text) for i, text in enumerate(table.heads))
    rows = []
    for index, row in enumerate(table.rows):
        kind = ' class="best"' if index == table.best else ' class="out"' if index in table.out else ""
        rows.append(f"<tr{kind}>" + "".join(cell("td", i, text) for i, text in enumerate(row)) + "</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
