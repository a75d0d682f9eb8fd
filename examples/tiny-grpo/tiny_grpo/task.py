"""The task: numbers from 00 to 99, all different, to be sorted, reversed or copied; or to count from one to another.

It is chosen so that a transformer of two layers can do it at any length: which number comes next depends on the prompt and on the number
before it alone. So the length of the answers can be set to grow while a job runs, as the answers of models that learn to reason do,
without the task becoming another one. With ``count`` the answers grow and the prompts don't.

Nothing here needs torch: a problem is a list of token ids, and its reward is counted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

PAD, EOS, ASK = 0, 1, 2
"""Token ids: padding, end of the answer, end of the prompt."""

NUMBERS = 100
"""How many numbers there are: a prompt has each at most once."""


class Kind(StrEnum):
    """What is to be done with the numbers."""

    COPY = "copy"
    REVERSE = "reverse"
    SORT = "sort"
    COUNT = "count"


FIRST_NUMBER = ASK + 1 + len(Kind)
"""Token id of the number 00."""

VOCABULARY: tuple[str, ...] = (
    "<pad>", "<eos>", ">", *(kind.value for kind in Kind), *(f"{n:02d}" for n in range(NUMBERS)),
)  # fmt: skip
"""The text of each token, by id."""


@dataclass(frozen=True)
class Problem:
    """One prompt and the answer to it."""

    prompt: tuple[int, ...]
    """Token ids: the kind, the numbers, ``>``: ``sort 42 07 99 >``, ``count 17 52 >``."""
    target: tuple[int, ...]
    """Token ids of the right answer, the end token included."""

    @property
    def max_tokens(self) -> int:
        """Most tokens that an answer may have: a little more than the right one, so that missing the end costs something."""
        return len(self.target) + 2 + len(self.target) // 8


def problem(kind: Kind, length: int, rng: random.Random) -> Problem:
    """A problem with an answer of ``length`` numbers (1 to 100)."""
    if kind is Kind.COUNT:
        first = rng.randint(0, NUMBERS - length)
        answer = list(range(first, first + length))
        numbers = [answer[0], answer[-1]]
    else:
        numbers = rng.sample(range(NUMBERS), length)
        answer = {Kind.COPY: numbers, Kind.REVERSE: numbers[::-1], Kind.SORT: sorted(numbers)}[kind]
    ask = ASK + 1 + list(Kind).index(kind)
    return Problem(
        prompt=(ask, *(FIRST_NUMBER + n for n in numbers), ASK),
        target=(*(FIRST_NUMBER + n for n in answer), EOS),
    )


def reward(target: tuple[int, ...], answer: tuple[int, ...]) -> float:
    """How much of the answer is right, from 0 to 1: twice the longest common subsequence over both lengths.

    One number too many or too few costs itself alone, not everything behind it, so that every sample of a group says something.
    """
    lengths = [0] * (len(answer) + 1)
    for wanted in target:
        before = 0
        for i, given in enumerate(answer, 1):
            before, lengths[i] = lengths[i], before + 1 if given == wanted else max(lengths[i], lengths[i - 1])
    return 2 * lengths[-1] / (len(target) + len(answer))


class LengthTrace:
    """How many numbers an answer has, over the policy versions: straight lines between points.

    Written ``0:12,100:12,200:48``: 12 numbers up to version 100, then growing to 48 at version 200. ``12`` alone is constant.
    """

    def __init__(self, text: str, spread: float = 0.5) -> None:
        """Read ``text``; lengths lie evenly within ±``spread`` of the mean (0.5: from half to one and a half of it).

        Raises ValueError that says what is wrong with it.
        """
        points = []
        for part in text.split(","):
            version, _, mean = part.rpartition(":")
            try:
                points.append((int(version or 0), float(mean)))
            except ValueError:
                raise ValueError(f"length trace {text!r}: {part!r} is not version:numbers, as in 0:12,200:48") from None
        if any(a[0] >= b[0] for a, b in pairwise(points)):
            raise ValueError(f"length trace {text!r}: the versions have to grow from point to point")
        if not all(1 <= mean <= NUMBERS for _, mean in points):
            raise ValueError(f"length trace {text!r}: the numbers of an answer are 1 to {NUMBERS}")
        self._points, self._spread = points, spread

    def mean(self, version: int) -> float:
        """Mean numbers of an answer at policy ``version``."""
        before = [p for p in self._points if p[0] <= version]
        after = [p for p in self._points if p[0] > version]
        if not before or not after:
            return (before or after)[-1 if before else 0][1]
        (v0, m0), (v1, m1) = before[-1], after[0]
        return m0 + (m1 - m0) * (version - v0) / (v1 - v0)

    def draw(self, version: int, rng: random.Random) -> int:
        """The numbers of one answer at policy ``version``."""
        mean = self.mean(version)
        length = round(rng.uniform(mean * (1 - self._spread), mean * (1 + self._spread)))
        return min(max(length, 1), NUMBERS)
