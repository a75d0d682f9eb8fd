"""Results for people: a table in a terminal, and the tables of the documentation's page."""

from __future__ import annotations

from collections.abc import Sequence

from dev.bench.drift.result import AimJson, PolicyJson, PolicyName, TraceJson

BEGIN, END = "<!-- results: python -m dev.bench.drift --page -->", "<!-- /results -->"
SHOWN_MOVES = 8


def splits(policy: PolicyJson) -> str:
    """The splits of a run and the steps at which moves to them began."""
    path = [policy.start, *policy.move_steps]
    words = " → ".join(f"{m.samplers}+{m.trainers}" + (f" @{m.step}" if m.step else "") for m in path[:SHOWN_MOVES])
    return f"{words} …" if len(path) > SHOWN_MOVES else words


def table(trace: TraceJson) -> str:
    """One trace in lines for people."""
    lines = [f"{trace.name} ({trace.steps} steps): {trace.effect}"]
    lines.append(
        f"  {'policy':<13}{'seconds':>10}{'ratio':>8}{'moves':>7}{'GPU-h':>9}{'staleness mean / max':>23}  split"
    )
    for p in trace.policies:
        lines.append(
            f"  {p.policy:<13}{p.total_seconds:>10,.0f}{p.ratio_to_clairvoyant:>8.3f}{p.moves:>7}{p.gpu_hours:>9,.0f}"
            f"{p.mean_staleness:>15.2f} / {p.max_staleness:<5}  {splits(p)}"
        )
    for aim in trace.aims:
        lines.append(f"  {'met   ' if aim.met else 'MISSED'} {aim.aim}: {aim.value:.4g} of at most {aim.limit:g}")
    return "\n".join(lines)


def page(text: str, traces: Sequence[TraceJson]) -> str:
    """A page's text with the results between its marks; ValueError if it has none."""
    if BEGIN not in text or END not in text:
        raise ValueError(
            f"the page has no place for results: write the lines {BEGIN} and {END} where they should stand"
        )
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    body = "\n".join([*_totals(traces), "", *(line for trace in traces for line in _trace(trace))])
    return f"{before}{BEGIN}\n\n{body}\n{END}{after}"


def _totals(traces: Sequence[TraceJson]) -> list[str]:
    """Total over the clairvoyant's, by trace and policy."""
    names = [PolicyName.RLJOB, PolicyName.STATIC_BEST, PolicyName.STATIC_START, PolicyName.THRESHOLD]
    lines = [
        "| trace | " + " | ".join(names) + " | clairvoyant, h | moves of rljob | aims met |",
        "|---|" + "---:|" * (len(names) + 3),
    ]
    for trace in traces:
        rows = {policy.policy: policy for policy in trace.policies}
        ratios = " | ".join(f"{rows[name].ratio_to_clairvoyant:.3f}" for name in names)
        hours = rows[PolicyName.CLAIRVOYANT].total_seconds / 3600.0
        met = sum(aim.met for aim in trace.aims)
        lines.append(
            f"| {trace.name} | {ratios} | {hours:.1f} | {rows[PolicyName.RLJOB].moves} | {met} of {len(trace.aims)} |"
        )
    return lines


def _trace(trace: TraceJson) -> list[str]:
    lines = [f"### {trace.name}", "", f"{trace.effect[0].upper()}{trace.effect[1:]}.", ""]
    lines += [
        "| policy | seconds | ratio | moves | GPU-hours | staleness, mean / max | samplers+trainers |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {p.policy} | {p.total_seconds:,.0f} | {p.ratio_to_clairvoyant:.3f} | {p.moves} | {p.gpu_hours:,.0f} | "
        f"{p.mean_staleness:.2f} / {p.max_staleness} | {splits(p)} |"
        for p in trace.policies
    ]
    missed = [aim for aim in trace.aims if not aim.met]
    lines += ["", f"Missed: {'; '.join(_said(aim) for aim in missed)}." if missed else "All aims are met.", ""]
    return lines


def _said(aim: AimJson) -> str:
    # What is missed at its very limit had to be below it.
    return f"{aim.aim} ({aim.value:.4g}, {'below' if aim.value == aim.limit else 'at most'} {aim.limit:g})"
