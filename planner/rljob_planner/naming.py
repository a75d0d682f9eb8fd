"""What to say of a name that is not known: which known names come near, or which there are at all.

A long list of everything helps nobody who mistyped one letter, and looks like an answer where nothing is near.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_MOST = 5
_EXAMPLES = 3
_NEAR = 0.66
"""Least similarity of two spellings, 0..1 (difflib): "H1000" is near "H100", "foo" near nothing."""


def near(plain: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """At most five known things whose plain names come near this one, the nearest first; ``names`` says what each stands for.

    They begin alike, too: "X9000" has letters of "RTX-4090" and means something else.
    """
    alike = [name for name in names if name[:1] == plain[:1]]
    found = difflib.get_close_matches(plain, alike, n=2 * _MOST, cutoff=_NEAR)
    return tuple(dict.fromkeys(names[n] for n in found))[:_MOST]


def examples(known: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The first of each of three families, from pairs of family and name."""
    firsts: dict[str, str] = {}
    for family, name in known:
        firsts.setdefault(family, name)
    return tuple(firsts.values())[:_EXAMPLES]
