"""``rljob move``: a move by hand, by the operator's own transaction and with its safety.

The command asks and the operator moves: it writes a request on the RLJob, waits for the answer in its status, and shows how far the move is.
Whoever may edit an RLJob may do that; nothing else is needed, and nothing else is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rljob_operator.cli.cases import ContextOption, NamespaceOption
from rljob_operator.cli.console import NOT_DONE, fail

if TYPE_CHECKING:
    from rljob_operator.byhand import MoveRequest
    from rljob_operator.cluster import Cluster
    from rljob_planner.api.spec import RLJobSpec
    from rljob_planner.api.status import RLJobStatus

EXAMPLES = (
    "rljob move math --samplers 40 --trainers 3",
    "rljob move math --recommended -n research",
    "kubectl rljob move math --trainers 3 --samplers 40 --no-wait",
    "rljob move math --cancel",
)

Json = dict[str, Any]

ANSWER_WITHIN_S = 120.0
"""How long an operator has to take a request up, before it is taken back."""


def move(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The job.")],
    samplers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Sampler replicas; by default as many as now.", show_default=False),
    ] = None,
    trainers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Trainer replicas; by default as many as now.", show_default=False),
    ] = None,
    recommended: Annotated[
        bool,
        typer.Option("--recommended", help="To the split that the operator recommends.", show_default=False),
    ] = False,
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel",
            help="Take a request back: its move is given up while no pod has gone or come for it.",
            show_default=False,
        ),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the end of the move, and show it.")] = True,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="With --wait: give up looking after so long, such as 30m.", show_default=False
        ),
    ] = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Move a job to another split by hand: drained, in order and never over its budget, as the operator moves it itself."""
    from rljob_operator.cli.cases import job_name
    from rljob_operator.cli.status_live import connected

    wanted = job_name(name)
    numbers = samplers is not None or trainers is not None
    if sum((numbers, recommended, cancel)) != 1:
        fail("say where to: --samplers N and --trainers M in replicas, or --recommended; --cancel takes a request back")
    timeout_s = None if timeout is None else _duration(timeout)

    async def work(cluster: Cluster, where: str) -> None:
        if cancel:
            await _cancel(cluster, where, wanted)
            return
        request = await _ask(cluster, where, wanted, samplers, trainers, recommended)
        if request is None:
            return
        if not wait:
            typer.echo(f"rljob/{wanted}: asked ({request.id}); rljob status {wanted} -w follows it")
            return
        try:
            async with asyncio.timeout(timeout_s):
                await _watch(cluster, where, wanted, request)
        except TimeoutError:
            fail(f"rljob/{wanted}: not done within {timeout}; it goes on: rljob status {wanted} -w", NOT_DONE)

    try:
        connected(work, namespace, context, f"rljob/{wanted}")
    except KeyboardInterrupt:
        typer.echo(
            f"rljob: it goes on without you: rljob status {wanted} -w follows it, rljob move {wanted} --cancel takes it back",
            err=True,
        )
        raise typer.Exit(130) from None


def _duration(text: str) -> float:
    from rljob_planner.api.base import duration_s

    try:
        return duration_s(text)
    except ValueError as error:
        fail(f"--timeout: {error}")


async def _ask(
    cluster: Cluster, namespace: str, name: str, samplers: int | None, trainers: int | None, recommended: bool
) -> MoveRequest | None:
    """Writes the request; None where there is nothing to do. Ends the command where the operator would refuse it anyway."""
    from rljob_operator.byhand import ANNOTATION, MoveRequest, objection, wished
    from rljob_operator.cli.status_live import job_of, parsed
    from rljob_operator.cluster import RLJOBS
    from rljob_operator.observation import timestamp

    job = await job_of(cluster, namespace, name)
    spec, status = parsed(job)
    goal = _goal(name, status, samplers, trainers, recommended)
    meta, now_s = job["metadata"], time.time()
    request = MoveRequest(
        id=secrets.token_hex(4),
        samplers=goal[0],
        trainers=goal[1],
        at=timestamp(now_s),
        by="".join(letter for letter in await cluster.who() if letter.isprintable())[:200],
        uid=str(meta["uid"]),
    )
    why = objection(spec, status, request, uid=str(meta["uid"]), now_s=now_s)
    if why is not None:
        fail(f"rljob/{name}: {why}", NOT_DONE)
    assert status.split is not None
    wish = wished(status.split, request)
    if wish.same_shape(status.split):
        typer.echo(f"rljob/{name}: {wish.label()} is in force already")
        return None
    typer.echo(f"rljob/{name}: {status.split.label()} → {wish.label()}, {wish.gpus} of {spec.gpus} GPUs")
    for line in _what_happens(name, spec, status, request):
        typer.echo(f"  {line}")
    text = json.dumps(request.model_dump(mode="json", by_alias=True), separators=(",", ":"))
    await cluster.edit(RLJOBS, namespace, name, {"metadata": {"annotations": {ANNOTATION: text}}})
    return request


