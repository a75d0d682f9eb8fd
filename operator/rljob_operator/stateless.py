"""kopf without a memory of its own: nothing is stored on objects, and nothing of them is compared.

Only watches and indexes are used here, never the handlers that compare an object with how it was. kopf prepares that comparison for every
event all the same, by several deep copies of the whole object; most of the CPU time of a busy operator went there.
"""

from __future__ import annotations

from typing import Any

import kopf


class NoEssence(kopf.DiffBaseStorage):
    """Says of every object that there is nothing to compare."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Nothing of the object."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Nothing was stored."""
        return None

    def store(self, **_: Any) -> None:
        """Stores nothing."""


class NoProgress(kopf.ProgressStorage):
    """Keeps no progress of handlers."""

    def fetch(self, **_: Any) -> None:
        """Nothing was stored."""

    def store(self, **_: Any) -> None:
        """Stores nothing."""

    def purge(self, **_: Any) -> None:
        """Nothing to remove."""

    def touch(self, **_: Any) -> None:
        """Touches nothing."""

    def clear(self, *, essence: Any) -> Any:
        """The essence as it is."""
        return essence
