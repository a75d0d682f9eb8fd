"""A history as a value: drawn from a seed, run, judged, shortened to what is needed for its verdict."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from dev.bench.histories.decisions import instead_of_deciding
from dev.bench.histories.mutants import MUTANTS
from dev.bench.histories.rest import unrest
from dev.bench.histories.shape import Shape
from dev.bench.histories.world import ACTS, WEIGHTS, World

REST_WITHIN_S = 1200.0
"""Virtual seconds within which all must come to rest once the faults have ceased."""

REST_FOR_S = 35.0
"""How long it must then stay so: longer than the operator's idle tick."""

_LOOK_S = 5.0


@dataclass(frozen=True)
class Step:
    """Time passes, then something happens."""

    delay_s: float
    act: str
    a: float
    b: float

    def __str__(self) -> str:
        """One line of a history."""
        return f"+{self.delay_s:.2f}s {self.act}({self.a:.2f}, {self.b:.2f})"


@dataclass(frozen=True)
class Verdict:
    """What became of a history."""

    violations: tuple[str, ...]
    """What must never happen and did, in order."""
    unrest: str | None
    """What was not at rest in the end; None if all was, or if a violation ended it before."""
    passes: int
    moves: int
    virtual_s: float
    """Virtual seconds that it took."""

    @property
    def kind(self) -> str | None:
        """What is wrong, for comparing histories: the rule that was violated, ``unrest``, or None."""
        if self.violations:
            return self.violations[0].split(":")[0]
        return None if self.unrest is None else "unrest"


def drawn(seed: int, length: int = 24) -> tuple[Step, ...]:
    """The steps of a history by chance; about ``length`` of them."""
    rng = random.Random(f"steps {seed}")
    names = list(ACTS)
    weights = [WEIGHTS.get(name, 1.0) for name in names]
    # Each history knows only some of the acts, so that some see many of a kind.
    known = [w if rng.random() < 0.6 else 0.0 for w in weights]
    known[0] = weights[0]
    steps = []
    for _ in range(rng.randint(length // 2, 3 * length // 2)):
        delay_s = rng.choice((0.0, rng.uniform(0.0, 0.3), rng.uniform(0.5, 5.0), rng.uniform(5.0, 25.0)))
        steps.append(
            Step(
                round(delay_s, 3), rng.choices(names, known)[0], rng.randrange(1000) / 1000, rng.randrange(1000) / 1000
            )
        )
    return tuple(steps)


def run(shape: Shape, steps: Sequence[Step], mutant: str | None = None) -> Verdict:
    """Runs a history; ends at its first violation."""
    with ExitStack() as stack:
        if mutant is not None:
            stack.enter_context(MUTANTS[mutant]())
        world = World(shape)
        stack.enter_context(instead_of_deciding(world.chance))
        begun_s = world.clock.now_s
        world.clock.run_for(30.0)
        for step in steps:
            world.clock.run_for(step.delay_s)
            if world.violations:
                break
            world.act(step.act, step.a, step.b)
        restless = None
        if not world.violations:
            world.calm()
            restless = settle(world)
        passes = world.passes
        world.end()
        return Verdict(
            violations=tuple(f"{v.rule}: {v.message} (at {v.at_s - begun_s:.3f} s)" for v in world.violations),
            unrest=None if world.violations else restless,
            passes=passes,
            moves=world.chance.moves,
            virtual_s=world.clock.now_s - begun_s,
        )


def settle(world: World) -> str | None:
    """Lets a calm world come to rest; returns what is not in the end."""
    until_s = world.clock.now_s + REST_WITHIN_S
    calm_since: float | None = None
    while True:
        found = unrest(world.cluster)
        now_s = world.clock.now_s
        if found is not None:
            calm_since = None
        elif calm_since is None:
            calm_since = now_s
        elif now_s - calm_since >= REST_FOR_S:
            return None
        if now_s >= until_s or world.violations:
            return found
        world.clock.run_for(_LOOK_S)


def shortened(
    shape: Shape,
    steps: Sequence[Step],
    kind: str,
    mutant: str | None = None,
    *,
    tries: int = 300,
    tell: Callable[[int], None] = lambda _left: None,
) -> tuple[Step, ...]:
    """A shorter history with the same kind of verdict: parts are left out for as long as it stays."""
    best = tuple(steps)
    size = max(1, len(best) // 2)
    while size >= 1 and tries > 0:
        at = 0
        while at < len(best) and tries > 0:
            tries -= 1
            rest = best[:at] + best[at + size :]
            if run(shape, rest, mutant).kind == kind:
                best = rest
                tell(len(best))
            else:
                at += size
        size //= 2
    return best
