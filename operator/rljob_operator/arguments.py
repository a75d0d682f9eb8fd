"""The arguments of a pod's engine, read from its template. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def argument(template: Mapping[str, Any], *names: str) -> str | None:
    """What the first container says for an argument, as ``--name value`` or ``--name=value``; None if none of ``names`` stands there.

    A flag without a value says the empty string.
    """
    containers = (template.get("spec") or {}).get("containers") or ()
    words = [str(w) for c in containers[:1] for w in (*(c.get("command") or ()), *(c.get("args") or ()))]
    for i, word in enumerate(words):
        for name in names:
            if word.startswith(f"{name}="):
                return word.removeprefix(f"{name}=")
            if word == name:
                following = words[i + 1] if i + 1 < len(words) else ""
                return "" if following.startswith("-") else following
    return None


def count(text: str | None) -> int | None:
    """A positive whole number, None for anything else."""
    return int(text) if text is not None and text.isdigit() and int(text) > 0 else None
