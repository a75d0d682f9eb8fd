"""When a gain that is uncertain is worth a move: two questions in place of a threshold, a count and a pause.

*Would we regret it?* A move saves seconds over the steps that remain and costs seconds now; both are uncertain. It is made
only if the chance that it loses is below one in twenty. So a gain of 3 % known to 1 % moves, one of 10 % known to 8 % does not, and
the same gain moves early in a run and not shortly before its end.

*Would we rather know more first?* A wish that has passed the first question may still rest on little: the first reading of a young
job. Waiting until what is known has doubled makes a wrong move less likely; that is worth (Raiffa and Schlaifer 1961) the expected loss
that the new knowledge can avert, s·(φ(z) − z·Φ(−z)) with s the part of the standard error that would go away and z = net saving / s.
It costs the saving that is forgone meanwhile. So large and clear gains move at once, and close calls wait for another reading,
without any count of agreeing decisions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

REGRET_MOST = 0.05
"""Largest chance that a move loses time: moves interrupt a run, so one wrong in twenty."""


@dataclass(frozen=True)
class Stake:
    """What a move would win over the remaining steps, less what it costs, in seconds."""

    mean_s: float
    error_s: float
    """Its standard error."""

    @property
    def chance_of_loss(self) -> float:
        """Probability that the move costs more than it saves."""
        if self.error_s <= 0.0:
            return 0.0 if self.mean_s > 0.0 else 1.0
        return 0.5 * math.erfc(self.mean_s / self.error_s / math.sqrt(2.0))

    def worth_of_knowing_s(self, learned: float) -> float:
        """Expected seconds that knowing more would save; ``learned``: the share of the error's variance that would go away."""
        part_s = self.error_s * math.sqrt(learned)
        if part_s <= 0.0:
            return 0.0
        z = abs(self.mean_s) / part_s
        density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        return part_s * max(0.0, density - z * 0.5 * math.erfc(z / math.sqrt(2.0)))
