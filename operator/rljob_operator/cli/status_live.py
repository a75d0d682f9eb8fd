"""RLJobs as they change on the cluster, for commands that follow one: the latest state at each change, until the caller has seen enough.

What the commands ask of the API server is all here. A watch that breaks off is begun anew, since a laptop sleeps and a proxy closes what
is idle; what the user may not do is said as the API server says it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rljob_operator.cli.console import fail

if TYPE_CHECKING:
    from rljob_operator.cluster import Cluster
    from rljob_planner.api.spec import RLJobSpec
    from rljob_planner.api.status import RLJobStatus

T = TypeVar("T")

Json = dict[str, Any]

AGAIN_S = 1.0
"""Pause before a watch that broke off is begun anew."""

_PAGE = 200


def connected(
    work: Callable[[Cluster, str], Awaitable[T]], namespace: str | None, context: str | None, source: str
) -> T:
    """Does something on the cluster; ``work`` is given the connection and the namespace that is meant. Ends the command on errors."""
    from rljob_operator.cli.calibrate import with_operator_extra

    with_operator_extra()
    from rljob_operator.cli.live import current_namespace
    from rljob_operator.cluster import Cluster, ClusterError

    async def run() -> T:
        cluster = await Cluster.connect(context)
        try:
            return await work(cluster, namespace or current_namespace(context))
        finally:
            await cluster.close()

    try:
        return asyncio.run(run())
    except ClusterError as error:
        fail(f"{source}: {error.message}")


async def job_of(cluster: Cluster, namespace: str, name: str) -> Json:
    """One RLJob; ends the command if there is none."""
    from rljob_operator.cluster import RLJOBS

    found = await cluster.get(RLJOBS, namespace, name)
    if found is None:
        fail(f"rljob/{name}: there is no such RLJob in namespace {namespace}: kubectl get rljobs -A lists all")
    return found


async def jobs_of(cluster: Cluster, namespace: str | None) -> tuple[list[Json], str]:
    """All RLJobs of a namespace, or of all, and the version of the list."""
    from rljob_operator.cluster import RLJOBS

    found: list[Json] = []
    token = ""
    while True:
        page = await cluster.page(RLJOBS, namespace, _PAGE, token)
        found += page.get("items") or []
        meta = page.get("metadata") or {}
        token = str(meta.get("continue") or "")
        if not token:
            # Items of a list say neither their kind nor their API.
            head = {"apiVersion": RLJOBS.api, "kind": "RLJob"}
            return [{**head, **job} for job in found], str(meta.get("resourceVersion") or "")


async def changes(cluster: Cluster, namespace: str | None) -> AsyncGenerator[dict[str, Json], None]:
    """The RLJobs by uid, at first and after every change; raises ClusterError where the server says no."""
    from rljob_operator.cluster import ClusterError

    before: dict[str, Json] | None = None
    while True:
        try:
            found, version = await jobs_of(cluster, namespace)
            jobs = {str(job["metadata"]["uid"]): job for job in found}
            if jobs != before:
                yield dict(jobs)
            async with contextlib.aclosing(_events(cluster, namespace, version)) as events:
                async for kind, job in events:
                    uid = str(job["metadata"]["uid"])
                    if kind == "DELETED":
                        jobs.pop(uid, None)
                    else:
                        jobs[uid] = job
                    yield dict(jobs)
            before = jobs
        except ClusterError as error:
            if error.status in (401, 403, 404):
                raise
            await asyncio.sleep(AGAIN_S)


async def _events(cluster: Cluster, namespace: str | None, version: str) -> AsyncGenerator[tuple[str, Json], None]:
    """What happens to RLJobs after ``version``, until the server ends the watch."""
    from rljob_operator.cluster import RLJOBS

    async for event in cluster.follow(RLJOBS, namespace, version):
        kind, job = str(event.get("type")), event.get("object") or {}
        if kind == "ERROR":
            return
        if kind != "BOOKMARK":
            (job.get("metadata") or {}).pop("managedFields", None)
            yield kind, job


async def follow(cluster: Cluster, namespace: str, name: str) -> AsyncGenerator[Json | None, None]:
    """One RLJob, at first and after each of its changes; None once it is gone, also if another of its name came."""
    uid: str | None = None
    shown: Json | None = None
    async with contextlib.aclosing(changes(cluster, namespace)) as states:
        async for jobs in states:
            job = next((job for job in jobs.values() if job["metadata"]["name"] == name), None)
            uid = uid or (None if job is None else str(job["metadata"]["uid"]))
            if job is None or job["metadata"]["uid"] != uid:
                yield None
                return
            if job != shown:
                shown = job
                yield job


def parsed(job: Json) -> tuple[RLJobSpec, RLJobStatus]:
    """Spec and status of a job; ends the command where they can't be read."""
    from pydantic import ValidationError

    from rljob_operator.overview import parsed as read
    from rljob_planner.api.reading import InvalidJobError

    name = f"rljob/{job['metadata'].get('name')}"
    try:
        return read(job)
    except InvalidJobError as error:
        fail("\n".join(f"{name}: {problem}" for problem in error.problems))
    except ValidationError as error:
        at = ".".join(str(part) for part in error.errors()[0]["loc"])
        fail(f"{name}: its status was written by another version of the operator ({at}): use the rljob of that version")
