"""What a bound does to period and staleness, from counting groups in a cycle that repeats with every policy version.

All running samples gain a token at once, so the clock here is the token: a sample of L tokens lives for L of them, a group for
as many as its longest, and the time between two versions is K tokens, pauses left out. In steady state the same happens in
every period, so what was started k periods ago is as much as what is started now, only k·K tokens older. Then

- groups that are not finished w tokens after a publication are the sum of the surviving shares of all earlier starts,
- a sample that is y periods old when it is trained has seen ⌈y − v⌉ versions, v its place in the period, and
- the longest that is left of the samples in flight (the longest residual life) is what a held publication waits for.

Nothing is fitted. What is left out: that the numbers of a period vary, which matters where both sides are about as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from rljob_planner.laws import FloatArray, joint_below, normal_cdf
from rljob_planner.lengths import LengthDistribution
from rljob_planner.roots import rising_root

_STAYS = np.array(
    [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.955, 0.975, 0.987, 0.994, 0.998, 0.9993, 0.9998, 1.0]
)
"""Quantiles between which a stay is taken at its mean, finer where the longest of a group come from."""
_NORMAL = NormalDist()
_ROUNDS = 40
_MOST_PERIODS = 2000
"""Periods of a life beyond which they are not added up one by one."""
_WINDOW = 4
"""Ages that stand for those of a batch."""
_PRECISION = 1e-5
"""Relative precision of roots: a period of a minute to the millisecond."""


class Survival:
    """Share of samples, or of groups, that live longer than a number of tokens: a step function, and the area under it."""

    def __init__(self, lengths: LengthDistribution) -> None:
        self.tokens: FloatArray = lengths.support_tokens.astype(np.float64)
        self.weights: FloatArray = lengths.probabilities
        self._left: FloatArray = np.concatenate([[1.0], 1.0 - lengths.cumulative[:-1], [0.0]])
        self._knots: FloatArray = np.concatenate([[0.0], self.tokens])
        self._areas: FloatArray = np.concatenate([[0.0], np.cumsum(self._left[:-1] * np.diff(self._knots))])
        self.longest = float(self.tokens[-1])
        self.mean = float(self._areas[-1])

    def left(self, tokens: FloatArray) -> FloatArray:
        """Share that lives longer than each of ``tokens``."""
        return np.asarray(self._left[np.searchsorted(self.tokens, tokens, side="right")])

    def area(self, tokens: FloatArray) -> FloatArray:
        """∫ of ``left`` from 0 to each of ``tokens``, which may be below 0."""
        return np.asarray(np.interp(tokens, self._knots, self._areas) + np.minimum(tokens, 0.0))


@dataclass(frozen=True, eq=False)
class Lives:
    """Lives of samples and of the groups that they belong to, in tokens."""

    sample: Survival
    group: Survival
    away_tokens: float = 0.0
    """Tokens that others gain while a sample is in its environment; part of every life."""

    @property
    def longest(self) -> float:
        """Tokens of the longest life."""
        return self.group.longest + self.away_tokens

    def ages(self, at: float, every: float) -> FloatArray:
        """``at``, ``at`` + ``every``, … until nothing lives, less the time that a sample is away."""
        number = int(max(0.0, self.longest - at) / every) + 2
        return np.asarray(at - self.away_tokens + every * np.arange(number, dtype=np.float64), dtype=np.float64)


@lru_cache(maxsize=8)
def lives_of(lengths: LengthDistribution, group_size: int, correlation: float) -> Lives:
    """Lives in tokens of samples of these lengths, a group living as long as its longest."""
    return Lives(Survival(lengths.coarse), Survival(lengths.longest_of(group_size, correlation)))


@lru_cache(maxsize=8)
def lives_with_stays(
    lengths: LengthDistribution, group_size: int, correlation: float, away_tokens: float, spread: float
) -> Lives:
    """Lives of samples that are in their environment for ``away_tokens`` in the mean, with ``spread`` as deviation over mean.

    The stays of a sample add up to about a lognormal (Fenton and Wilkinson), independent of its length. What makes samples of
    one prompt alike is their lengths, so their lives are correlated by as much less as lengths make up of their variance.
    """
    sigma = math.sqrt(math.log1p(spread * spread))
    edges = np.array([_NORMAL.inv_cdf(float(p)) for p in _STAYS[1:-1]])
    below = np.concatenate([[0.0], normal_cdf(edges - sigma), [1.0]])
    chance = np.diff(_STAYS)
    stays = away_tokens * np.diff(below) / chance
    tokens = lengths.coarse.support_tokens[:: max(1, len(lengths.coarse.support_tokens) // 100)]
    at = np.unique(np.rint(np.add.outer(tokens, stays)).ravel())
    at = np.unique(np.append(at[:: max(1, len(at) // 500)], np.rint(tokens[-1] + stays[-1]) + 1.0))
    alone = Survival(lengths.coarse)
    cumulative = sum(p * (1.0 - alone.left(at - s)) for p, s in zip(chance.tolist(), stays.tolist(), strict=True))
    below_at = np.append(np.asarray(cumulative)[:-1], 1.0)
    of_lengths = (lengths.cv() * lengths.mean()) ** 2
    alike = correlation * of_lengths / max(1e-12, of_lengths + (spread * away_tokens) ** 2)
    whole = LengthDistribution(at.astype(np.int64), below_at, int(at[-1]))
    group = LengthDistribution(at.astype(np.int64), joint_below(below_at, group_size, alike), int(at[-1]))
    return Lives(Survival(whole), Survival(group))


@dataclass(frozen=True)
class Starts:
    """When the groups of a period start: a share at its beginning, the others evenly over the first ``over`` tokens."""

    at_once: float
    over: float

    def alive(self, life: Survival, lives: Lives, at: float, every: float) -> float:
        """Periods' worth of starts that live ``at`` tokens after a publication, of this and all earlier periods."""
        if lives.longest > _MOST_PERIODS * every:
            # The sum over so many periods is the integral, but for half of its first term.
            first = np.array([at - lives.away_tokens])
            return (life.mean - float(life.area(first)[0])) / every + 0.5 * float(life.left(first)[0])
        ages = lives.ages(at, every)
        found = 0.0
        if self.at_once > 0.0:
            found += self.at_once * float(life.left(ages).sum())
        if self.at_once < 1.0:
            begun = np.full(len(ages), self.over)
            begun[0] = min(at, self.over)
            found += (1.0 - self.at_once) / self.over * float((life.area(ages) - life.area(ages - begun)).sum())
        return found


