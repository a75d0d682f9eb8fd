"""Broken operators: each undoes one thing that keeps the budget, and the check must catch it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {}
"""By name; each patches the operator while it is entered."""
