"""``rljob pause`` and ``rljob resume``: frees a job's GPUs in order, or only holds its split; and takes that back.

Whoever pauses a job means that it should stop costing something. So a pause frees its GPUs (``spec.suspend``), says how many before it
does, and asks. Who only wants to be left alone by the rebalancing says so: the job then runs on with the split that it has. Which mode it had
is kept in an annotation, so that a resume brings back what was there and nothing else.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rljob_operator.cli.cases import ContextOption, NamespaceOption
from rljob_operator.cli.console import NOT_DONE, fail

if TYPE_CHECKING:
    from rljob_operator.cluster import Cluster
    from rljob_planner.api.spec import RLJobSpec
    from rljob_planner.api.status import RLJobStatus

PAUSE_EXAMPLES = (
    "rljob pause math -n research",
    "kubectl rljob pause math --yes --no-wait",
    "rljob pause math --rebalancing-only",
)

RESUME_EXAMPLES = ("rljob resume math -n research", "kubectl rljob resume math --no-wait")

Json = dict[str, Any]

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The job.")]

WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done, and show how far it is.")]


def pause(
    name: NameArgument,
    rebalancing_only: Annotated[
        bool,
        typer.Option(
            "--rebalancing-only",
            help="Let the job run on and only hold its split: the mode becomes Recommend until rljob resume.",
            show_default=False,
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.", show_default=False)] = False,
    wait: WaitOption = True,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Pause a job: drain its samplers, let the trainer write a checkpoint, free all GPUs (spec.suspend)."""
    from rljob_operator.cli.cases import job_name
    from rljob_operator.cli.status_live import connected

    wanted = job_name(name)

    async def work(cluster: Cluster, where: str) -> None:
        if rebalancing_only:
            await _hold_split(cluster, where, wanted)
        else:
            await _suspend(cluster, where, wanted, ask=not yes, wait=wait)

    try:
        connected(work, namespace, context, f"rljob/{wanted}")
    except KeyboardInterrupt:
        _goes_on(wanted)