def _goal(
    name: str, status: RLJobStatus, samplers: int | None, trainers: int | None, recommended: bool
) -> tuple[int, int]:
    """Replicas of both sides."""
    from rljob_operator.story import recommended as recommendation

    split = status.split
    if recommended:
        found = recommendation(status)
        if found is None or split is None:
            fail(f"rljob/{name}: nothing is recommended yet: rljob explain {name} says what is waited for", NOT_DONE)
        if found.same_shape(split):
            last = status.decisions[-1].message if status.decisions else "there was no decision yet"
            typer.echo(f"rljob/{name}: the split in force is the one that is recommended: {last}")
        return found.samplers.replicas, found.trainers.replicas
    if split is None:
        return samplers or 1, trainers or 1
    return samplers or split.samplers.replicas, trainers or split.trainers.replicas


def _what_happens(name: str, spec: RLJobSpec, status: RLJobStatus, request: MoveRequest) -> list[str]:
    from rljob_planner.api.spec import RebalanceMode, Resize

    split = status.split
    assert split is not None
    found = []
    fewer = split.samplers.replicas - request.samplers
    if fewer > 0:
        found.append(f"{fewer} samplers are drained, for at most {spec.sampler.drain_timeout}, and go")
    if request.trainers != split.trainers.replicas and spec.trainer.resize is Resize.RESTART:
        found.append("trainers write a checkpoint and restart in their new number")
    if spec.rebalance.mode is RebalanceMode.AUTO:
        found.append(
            "rebalance.mode is Auto: the way back stays closed for an hour, or until the move has paid for itself; "
            f"rljob pause {name} --rebalancing-only keeps the split for good"
        )
    return found


async def _watch(cluster: Cluster, namespace: str, name: str, request: MoveRequest) -> None:
    """Shows the move until it has ended; ends the command with an error if it was refused or rolled back."""
    from rljob_operator.byhand import answer_to, read
    from rljob_operator.cli.status_live import follow, parsed
    from rljob_planner.api.requests import RequestOutcome

    said: tuple[str, ...] = ()
    late: list[str] = []
    timer = asyncio.create_task(_taken_back_unless_answered(cluster, namespace, name, late))
    try:
        async with contextlib.aclosing(follow(cluster, namespace, name)) as states:
            async for job in states:
                if job is None:
                    fail(f"rljob/{name} is gone", NOT_DONE)
                _, status = parsed(job)
                answer = answer_to(status.moves, request.id)
                if answer is None:
                    found = read(job["metadata"])
                    if found is None or found.id != request.id:
                        other = "somebody took the request back, or asked for another move"
                        fail(f"rljob/{name}: {late[0] if late else other}", NOT_DONE)
                    continue
                timer.cancel()
                if answer.outcome is RequestOutcome.ACCEPTED:
                    said = _progress(status, said)
                    continue
                if answer.outcome is RequestOutcome.DONE:
                    typer.echo(f"rljob/{name}: done. {status.summary or answer.message}")
                    return
                verb = "refused" if answer.outcome is RequestOutcome.REFUSED else "not done"
                fail(f"rljob/{name}: {verb}: {answer.message}", NOT_DONE)
    finally:
        timer.cancel()


def _progress(status: RLJobStatus, said: tuple[str, ...]) -> tuple[str, ...]:
    """Says where the move is, if that is news."""
    move = status.rebalance
    if move is None:
        return said
    back = " (rolling back)" if move.rolling_back else ""
    words = (f"{move.phase.value}{back}", move.waiting_for)
    if words != said:
        waits = f": waits for {move.waiting_for}" if move.waiting_for else ""
        typer.echo(f"  {time.strftime('%H:%M:%S')}  {words[0]}{waits}")
        sys.stdout.flush()
    return words


async def _taken_back_unless_answered(cluster: Cluster, namespace: str, name: str, late: list[str]) -> None:
    """Takes a request back that no operator took up in time, after it has put into ``late`` what to say of that.

    The edit shows itself to whoever follows the job. An operator that takes the request up at the same moment finds the job changed
    under its hands, and looks again.
    """
    await asyncio.sleep(ANSWER_WITHIN_S)
    late.append(
        f"no operator answered within {ANSWER_WITHIN_S:.0f} s, so the request was taken back: check that the operator runs and watches this "
        "namespace, and that its version knows moves by hand"
    )
    await _take_back(cluster, namespace, name)


async def _cancel(cluster: Cluster, namespace: str, name: str) -> None:
    from rljob_operator.byhand import asked
    from rljob_operator.cli.status_live import job_of, parsed
    from rljob_operator.phases import touches_pods
    from rljob_planner.api.status import MoveCause

    job = await job_of(cluster, namespace, name)
    _, status = parsed(job)
    if not asked(job["metadata"]):
        typer.echo(f"rljob/{name}: there is no request to take back")
        return
    move = status.rebalance
    await _take_back(cluster, namespace, name)
    if move is None or move.cause is not MoveCause.BY_HAND:
        typer.echo(f"rljob/{name}: the request is taken back; no move was under way for it")
    elif touches_pods(move.phase) or move.rolling_back:
        fail(
            f"rljob/{name}: the move is in {move.phase.value}, and pods have gone or come for it: it goes on to its end, "
            "and another one leads back",
            NOT_DONE,
        )
    else:
        typer.echo(f"rljob/{name}: the request is taken back, and the move to {move.to_split.label()} is given up")


async def _take_back(cluster: Cluster, namespace: str, name: str) -> None:
    from rljob_operator.byhand import ANNOTATION
    from rljob_operator.cluster import RLJOBS

    await cluster.edit(RLJOBS, namespace, name, {"metadata": {"annotations": {ANNOTATION: None}}})
