"""``rljob status``: how jobs stand, once or for as long as somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rljob_operator.cli.cases import ContextOption, NamespaceOption
from rljob_operator.cli.console import Output, fail, print_data, print_report

if TYPE_CHECKING:
    from rich.live import Live

    from rljob_operator.cluster import Cluster
    from rljob_operator.overview import OverviewJson

EXAMPLES = (
    "rljob status",
    "kubectl rljob status math -n research",
    "rljob status math -w",
    "rljob status -A -o wide",
    "rljob status math -o json | jq .move.waitsFor",
)

Json = dict[str, Any]

REDRAW_S = 1.0
"""How often a terminal is drawn anew, since it tells how long ago things were."""


class StatusOutput(StrEnum):
    """How jobs are shown."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def status(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The job; without one all of the namespace.", show_default=False),
    ] = None,
    output: Annotated[
        StatusOutput,
        typer.Option("--output", "-o", help="table or wide for people; json or yaml for programs."),
    ] = StatusOutput.TABLE,
    namespace: NamespaceOption = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The jobs of all namespaces.", show_default=False)
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Follow until the job is complete, or ^C; into a pipe goes what changes (with -o json, a line a change).",
            show_default=False,
        ),
    ] = False,
    context: ContextOption = None,
) -> None:
    """Show how a job stands: its split, what happens to it and what that waits for, what was decided, what comes next."""
    from rljob_operator.cli.cases import job_name
    from rljob_operator.cli.status_live import connected

    if all_namespaces and namespace is not None:
        fail("--all-namespaces: leave out --namespace")
    if all_namespaces and name is not None:
        fail(f"{name}: a name is of one namespace: write -n NAMESPACE in place of -A")
    if watch and output is StatusOutput.YAML:
        fail("--watch: -o yaml has no end that a program could find; -o json prints a line a change")
    wanted = None if name is None else job_name(name)

    async def work(cluster: Cluster, where: str) -> None:
        scope = None if all_namespaces else where
        if watch:
            await _watch(cluster, scope, wanted, output)
        else:
            await _once(cluster, scope, wanted, output)

    with contextlib.suppress(KeyboardInterrupt):
        connected(work, namespace, context, "rljobs" if wanted is None else f"rljob/{wanted}")


async def _once(cluster: Cluster, namespace: str | None, name: str | None, output: StatusOutput) -> None:
    from rljob_operator.cli.status_live import job_of, jobs_of
    from rljob_operator.cli.status_view import one

    if name is not None:
        assert namespace is not None
        job = _overview(await job_of(cluster, namespace, name))
        if output in (StatusOutput.JSON, StatusOutput.YAML):
            print_data(_data(job), Output(output.value))
        else:
            print_report(one(job, time.time(), wide=output is StatusOutput.WIDE))
        return
    found = _readable((await jobs_of(cluster, namespace))[0])
    if output in (StatusOutput.JSON, StatusOutput.YAML):
        print_data({"items": [_data(job) for job in found]}, Output(output.value))
    elif not found:
        where = "in any namespace" if namespace is None else f"in namespace {namespace}"
        typer.echo(f"rljob: there are no RLJobs {where}", err=True)
    else:
        _print_table(found, output, namespace)


def _print_table(found: list[OverviewJson], output: StatusOutput, namespace: str | None) -> None:
    from rich.console import Console

    from rljob_operator.cli.status_view import many

    console = Console(highlight=False)
    if not console.is_terminal:
        # A line a job, however long: that is what grep and awk expect.
        console = Console(highlight=False, width=10_000)
    table = many(found, wide=output is StatusOutput.WIDE, all_namespaces=namespace is None)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def _overview(job: Json) -> OverviewJson:
    """How a job stands; ends the command where it can't be read."""
    from rljob_operator.cli.status_live import parsed
    from rljob_operator.overview import overview_of

    return overview_of(job["metadata"], *parsed(job))


def _readable(jobs: Iterable[Json]) -> list[OverviewJson]:
    """How several jobs stand; one that can't be read, which is said, hides no other."""
    found = []
    for job in jobs:
        with contextlib.suppress(typer.Exit):
            found.append(_overview(job))
    return found


def _data(job: OverviewJson) -> Json:
    return job.model_dump(mode="json", by_alias=True)