def resume(
    name: NameArgument,
    wait: WaitOption = True,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Resume a job that was paused: its pods come back with the split that was in force, and its mode is what it was."""
    from rljob_operator.cli.cases import job_name
    from rljob_operator.cli.status_live import connected

    wanted = job_name(name)

    async def work(cluster: Cluster, where: str) -> None:
        await _resume(cluster, where, wanted, wait=wait)

    try:
        connected(work, namespace, context, f"rljob/{wanted}")
    except KeyboardInterrupt:
        _goes_on(wanted)


def _goes_on(name: str) -> None:
    typer.echo(f"rljob: it goes on without you: rljob status {name} -w follows it", err=True)


async def _suspend(cluster: Cluster, namespace: str, name: str, *, ask: bool, wait: bool) -> None:
    from rljob_planner.api.status import Phase

    job, spec, status = await _read(cluster, namespace, name)
    if status.phase is Phase.COMPLETE:
        fail(f"rljob/{name}: the run is complete and holds no GPUs: there is nothing to pause")
    if spec.suspend:
        typer.echo(f"rljob/{name} is paused already: rljob resume {name} lets it go on")
    else:
        for line in _what_pausing_does(name, spec, status):
            typer.echo(line)
        if ask and not _confirmed(name):
            return
        await _edit(cluster, job, {"spec": {"suspend": True}})
        typer.echo(f"rljob/{name}: paused")
    if wait:
        await _until_free(cluster, namespace, name)


def _what_pausing_does(name: str, spec: RLJobSpec, status: RLJobStatus) -> list[str]:
    held = None if status.observed is None else status.observed.gpus_held
    gpus = held if held is not None else 0 if status.split is None else status.split.gpus
    found = [f"Pausing rljob/{name} frees {gpus} GPUs"]
    if status.split is not None:
        found[0] += (
            f": samplers drain (at most {spec.sampler.drain_timeout}), the trainer writes a checkpoint, then all pods go. "
            f"rljob resume {name} brings back {status.split.label()}."
        )
    else:
        found[0] += ": it has no pods yet, and gets none until it is resumed."
    if status.rebalance is not None:
        found.append(
            f"The move to {status.rebalance.to_split.label()}, in {status.rebalance.phase.value}, is given up."
        )
    return found


def _confirmed(name: str) -> bool:
    """Whether whoever sits there says yes; ends the command where nobody does."""
    if not sys.stdin.isatty():
        fail(f"rljob/{name}: nobody is there to be asked: add --yes")
    if typer.confirm("Go on?"):
        return True
    typer.echo("rljob: nothing was changed", err=True)
    return False


async def _hold_split(cluster: Cluster, namespace: str, name: str) -> None:
    from rljob_operator.overview import MODE_BEFORE_PAUSE
    from rljob_operator.phases import touches_pods
    from rljob_planner.api.spec import RebalanceMode

    job, spec, status = await _read(cluster, namespace, name)
    mode = spec.rebalance.mode
    if mode is not RebalanceMode.AUTO:
        typer.echo(
            f"rljob/{name}: nothing to pause: rebalance.mode is {mode.value}, and only Auto moves a job by itself"
        )
        return
    annotations = {MODE_BEFORE_PAUSE: mode.value}
    mode_now = {"rebalance": {"mode": RebalanceMode.RECOMMEND.value}}
    await _edit(cluster, job, {"metadata": {"annotations": annotations}, "spec": mode_now})
    split = "its split" if status.split is None else status.split.label()
    typer.echo(f"rljob/{name}: rebalancing is paused, it runs on with {split}; rljob resume {name} lets it move again")
    move = status.rebalance
    if move is not None:
        ends = "goes on to its end, since pods have gone or come for it" if touches_pods(move.phase) else "is given up"
        typer.echo(f"The move to {move.to_split.label()} {ends}")


async def _resume(cluster: Cluster, namespace: str, name: str, *, wait: bool) -> None:
    from rljob_operator.overview import MODE_BEFORE_PAUSE
    from rljob_planner.api.spec import RebalanceMode

    job, spec, status = await _read(cluster, namespace, name)
    kept = (job["metadata"].get("annotations") or {}).get(MODE_BEFORE_PAUSE)
    patch: Json = {}
    if kept is not None:
        patch["metadata"] = {"annotations": {MODE_BEFORE_PAUSE: None}}
        # A mode that somebody has set since is what he wants.
        if spec.rebalance.mode is RebalanceMode.RECOMMEND and kept in list(RebalanceMode):
            patch["spec"] = {"rebalance": {"mode": kept}}
            typer.echo(f"rljob/{name}: rebalance.mode is {kept} again")
    if spec.suspend:
        patch["spec"] = {**patch.get("spec", {}), "suspend": False}
        back = "it is planned now" if status.split is None else f"{status.split.label()} come back"
        typer.echo(f"rljob/{name}: resumed, {back}")
    if not patch:
        typer.echo(f"rljob/{name} is not paused")
        return
    await _edit(cluster, job, patch)
    if spec.suspend and wait:
        await _until_running(cluster, namespace, name)


async def _until_free(cluster: Cluster, namespace: str, name: str) -> None:
    from rljob_operator.cli.status_live import follow
    from rljob_operator.story import condition_of
    from rljob_planner.api.status import ConditionType

    said = ""
    async with contextlib.aclosing(follow(cluster, namespace, name)) as states:
        async for job in states:
            if job is None:
                fail(f"rljob/{name} is gone", NOT_DONE)
            _, spec, status = _parsed(job)
            ready = condition_of(status, ConditionType.READY)
            if not spec.suspend:
                fail(f"rljob/{name}: somebody resumed it", NOT_DONE)
            if _seen(job, status) and (status.split is None or (ready is not None and ready.reason == "Suspended")):
                typer.echo(f"rljob/{name}: all GPUs are free")
                return
            if ready is not None and ready.reason == "Suspending":
                said = _say(ready.message.rpartition("It waits for ")[2] or ready.message, said, "waits for ")


async def _until_running(cluster: Cluster, namespace: str, name: str) -> None:
    from rljob_operator.cli.status_live import follow
    from rljob_operator.story import condition_of
    from rljob_planner.api.status import ConditionType, Phase

    said = ""
    async with contextlib.aclosing(follow(cluster, namespace, name)) as states:
        async for job in states:
            if job is None:
                fail(f"rljob/{name} is gone", NOT_DONE)
            _, spec, status = _parsed(job)
            if spec.suspend:
                fail(f"rljob/{name}: somebody (or a queue) suspended it again", NOT_DONE)
            if not _seen(job, status):
                continue
            ready = condition_of(status, ConditionType.READY)
            if status.phase is Phase.COMPLETE or (ready is not None and ready.status == "True"):
                typer.echo(f"rljob/{name}: {status.phase.value}")
                return
            said = _say(status.next or "", said)


def _say(words: str, said: str, before: str = "") -> str:
    if words and words != said:
        typer.echo(f"  {before}{words}")
    return words


def _seen(job: Json, status: RLJobStatus) -> bool:
    """Whether the operator has seen the spec as it is."""
    return status.observed_generation >= int(job["metadata"].get("generation", 0))


async def _read(cluster: Cluster, namespace: str, name: str) -> tuple[Json, RLJobSpec, RLJobStatus]:
    from rljob_operator.cli.status_live import job_of

    return _parsed(await job_of(cluster, namespace, name))


def _parsed(job: Json) -> tuple[Json, RLJobSpec, RLJobStatus]:
    from rljob_operator.cli.status_live import parsed

    spec, status = parsed(job)
    return job, spec, status


async def _edit(cluster: Cluster, job: Json, patch: Json) -> None:
    from rljob_operator.cluster import RLJOBS

    meta = job["metadata"]
    await cluster.edit(RLJOBS, meta["namespace"], meta["name"], patch)
