"""What a validation says of one measured row.

One flat type for all kinds of measurement (decode steps, RL steps, bound sides, staleness …), because they end up in the same
table, the same summary and the same plots; what differs by kind is the unit and whether a row has a number or a side.
"""

from __future__ import annotations

from dataclasses import dataclass

RELATIVE = "relative"
ABSOLUTE = "absolute"


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
    """From data sheets, shapes and packaged constants alone; None: see ``reason``."""
    calibrated: float | str | None = None
    """After factors (and a length law) fitted on the other rows of the family; None: too few of them."""
    reason: str | None = None
    """Why there is no prediction: the field of the file that is null."""
    note: str | None = None
    """What was assumed where the file leaves something open, and what a reader should know of the row."""
    error_kind: str = RELATIVE
    """``relative``: |predicted/measured − 1|; ``absolute``: |predicted − measured|, for what may be near zero."""
    measured_side: str | None = None
    """The side that a row with a number states beside it: who waits for whom."""
    predicted_side: str | None = None
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
        """Whether the predicted side is the measured one; None where the row states none or was not predicted."""
        if self.measured_side is not None:
            return None if self.predicted_side is None else self.predicted_side == self.measured_side
        said = self.calibrated if self.calibrated is not None else self.predicted
        if not isinstance(self.measured, str) or said is None:
            return None
        return said == self.measured

    def _error(self, predicted: float | str | None) -> float | None:
        if not isinstance(predicted, int | float) or not isinstance(self.measured, int | float):
            return None
        if self.error_kind == ABSOLUTE:
            return abs(predicted - self.measured)
        return abs(predicted / self.measured - 1.0) if self.measured else None