async def _watch(cluster: Cluster, namespace: str | None, name: str | None, output: StatusOutput) -> None:
    states = _states(cluster, namespace, name)
    async with contextlib.aclosing(states):
        if output is StatusOutput.JSON:
            await _as_lines(states, name is None)
        elif sys.stdout.isatty():
            await _on_terminal(states, name, output, namespace)
        else:
            await _into_pipe(states, name)


async def _states(
    cluster: Cluster, namespace: str | None, name: str | None
) -> AsyncGenerator[list[OverviewJson], None]:
    """The jobs after each change; ends when the one that is named is complete or gone."""
    from rljob_operator.cli.status_live import changes, follow, job_of
    from rljob_planner.api.status import Phase

    if name is None:
        async with contextlib.aclosing(changes(cluster, namespace)) as all_of_them:
            async for jobs in all_of_them:
                yield sorted(_readable(jobs.values()), key=lambda job: (job.namespace or "", job.name))
        return
    assert namespace is not None
    # One that is not there is an error, one that goes is an end.
    await job_of(cluster, namespace, name)
    async with contextlib.aclosing(follow(cluster, namespace, name)) as states:
        async for job in states:
            if job is None:
                typer.echo(f"rljob: rljob/{name} is gone", err=True)
                return
            found = _overview(job)
            yield [found]
            if found.phase is Phase.COMPLETE:
                return


async def _as_lines(states: AsyncGenerator[list[OverviewJson], None], several: bool) -> None:
    """A line of JSON for each change."""
    shown: dict[tuple[str | None, str], Json] = {}
    async for jobs in states:
        for job in jobs:
            data, key = _data(job), (job.namespace, job.name)
            if shown.get(key) != data:
                _line(json.dumps(data, ensure_ascii=False, allow_nan=False))
            shown[key] = data
        if several:
            gone = set(shown) - {(job.namespace, job.name) for job in jobs}
            for key in gone:
                del shown[key]


async def _into_pipe(states: AsyncGenerator[list[OverviewJson], None], name: str | None) -> None:
    """The rows that changed, each with the time."""
    from rljob_operator.cli.status_view import brief, decisions, rows

    shown: dict[str, str] = {}
    async for jobs in states:
        if name is None:
            now = {f"{job.namespace}/{job.name}": brief(job) for job in jobs}
            for gone in sorted(shown.keys() - now.keys()):
                _stamped(f"{gone}: gone")
            _changed(shown, now, lambda _key, text: text)
        else:
            (job,) = jobs
            last = [("decision", f"{code}, {text}") for code, text in decisions(job, most=1)]
            now = {}
            for key, text in (*rows(job), *last):
                now[key] = text
            _changed(shown, now, lambda key, text: f"{key:<12}  {text}")
        shown = now


def _changed(shown: dict[str, str], now: dict[str, str], line: Any) -> None:
    for key, text in now.items():
        if shown.get(key) != text:
            _stamped(line(key, text))


def _stamped(text: str) -> None:
    _line(f"{time.strftime('%H:%M:%S')}  {text}")


def _line(text: str) -> None:
    typer.echo(text)
    # Whoever reads the other end of a pipe waits for it.
    sys.stdout.flush()


async def _on_terminal(
    states: AsyncGenerator[list[OverviewJson], None], name: str | None, output: StatusOutput, namespace: str | None
) -> None:
    """The jobs in place, drawn anew as they change and as time passes."""
    from rich.live import Live

    now: list[OverviewJson] = []
    with Live(auto_refresh=False, vertical_overflow="visible") as live:

        async def tick() -> None:
            while True:
                await asyncio.sleep(REDRAW_S)
                _draw(live, now, name, output, namespace)

        ticking = asyncio.create_task(tick())
        try:
            async for jobs in states:
                now[:] = jobs
                _draw(live, now, name, output, namespace)
        finally:
            ticking.cancel()


def _draw(
    live: Live, jobs: Iterable[OverviewJson], name: str | None, output: StatusOutput, namespace: str | None
) -> None:
    from rich.text import Text

    from rljob_operator.cli.status_view import many, one

    found = list(jobs)
    if not found:
        live.update(Text("no RLJobs yet" if name is None else ""), refresh=True)
        return
    wide, everywhere = output is StatusOutput.WIDE, namespace is None
    if name is not None:
        live.update(one(found[0], time.time(), wide=wide), refresh=True)
    else:
        live.update(many(found, wide=wide, all_namespaces=everywhere), refresh=True)
