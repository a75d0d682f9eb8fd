"""Text as PromQL: nothing that comes from outside is put into a query but through these functions.

A name that is put between quotes as it is ends the quotes where it holds one, and what follows is read as PromQL: so a matcher on one's own
name becomes a matcher on everybody's. Kubernetes allows no such names today, which is no reason to rely on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

_MEANINGFUL = re.compile(r"[\\.+*?()|\[\]{}^$]")
"""Characters that mean something in a regular expression outside of brackets."""


def quoted(text: str) -> str:
    """A string literal of PromQL with the value ``text``; raises ValueError for text that UTF-8 can't carry."""
    text.encode("utf-8")
    # Both languages know the escapes that JSON writes, and read every other character as itself.
    return json.dumps(text, ensure_ascii=False)


def matches(label: str, value: str) -> str:
    """A matcher for series whose ``label`` is exactly ``value``."""
    return f"{label}={quoted(value)}"


def matches_any(label: str, patterns: Iterable[str]) -> str:
    """A matcher for series whose whole ``label`` fits one of the regular ``patterns``, each literal part made by ``literal``."""
    return f"{label}=~{quoted('|'.join(patterns))}"


def literal(text: str) -> str:
    """A regular expression (RE2, as Prometheus reads it) that fits ``text`` alone."""
    # Only what means something, unlike re.escape: people read these in messages, and names are full of dashes.
    return _MEANINGFUL.sub(r"\\\g<0>", text)
