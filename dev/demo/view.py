"""What one sees while it runs: a live page on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dev.demo.history import label

Json = Mapping[str, Any]

LINE_EVERY_S = 10.0
"""Time between two plain lines when nothing happens."""


@dataclass(frozen=True)
class Picture:
    """Everything that is shown at one moment."""

    elapsed_s: float
    """Seconds since the demo began."""
    status: Json = field(default_factory=dict)
    """Status of the RLJob."""
    state: Json = field(default_factory=dict)
    """State of the emulator."""
    gpus_held: int = 0
    gpu_budget: int = 0
    period_live: float | None = None
    """Mean of the last periods, in seconds."""
    period_shadow: float | None = None
    periods_live: Sequence[float] = ()
    periods_shadow: Sequence[float] = ()
    staleness_mean: float | None = None
    staleness_limit: int = 0
    waiting_for: str = ""
    """What the demo waits for."""


class View(Protocol):
    """Where the demo shows what happens."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def show(self, picture: Picture) -> None:
        """The present."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""


def view_for(console: Console) -> View:
    """The live view on a terminal, lines elsewhere."""
    return LiveView(console) if console.is_terminal else LineView()


class LineView:
    """Plain lines: what changed, and a summary now and then."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._began = time.monotonic()
        self._last_s = -LINE_EVERY_S
        self._phase: str | None = None
        self._decision: tuple[str, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        """Print a line."""
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", file=sys.stdout, flush=True)

    def show(self, picture: Picture) -> None:
        """Print what is new."""
        status = picture.status
        phase = status.get("phase")
        move = status.get("rebalance")
        if move:
            phase = f"{phase}: {move['phase']}"
        if phase != self._phase:
            self._phase = phase
            if phase:
                self.say(f"phase {phase} · {label(status.get('split'))}")
        decisions = status.get("decisions") or ()
        if decisions:
            newest = decisions[-1]
            key = (newest["code"], label(newest.get("to")))
            if key != self._decision:
                self._decision = key
                self.say(f"{newest['code']}: {newest['message']}")
        if picture.elapsed_s - self._last_s >= LINE_EVERY_S and picture.state.get("started"):
            self._last_s = picture.elapsed_s
            self.say(_summary(picture))


class LiveView:
    """One page that is redrawn."""

    def __init__(self, console: Console) -> None:
        """Draw on ``console``."""
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._said: list[str] = []

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        """Print a line above the page."""
        self._live.console.print(f"[dim]{text}[/dim]")

    def show(self, picture: Picture) -> None:
        """Draw the page anew."""
        self._live.update(render(picture))


def render(picture: Picture) -> RenderableType:
    """The live page."""
    status, live = picture.status, picture.state.get("live") or {}
    move = status.get("rebalance")
    phase = str(status.get("phase") or "–") + (f" · {move['phase']}" if move else "")
    left = Table.grid(padding=(0, 2))
    for name, value in (
        ("phase", phase),
        ("split", label(status.get("split"))),
        ("GPUs held", f"{picture.gpus_held} of {picture.gpu_budget}"),
        ("version", str(live.get("version", "–"))),
    ):
        left.add_row(Text(name, style="dim"), value)
    right = Table.grid(padding=(0, 2))
    for name, value in (
        ("response length", f"{live.get('lengthNow', 0):.0f} tokens"),
        ("queue", f"{live.get('queue', '–')} groups"),
        ("in flight", f"{live.get('inFlight', '–')} samples"),
        ("staleness", f"{_number(picture.staleness_mean)} (limit {picture.staleness_limit})"),
    ):
        right.add_row(Text(name, style="dim"), value)
    periods = Table.grid(padding=(0, 2))
    top = max([*picture.periods_live, *picture.periods_shadow], default=1.0)
    periods.add_row(
        Text("period", style="dim"),
        f"{_number(picture.period_live)} s",
        Text(spark(picture.periods_live, top), style="cyan"),
    )
    periods.add_row(
        Text("never moved", style="dim"),
        f"{_number(picture.period_shadow)} s",
        Text(spark(picture.periods_shadow, top), style="yellow"),
    )
    head = Table.grid(expand=True, padding=(0, 2))
    head.add_row(left, right, periods)
    decisions = Table(box=None, padding=(0, 2), show_header=False)
    for decision in list(status.get("decisions") or ())[-6:]:
        times = f" ×{decision['count']}" if decision.get("count", 1) > 1 else ""
        decisions.add_row(Text(decision["code"] + times, style="bold"), decision["message"])
    parts: list[RenderableType] = [Panel(head, title=f"rljob demo · {picture.elapsed_s:.0f} s", title_align="left")]
    parts.append(Panel(decisions, title="decisions", title_align="left"))
    if move and move.get("waitingFor"):
        parts.append(Text(f"the move waits for {move['waitingFor']}", style="dim"))
    if picture.waiting_for:
        parts.append(Text(picture.waiting_for, style="dim"))
    return Group(*parts)


def spark(values: Sequence[float], top: float, width: int = 40) -> str:
    """The last values as a line of blocks, scaled to ``top``."""
    blocks = "▁▂▃▄▅▆▇█"
    return "".join(blocks[min(7, max(0, int(v / top * 8)))] for v in list(values)[-width:]) if top > 0 else ""


def _summary(picture: Picture) -> str:
    live = picture.state.get("live") or {}
    return (
        f"version {live.get('version')} · period {_number(picture.period_live)} s (never moved: "
        f"{_number(picture.period_shadow)} s) · staleness {_number(picture.staleness_mean)} · queue {live.get('queue')} · "
        f"in flight {live.get('inFlight')} · length {live.get('lengthNow', 0):.0f} · GPUs {picture.gpus_held}/{picture.gpu_budget}"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
