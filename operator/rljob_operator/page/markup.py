"""HTML from parts, so that text is escaped by construction and not by remembering it.

Names, messages and reasons come from RLJobs, which anybody with a namespace may write. Whatever is a plain string is text; only what
``element`` itself has made is HTML.
"""

from __future__ import annotations

import html
from collections.abc import Mapping

Attribute = str | int | float | bool | None

_VOID = frozenset({"meta", "link", "br", "hr"})


class Html(str):
    """A string that is HTML already; only this module makes some."""

    __slots__ = ()


def element(
    tag: str, /, *children: str | None, attributes: Mapping[str, Attribute] | None = None, **more: Attribute
) -> Html:
    """An element with its children: plain strings become text, ``Html`` stays what it is, None is nothing.

    Attributes are given by name (``class_`` for class, ``aria_label`` for aria-label) or, where a name is no identifier, in
    ``attributes``. None and False leave one out, True writes it without a value.
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in more.items()} | dict(attributes or {})
    written = "".join(_attribute(key, value) for key, value in given.items())
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: str | None) -> Html:
    """Parts one after the other; plain strings become text."""
    return Html(
        "".join(child if isinstance(child, Html) else html.escape(child) for child in children if child is not None)
    )


def style(sheet: str) -> Html:
    """A style element with a sheet of our own; never give it what came from outside."""
    return Html(f"<style>{sheet}</style>")


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{html.escape(str(value))}"'
