"""What a validation says of one measured row.

One flat type for all kinds of measurement (decode steps, RL steps, bound sides, staleness …), because they end up in the same
table, the same summary and the same plots; what differs by kind is the unit and whether a row has a number or a side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RELATIVE = "relative"
ABSOLUTE = "absolute"
MATCHED = "matched"
"""Neither side holds the other up."""
NEAR = 0.20
"""How far waits may differ, as shares of a period, next to balance."""


@dataclass(frozen=True)
class Row:
    """A measured row and what was predicted for it."""

    id: str
    kind: str
    """``serving``, ``training``, ``step_time``, ``bottleneck``, ``staleness``, …"""
    family: str
    """Rows that are comparable with each other; factors are fitted within a family only."""
    measured: float | str | None
    """A number in ``unit``, or the bound side (``rollout``, ``train``, ``matched``); None: the file has none."""
    unit: str = ""
    """``s``, ``ms``, ``versions``, ``tokens/s``, ``ratio`` or empty for a side."""
    predicted: float | str | None = None
    """A number from data sheets, shapes and packaged constants alone; a side with what the family's other rows teach besides.

    None: see ``reason``."""
    plain_side: str | None = None
    """The side from data sheets, shapes and packaged constants alone."""
    calibrated: float | str | None = None
    """After factors (and a length law) fitted on the other rows of the family; None: too few of them."""
    reason: str | None = None
    """Why there is no prediction: the field of the file that is null, or holds what it cannot hold."""
    note: str | None = None
    """What was assumed where the file leaves something open, and what a reader should know of the row."""
    error_kind: str = RELATIVE
    """``relative``: |predicted/measured − 1|; ``absolute``: |predicted − measured|, for what may be near zero."""
    measured_side: str | None = None
    """The side that a row with a number states beside it: who waits for whom."""
    predicted_side: str | None = None
    measured_wait: float | None = None
    """The trainer's wait for samples over the period, 0..1, where the row states it."""
    predicted_wait: float | None = None
    judged: bool = True
    """False: shown, but left out of the means for the reason in ``note`` (known exclusions)."""

    @property
    def covered(self) -> bool:
        """Whether the row was predicted."""
        return self.predicted is not None

    @property
    def error(self) -> float | None:
        """Of the plain prediction, never negative; None for a side and for what was not predicted."""
        return self._error(self.predicted)

    @property
    def calibrated_error(self) -> float | None:
        """Of the calibrated prediction, never negative."""
        return self._error(self.calibrated)

    @property
    def correct(self) -> bool | None:
        """Whether the predicted side is the measured one; None where the row states none or was not predicted.

        Next to balance, where one of the two is ``matched``, waits that differ by no more than ``NEAR`` count as the same.
        """
        measured, said = self.stated_side, self.said_side
        if measured is None or said is None:
            return None
        if measured == said:
            return True
        if MATCHED not in (measured, said) or self.measured_wait is None or self.predicted_wait is None:
            return False
        return bool(abs(self.measured_wait - self.predicted_wait) <= NEAR)

    @property
    def calibrated_correct(self) -> bool | None:
        """As ``correct``, of the side after the other rows' factors; None where there were too few of them."""
        if isinstance(self.calibrated, str):
            return None if self.stated_side is None else self.calibrated == self.stated_side
        return None if self.calibrated is None else self.correct

    @property
    def strictly_correct(self) -> bool | None:
        """As ``correct``, without the band next to balance."""
        return None if self.correct is None else self.stated_side == self.said_side

    @property
    def stated_side(self) -> str | None:
        """The measured side, whether it is all that the row measures or stands beside a number."""
        return self.measured if isinstance(self.measured, str) else self.measured_side

    @property
    def said_side(self) -> str | None:
        """The predicted side."""
        return self.predicted if isinstance(self.predicted, str) else self.predicted_side

    def _error(self, predicted: float | str | None) -> float | None:
        if not isinstance(predicted, int | float) or not isinstance(self.measured, int | float):
            return None
        if self.error_kind == ABSOLUTE:
            error = abs(predicted - self.measured)
        else:
            error = abs(predicted / self.measured - 1.0) if self.measured else math.nan
        return error if math.isfinite(error) else None
