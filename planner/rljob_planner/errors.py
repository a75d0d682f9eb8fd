"""Why there is no plan: a reason for a machine and a sentence for a person.

The reason is one CamelCase word, since the operator puts it into a condition; the message says what to write instead,
since it ends up on a terminal or in ``kubectl describe``.
"""

from __future__ import annotations


class PlanningError(ValueError):
    """The planner cannot answer, and says what would have to change."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """CamelCase, such as ``UnknownModel``, ``UnknownAccelerator``, ``DoesNotFit`` or ``NothingFeasible``."""