AT_ONCE = Starts(1.0, 0.0)


def starts(lives: Lives, every: float, room: float) -> Starts | None:
    """Starts of a period in which one batch starts, and no more than ``room`` batches of samples are ever in flight.

    What finds room starts at the publication, the rest as samples end. The share that starts at once and the time until the
    last has started follow from two equations: the room is full at the beginning of that time and at its end. None: it is
    never full.
    """
    if AT_ONCE.alive(lives.sample, lives, 0.0, every) <= room:
        return None

    def with_share(over: float) -> Starts:
        later = Starts(0.0, over).alive(lives.sample, lives, 0.0, every)
        at_once = AT_ONCE.alive(lives.sample, lives, 0.0, every)
        return Starts(min(1.0, max(0.0, (room - later) / max(1e-9, at_once - later))), over)

    def space(over: float) -> float:
        return room - with_share(over).alive(lives.sample, lives, over, every)

    return with_share(rising_root(space, 1e-6 * every, every, 0.01))


@dataclass(frozen=True)
class Cycle:
    """A period in steady state."""

    period_s: float
    binds: bool
    """Whether the bound is what limits the period, rather than a side at its full speed."""
    contested: bool
    """Whether the bound does or does not do so by less than it takes to be clear, or the room for samples limits it too."""


