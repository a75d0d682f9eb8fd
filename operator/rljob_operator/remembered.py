"""The planner's last answers, used again while what they rest on has hardly moved.

A decision is due every minute, for hundreds of jobs in one operator, and most of them find what the last one found. Asking the
planner costs some tenths of a second of a core; comparing a handful of numbers costs nothing. So answers are kept with the inputs that
they rest on, and hold while each input has moved by less than half of its own standard error (within 0.3 % and 2 %): a
change that nobody could tell from noise. Everything else that a plan rests on, such as the spec or the nodes, has to be the same. What
is uncertain about a gain is never kept, only the slopes that it follows from, since uncertainty shrinks while inputs stay. Slopes
themselves change slowly, and hold while inputs stay within a tenth.

It is a cache and no state: an operator that forgets it decides the same, only more slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast


class Resting(Protocol):
    """What answers rest on, and can be made small between two decisions."""

    def rest(self) -> None:
        """Drops what can be made anew."""


Answer = TypeVar("Answer")
Basis = TypeVar("Basis", bound=Resting)

MOVED = 0.5
"""Standard errors by which an input may move."""

LEAST_MOVE, MOST_MOVE = 0.003, 0.02
"""Whatever the error, a move of a logarithm by less than the first is none, and one by more than the second is one."""

ROUGH_MOVE = 0.1
"""Move of a logarithm up to which slopes hold."""


@dataclass(frozen=True)
class Inputs:
    """What answers rest on."""

    same: Hashable
    """What has to be the same."""
    logarithms: tuple[float, ...]
    """Logarithms of the numbers that may move a little."""
    errors: tuple[float, ...]
    """Their standard errors."""

    def about_like(self, other: Inputs) -> bool:
        """Whether slopes at these inputs do for others: they change slowly."""
        if self.same != other.same or len(self.logarithms) != len(other.logarithms):
            return False
        return all(abs(a - b) <= ROUGH_MOVE for a, b in zip(self.logarithms, other.logarithms, strict=True))

    def near(self, other: Inputs) -> bool:
        """Whether answers for these inputs do for others."""
        if self.same != other.same or len(self.logarithms) != len(other.logarithms):
            return False
        return all(
            abs(a - b) <= min(MOST_MOVE, max(LEAST_MOVE, MOVED * min(e, f)))
            for a, b, e, f in zip(self.logarithms, other.logarithms, self.errors, other.errors, strict=True)
        )


@dataclass
class Remembered:
    """The answers of one job."""

    inputs: Inputs | None = None
    basis: Resting | None = None
    """The very values that the answers rest on: further questions are asked about the same, so that answers can be compared."""
    answers: dict[Hashable, object] = field(default_factory=dict)
    rough_inputs: Inputs | None = None
    rough_answers: dict[Hashable, object] = field(default_factory=dict)
    """Answers that hold for longer: how periods hang on inputs."""
    asked: int = 0
    """Questions that the planner had to answer."""
    spared: int = 0
    """Questions that were answered from here."""

    def rest(self) -> None:
        """Makes what is kept until the next decision small: hundreds of jobs rest at a time, and one decides."""
        if self.basis is not None:
            self.basis.rest()

    def about(self, inputs: Inputs, basis: Basis) -> Basis:
        """What questions about these inputs are to be asked with: the basis of what is known, if that is near enough, else this one."""
        if self.inputs is not None and self.inputs.near(inputs) and isinstance(self.basis, type(basis)):
            return self.basis
        self.inputs, self.basis, self.answers = inputs, basis, {}
        if self.rough_inputs is None or not self.rough_inputs.about_like(inputs):
            self.rough_inputs, self.rough_answers = inputs, {}
        return basis

    def answer(self, question: Hashable, ask: Callable[[], Answer], *, rough: bool = False) -> Answer:
        """The answer to a question; ``ask`` finds it if it is not known. Errors that it raises are not kept.

        ``rough`` answers hold while inputs stay within a tenth.
        """
        known = self.rough_answers if rough else self.answers
        if question in known:
            self.spared += 1
            return cast(Answer, known[question])
        self.asked += 1
        found = ask()
        known[question] = found
        return found
