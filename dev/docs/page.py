"""What the generated pages share: numbers rounded for readers, tables, figures with captions, and the comparison of two pages.

Numbers are rounded to what a reader can use. That also makes pages the same on every machine, nearly: a last digit may still fall on
either side of a rounding, so two pages count as equal if their words are and no number is further off than that.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

GENERATED = "<!-- Written by `python -m dev.docs`; edit dev/docs, not this file. -->"
"""First line of every generated page."""

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_RELATIVE_TOLERANCE = 0.03
_COLUMNS = 120
_AS_IT_IS = ("#", "|", "!", "<", "```", ">")
"""Beginnings of blocks whose lines are not wrapped."""


class StaleProseError(AssertionError):
    """A sentence of a page says what the numbers no longer show: the sentence has to be rewritten."""


def require(holds: bool, claim: str) -> None:
    """Let a page say ``claim`` only while it is true."""
    if not holds:
        raise StaleProseError(f"no longer true, rewrite the prose around it: {claim}")


def number(value: float, digits: int = 2) -> str:
    """A number with so many significant digits, thousands separated, never in exponents."""
    if value == 0.0 or not math.isfinite(value):
        return "0" if value == 0.0 else "∞" if value > 0 else str(value)
    rounded = float(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{places}f}".replace("-", "−")


def percent(share: float, places: int = 0) -> str:
    """A share as a percentage."""
    rounded = round(100.0 * share, places) + 0.0  # no −0
    return f"{rounded:.{places}f} %".replace("-", "−")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, the first column left, all others right."""
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join([':--'] + ['--:'] * (len(header) - 1))}|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def figure(name: str, title: str, caption: str) -> str:
    """A figure of ``docs/img`` with the sentence that says what to see in it."""
    return f"![{title}](img/{name}.svg)\n\n*{title}. {caption}*"


def page(*parts: str) -> str:
    """A page of these parts, with the line that says where it comes from, its paragraphs wrapped."""
    text = "\n\n".join((GENERATED, *(part.strip("\n") for part in parts)))
    return "\n\n".join(_wrapped(block) for block in _blocks(text)) + "\n"


def _blocks(text: str) -> list[str]:
    """Paragraphs, tables, lists and blocks of code, which a blank line does not divide."""
    blocks: list[str] = []
    for block in text.split("\n\n"):
        if blocks and blocks[-1].count("```") % 2:
            blocks[-1] += "\n\n" + block
        elif block.strip():
            blocks.append(block)
    return blocks


def _wrapped(block: str) -> str:
    if block.startswith(_AS_IT_IS):
        return block
    items = re.split(r"\n(?=(?:[-*]|\d+\.) )", block)
    return "\n".join(_filled(item) for item in items)


def _filled(item: str) -> str:
    bullet = re.match(r"(?:[-*]|\d+\.) ", item)
    return textwrap.fill(
        " ".join(item.split()),
        _COLUMNS,
        subsequent_indent=" " * (len(bullet.group()) if bullet else 0),
        break_long_words=False,
        break_on_hyphens=False,
    )


def differences(committed: str, fresh: str) -> list[str]:
    """Paragraphs and rows of tables in which two pages differ by more than the rounding of their numbers."""
    found: list[str] = []
    for old, new in zip_longest(_comparable(committed), _comparable(fresh)):
        if old is None or new is None or not _same(old, new):
            found.append(f"{old!r} is now {new!r}")
    return found


def _comparable(text: str) -> list[str]:
    """Pieces of a page, free of where their lines break."""
    pieces: list[str] = []
    for block in _blocks(text):
        pieces += block.splitlines() if block.startswith(_AS_IT_IS) else [" ".join(block.split())]
    return pieces


def _same(old: str, new: str) -> bool:
    if _NUMBER.sub("#", old) != _NUMBER.sub("#", new):
        return False
    return all(_close(a, b) for a, b in zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True))


def _close(old: str, new: str) -> bool:
    a, b = float(old.replace(",", "")), float(new.replace(",", ""))
    last_digit = 10.0 ** -len(old.partition(".")[2])
    return abs(a - b) <= max(1.001 * last_digit if "." in old or a < 1000 else 0.0, _RELATIVE_TOLERANCE * abs(a))