def admitted(
    lives: Callable[[float], Lives],
    token_s: Callable[[float], float],
    crowded_s: Callable[[float], float],
    fastest: float,
    room: float,
    ahead: float,
    step_s: float,
    pause_s: float,
    clearly: float,
) -> Cycle:
    """The period where each publication lets one batch of groups start, and ``ahead`` batches may be unfinished.

    A step can begin w tokens after a publication if all groups but ``ahead`` batches of those let in are complete by then; it
    ends with the next publication, K tokens after the last. So unfinished(K − tokens of a step) = ``ahead``.
    ``fastest`` is K at full speed, ``token_s`` the mean seconds of a token when a batch takes K of them, and ``crowded_s`` those of
    one with so many batches in flight: a step runs at the end of a period, when fewer samples do. ``room`` is in batches; where it
    cannot hold what starts at once, some of it starts later, which is not counted. ``clearly`` is the ratio of two limits from
    which on one of them can be forgotten.
    """

    def late(every: float) -> float:
        seconds = token_s(every)
        life = lives(seconds)
        at = every - step_s / seconds
        if at > 0.0:
            seconds = crowded_s(AT_ONCE.alive(life.sample, life, 0.5 * (at + every), every))
            at = max(0.0, every - step_s / seconds)
        return ahead - AT_ONCE.alive(life.group, life, max(0.0, at), every)

    if late(fastest) >= 0.0:
        contested = late(fastest / clearly) < 0.0
        return Cycle(max(step_s, fastest * token_s(fastest) + pause_s), False, contested)
    seconds = token_s(fastest)
    every = rising_root(late, fastest, fastest + lives(seconds).longest + step_s / seconds, 1e-3)
    seconds = token_s(every)
    life = lives(seconds)
    both = AT_ONCE.alive(life.sample, life, 0.0, every) > room
    return Cycle(every * seconds + pause_s, True, both or every < clearly * fastest)


def blocked_staleness(lives: Lives, every: float, room: float, queue: float) -> float:
    """Mean staleness where the trainer limits and no group starts while ``queue`` batches wait.

    Every period one batch starts and one is trained, so what is in the system when the queue is full again, ``queue`` batches
    and the groups in flight, is by how many versions the next group will be trained later.

    Where one batch a period does not fill ``room``, several start in one period and none in the next ones. Then they are trained
    over as many periods as it takes the system to empty to where groups may start again, half a batch under the capacity of the
    queue. That is exact for lives that are short beside a period; for longer ones the count of a batch a period is a lower limit.
    """
    begun = starts(lives, every, room)
    if begun is not None:
        return queue + begun.alive(lives.group, lives, begun.over, every)
    life, away = lives.group, lives.away_tokens
    unfinished = room * (life.mean + away) / (lives.sample.mean + away)

    def too_long(burst: float) -> float:
        after = burst * every - away
        left = (life.mean - float(life.area(np.array([after]))[0])) / (life.mean + away)
        return burst - 0.5 - unfinished * (1.0 - min(1.0, left))

    burst = rising_root(too_long, 1.0, unfinished + 1.0, 1e-3)
    at_once = AT_ONCE.alive(life, lives, 0.0, every)
    return queue + max(at_once, unfinished - 0.5 * (burst - 1.0))


def dropping(
    lives: Lives, rate: float, ahead: int, step: float, queue: float, pause: float, clearly: float
) -> tuple[float, float, bool]:
    """Tokens of a period, mean staleness, and whether both sides limit, where groups over ``ahead`` versions are discarded when the trainer takes them.

    ``rate`` is in batches per token, ``step`` and ``pause`` in tokens, ``queue`` in batches (infinite without a capacity).

    Where samplers limit, a group that lives y periods and ends before a step of r periods has seen ⌈y + r − v⌉ versions, v
    uniform. Where the trainer limits, the groups that it takes completed in a window of ages: as old as the capacity of the
    queue or their staleness lets them get, and as wide as it takes to find a batch that is fresh.
    """
    tokens, weights = lives.group.tokens + lives.away_tokens, lives.group.weights

    def kept(every: float) -> float:
        over = np.clip(tokens / every + min(1.0, step / every) - ahead, 0.0, 1.0)
        return float(weights @ (1.0 - over))

    def surplus(every: float) -> float:
        return rate * every * kept(every) - 1.0

    least = max(step - pause, 1e-9)
    if surplus(least) < 0.0:
        every = rising_root(surplus, max(least, 1.0 / rate), lives.longest + step + 2.0 / rate, _PRECISION)
        y = tokens / every + min(1.0, step / every)
        share = weights * np.clip(ahead + 1.0 - y, 0.0, 1.0)
        staleness = float(share @ np.minimum(y, ahead)) / max(1e-12, float(share.sum()))
        return every, staleness, every < clearly * least
    y, rho = tokens / least, rate * least

    def from_age(low: float, high: float) -> float:
        return rho * float(weights @ np.clip(ahead - y - low, 0.0, high - low)) - 1.0

    oldest = queue / rho
    low = rising_root(lambda a: -from_age(a, a + 1.0), 0.0, float(ahead), _PRECISION)
    high = low + 1.0
    if oldest < high:
        high = oldest
        low = rising_root(lambda a: -from_age(a, high), 0.0, high, _PRECISION)
    return least, window_staleness(weights, y, low, high, ahead), surplus(least / clearly) < 0.0


