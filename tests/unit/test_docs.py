"""The generated documents say what the planner says today, and show the figures that they speak of."""

import re
from xml.etree import ElementTree

import pytest

from dev.docs import __main__ as docs
from dev.docs import figures_activity, first_principles, page, style
from dev.docs.example import ROOT


@pytest.mark.parametrize("name", docs.PAGES)
def test_a_committed_page_is_what_the_planner_says_today(name: str) -> None:
    assert docs.outdated(name) == [], "write it anew with: python -m dev.docs"


@pytest.mark.parametrize("name", docs.PAGES)
def test_every_link_of_a_page_leads_somewhere(name: str) -> None:
    text = (docs.DOCS / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text)
    missing = [link for link in links if "://" not in link and not (docs.DOCS / link).exists()]
    assert missing == []


def test_the_figures_are_there_each_shown_once_and_free_of_dates() -> None:
    text = (docs.DOCS / "first-principles.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^]]+\]\(img/([a-z-]+)\.svg\)", text)
    assert sorted(shown) == sorted(first_principles.FIGURES)
    for name in first_principles.FIGURES:
        svg = (docs.DOCS / "img" / f"{name}.svg").read_text(encoding="utf-8")
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert "<dc:date>" not in svg
        assert str(ROOT) not in svg


def test_a_figure_drawn_twice_is_the_same_file(tmp_path) -> None:
    for name in ("first.svg", "second.svg"):
        style.save(figures_activity.two_fleets(), tmp_path / name)
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()


@pytest.mark.parametrize(
    ("value", "digits", "written"),
    [
        (0.0, 2, "0"),
        (1234.5, 2, "1,200"),
        (1234.5, 3, "1,230"),
        (0.01234, 2, "0.012"),
        (9.996, 3, "10.0"),
        (-0.5, 1, "−0.5"),
        (float("inf"), 2, "∞"),
    ],
)
def test_numbers_are_rounded_for_readers(value: float, digits: int, written: str) -> None:
    assert page.number(value, digits) == written


def test_a_last_digit_is_no_difference_but_a_word_or_a_value_is() -> None:
    committed = page.page("It takes 12.3 s, a third.", "| a | 1.0 |\n|--|--|\n| b | 400 |")
    assert page.differences(committed, committed.replace("12.3", "12.4").replace("400", "395")) == []
    assert page.differences(committed, committed.replace("a third.", "a half."))
    assert page.differences(committed, committed.replace("12.3", "13.3"))
    assert page.differences(committed, committed.replace("| b | 400 |", "| c | 400 |"))
    assert page.differences(committed, committed + "\nmore\n")


def test_where_lines_break_is_no_difference() -> None:
    words = "word " * 60
    assert page.differences(page.page(words), f"{page.GENERATED}\n\n{words}") == []


def test_a_page_does_not_say_what_no_longer_holds() -> None:
    with pytest.raises(page.StaleProseError, match="the trainer starves"):
        page.require(False, "the trainer starves")
