"""Reads what the chart's ``values.yaml`` says about its values: each key with the comment above it that begins with ``# --``.

The comments are the documentation, in the place where a person edits; the page of values is made from them, and a test finds keys without
one. Only the plain style of that file is read: block mappings by indentation, comments directly above their key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_KEY = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):")
_SECTION = re.compile(r"^## (.+)$")
_BEGIN = re.compile(r"^ *# -- (.+)$")
_MORE = re.compile(r"^ *# (.+)$")


@dataclass(frozen=True)
class Value:
    """One documented value."""

    path: str
    """Such as ``image.tag``."""
    section: str
    """Title of the section that it stands in."""
    text: str
    """What the comment says, as Markdown."""
    default: Any
    """The value in the file."""


def read_values(file: Path) -> list[Value]:
    """The documented values in the order of the file; raises ValueError for a comment that stands above no key."""
    text = file.read_text(encoding="utf-8")
    defaults = yaml.safe_load(text)
    found: list[Value] = []
    section = ""
    words: list[str] = []
    above: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if title := _SECTION.match(line):
            section = title[1]
        elif begin := _BEGIN.match(line):
            if words:
                raise ValueError(f"{file.name}:{number}: the comment before this one stands above no key")
            words = [begin[1]]
        elif words and (more := _MORE.match(line)):
            words.append(more[1])
        elif key := _KEY.match(line):
            depth = len(key[1])
            above = [(d, name) for d, name in above if d < depth] + [(depth, key[2])]
            if words:
                path = [name for _, name in above]
                found.append(Value(".".join(path), section, " ".join(words), value_at(defaults, path)))
                words = []
        elif words:
            raise ValueError(f"{file.name}:{number}: the comment before this line stands above no key")
    return found


def value_at(values: Mapping[str, Any], path: list[str]) -> Any:
    """What stands at a path of keys; raises KeyError if nothing does."""
    found: Any = values
    for name in path:
        found = found[name]
    return found


def leaves(values: Mapping[str, Any], above: str = "") -> list[str]:
    """The paths of all values that are no mapping, or an empty one."""
    found: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found += leaves(value, f"{above}{name}.")
        else:
            found.append(f"{above}{name}")
    return found