def window_staleness(weights: FloatArray, lives: FloatArray, low: float, high: float, most: float = math.inf) -> float:
    """Mean versions that groups have seen which completed ``low`` to ``high`` periods before a publication took them.

    ``lives`` are in periods; a group of age a and life y has seen ⌈a + y⌉ versions. Those that saw over ``most`` do not count.
    """
    until = np.minimum(high, most - lives)
    inside = until > low
    y, until, share = lives[inside], until[inside], weights[inside]
    total = float(share @ (until - low))
    if total <= 0.0:
        return min(most, 1.0)
    return float(share @ (_ceiling_area(until + y) - _ceiling_area(low + y))) / total


def _ceiling_area(y: FloatArray) -> FloatArray:
    """∫ of ⌈t⌉ from 0 to y."""
    whole = np.floor(y)
    return whole * (whole + 1.0) * 0.5 + (y - whole) * (whole + 1.0)


def held(lives: Lives, in_flight: float, ahead: int, shortest: float) -> float:
    """Tokens of ``ahead`` periods where a version is published only when no sample is unfinished that would be staler.

    What was in flight at a publication must be finished ``ahead`` publications later, so that many periods last at least as
    long as the longest life that is left of the samples in flight: ages up to the length of the cycle are equally likely, and
    lives left are independent of each other. ``shortest`` is a period that waits for nothing, so ``ahead`` − 1 short ones and a
    long one make up the cycle.

    The samples that start in the short periods must be finished a little after the cycle. Counted as part of it they make it
    too long, since what they delay delays nothing else; left out, too short. The cycle is taken half-way.
    """
    life, mean = lives.sample, lives.sample.mean
    left = np.concatenate([[0.0], life.tokens])
    started = in_flight / (mean + lives.away_tokens)
    now = life.area(left)
    soon = (ahead - 1) * (life.area(left + shortest) - now)

    def longest(window: float, extra: FloatArray | float) -> float:
        none = np.exp(-started * (life.area(left + window) - now + extra))
        least = max(0.0, ahead * shortest - lives.away_tokens)
        at = np.maximum(left, least)
        return least + float(np.trapezoid(1.0 - np.interp(at, left, none), at)) + lives.away_tokens

    cycle = longest(mean + ahead * shortest, 0.0)
    for _ in range(_ROUNDS):
        before = cycle
        cycle = longest(before, 0.0)
        if abs(cycle - before) <= 1e-3 * cycle:
            break
    return 0.5 * (cycle + longest(cycle, soon)) if ahead > 1 else cycle


def held_staleness(lives: Lives, cycle: float, ahead: int, shortest: float, queue: float, rate: float) -> float:
    """Mean staleness where publications are held: ``ahead`` periods last ``cycle`` tokens together, each at least ``shortest``.

    How they share what is left does not change the cycle, so all ways to share it are equally likely (a uniform partition): the
    k-th publication before a step is nearer than a share u of what is left with the probability that k or more of ``ahead`` − 1
    points fall into it. The batch that is taken is the oldest in a full queue of ``queue`` batches; ``rate`` is in batches per
    token.
    """
    completed = (queue - 1.0 + (np.arange(_WINDOW) + 0.5) / _WINDOW) / rate
    y = np.add.outer(completed, lives.group.tokens + lives.away_tokens)
    cycles = np.floor(y / cycle)
    y -= cycles * cycle
    free = max(1e-9, cycle - ahead * shortest)
    seen = 1.0 + ahead * cycles
    for k in range(1, ahead):
        u = np.clip((y - k * shortest) / free, 0.0, 1.0)
        fewer = sum(math.comb(ahead - 1, j) * u**j * (1.0 - u) ** (ahead - 1 - j) for j in range(k))
        seen += 1.0 - fewer
    return float((seen @ lives.group.weights).mean())
