"""A job as it runs on the cluster, with the nodes that it may use: the operator's own inventory, asked once.

The client of the API server is an extra, so everything of it is imported here and only when a live job is asked for. What the user
may not read is said with what would do instead; nothing is ever written.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from rljob_operator.cli.cases import Case, Options
from rljob_operator.cli.console import OPERATOR_EXTRA, fail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from rljob_operator.cluster import Cluster
    from rljob_planner.api.spec import RLJobSpec
    from rljob_planner.api.status import RLJobStatus

_LEAST_STEPS = 1


class Seen(NamedTuple):
    """What the API server showed: plain JSON, as it came."""

    namespace: str
    job: dict[str, Any] | None
    nodes: list[dict[str, Any]]
    pods: list[dict[str, Any]]
    quotas: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    adopted: tuple[tuple[dict[str, Any], list[dict[str, Any]]], ...] = ()
    """The workloads that the job adopts, samplers first, each with its pods; empty for other jobs."""


def live_case(name: str, options: Options) -> Case:
    """The case of a live job; ends the command where it cannot be read."""
    try:
        from rljob_operator.cluster import ClusterError
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in OPERATOR_EXTRA:
            raise
        fail(
            f"a live job needs {error.name}, which is not installed: pip install 'rljob-operator[operator]', or pipe it in: "
            f"kubectl get rljob {name} -o yaml | rljob plan -"
        )
    try:
        seen = asyncio.run(look(name, options.namespace, survey=not options.describes_nodes, context=options.context))
    except ClusterError as error:
        fail(f"rljob/{name}: {error.message}")
    return case_from(name, seen, options)


def case_from(name: str, seen: Seen, options: Options) -> Case:
    """The case that the API server's answers make."""
    from dataclasses import replace

    from rljob_planner.api.reading import InvalidJobError, read_job

    if seen.job is None:
        fail(
            f"rljob/{name}: there is no such RLJob in namespace {seen.namespace}: kubectl get rljobs -A lists all; nor is there a file {name}"
        )
    source = f"rljob/{name} in {seen.namespace}"
    spec = seen.job.get("spec", {})
    if options.budget is not None:
        spec = spec | {"gpus": options.budget}
    if options.accelerator is not None:
        spec = spec | {"accelerator": options.accelerator}
    try:
        job = read_job(seen.job | {"spec": spec})
    except InvalidJobError as error:
        fail("\n".join(f"{source}: {problem}" for problem in error.problems))
    case = _as_it_runs(Case(name, source, job.spec, ()), seen.job.get("status") or {})
    if options.describes_nodes:
        return case
    from rljob_operator.inventory import take_inventory
    from rljob_operator.planning import limited

    uid = str(seen.job["metadata"].get("uid", ""))
    spec, pods = _with_adopted(source, job.spec, uid, seen)
    inventory = take_inventory(spec, uid, seen.nodes, pods, seen.quotas, seen.jobs)
    if not inventory.rooms:
        why = "; ".join(inventory.notes) or "no node has GPUs that its pods may use"
        fail(f"{source}: {why}; describe nodes with --nodes to plan for them all the same")
    words = list(inventory.notes)
    if inventory.budget < job.spec.gpus and inventory.quota is not None:
        words.append(f"quota {inventory.quota.name} leaves {inventory.budget} GPUs of the budget of {job.spec.gpus}")
    rooms = inventory.rooms
    if options.accelerator is not None:
        words.append(f"planned for {options.accelerator}, as --accelerator says, whatever the nodes are labelled")
        rooms = tuple(replace(room, accelerator=None) for room in rooms)
    return replace(case, spec=limited(spec, inventory), rooms=rooms, words=(*words, *case.words))


def _with_adopted(
    source: str, spec: RLJobSpec, uid: str, seen: Seen
) -> tuple[RLJobSpec, list[dict[str, Any]] | list[Mapping[str, Any]]]:
    """The spec with the shapes of the workloads that it adopts, and all pods, theirs as pods of the job."""
    if not spec.adopts:
        return spec, seen.pods
    from rljob_operator import adopt
    from rljob_operator.status import Verdict

    refs = (("sampler", spec.sampler.target_ref), ("trainer", spec.trainer.target_ref))
    workloads = [workload for workload, _ in seen.adopted] + [None, None]
    sides = [adopt.read_side(spec, role, ref, live) for (role, ref), live in zip(refs, workloads, strict=False) if ref]
    for side in sides:
        if isinstance(side, Verdict):
            fail(f"{source}: {side.message}")
    samplers, trainers = (side for side in sides if not isinstance(side, Verdict))
    mine = [
        pod
        for side, (_, pods) in zip((samplers, trainers), seen.adopted, strict=True)
        for pod in adopt.labelled(pods, side.role, "", uid)
    ]
    return adopt.described(spec, samplers, trainers), adopt.in_place(seen.pods, mine)


def _as_it_runs(case: Case, status: dict[str, Any]) -> Case:
    """The case with what the run has shown so far: steps to go, its speed, and its response lengths."""
    from dataclasses import replace

    from pydantic import ValidationError

    from rljob_planner.api.status import RLJobStatus
    from rljob_planner.calibrate import Calibration
    from rljob_planner.errors import PlanningError
    from rljob_planner.job import lengths_of

    try:
        now: RLJobStatus = RLJobStatus.model_validate(status)
    except ValidationError:
        return replace(
            case, words=("its status can't be read by this version, so the plan is made from its spec alone",)
        )
    words: list[str] = []
    learned = now.calibration
    if learned is not None and learned.observations > 0:
        calibration = Calibration(
            sampler_factor=learned.sampler_factor,
            trainer_factor=learned.trainer_factor,
            residual=learned.residual,
            pegged=learned.pegged,
            observations=learned.observations,
        )
        if now.split is not None:
            from rljob_operator.learned import with_constants

            calibration = with_constants(calibration, now.learned, now.split.samplers.tensor_parallel)
        case = replace(case, calibration=calibration)
        words.append(
            f"speeds as the run has shown them: samplers {learned.sampler_factor:.2f}, trainers {learned.trainer_factor:.2f} "
            "times the model's"
        )
    observed = now.observed
    if observed is not None and observed.policy_version:
        case = replace(case, steps=max(_LEAST_STEPS, case.spec.workload.steps - observed.policy_version))
        words.append(f"{observed.policy_version} of {case.spec.workload.steps} steps are done")
    if observed is not None and observed.response_tokens_mean:
        try:
            lengths = lengths_of(case.spec.workload.response_tokens)
            scaled = lengths.scaled(observed.response_tokens_mean / lengths.mean())
        except (PlanningError, ValueError):
            return replace(case, words=tuple(words))
        case = replace(case, lengths=scaled)
        words.append(
            f"responses have {observed.response_tokens_mean:,.0f} tokens in the mean now; the spec says {lengths.mean():,.0f}"
        )
    return replace(case, words=tuple(words))


async def look(name: str, namespace: str | None, survey: bool, context: str | None = None) -> Seen:
    """Reads the job, and with ``survey`` all that its inventory rests on; raises ClusterError."""
    from rljob_operator.cluster import PODS, RLJOBS, Cluster, ClusterError, Resource

    nodes, quotas = Resource("v1", "nodes"), Resource("v1", "resourcequotas")
    cluster = await Cluster.connect(context)
    where = namespace or current_namespace(context)

    async def readable(what: str, question: Awaitable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        try:
            return await question
        except ClusterError as error:
            if error.status != 403:
                raise
            message = (
                f"you may not list {what}, so free GPUs are unknown: describe nodes with --nodes, such as --nodes 8x8"
            )
            raise ClusterError(403, error.reason, message) from error

    try:
        job = await cluster.get(RLJOBS, where, name)
        if job is None or not survey:
            return Seen(where, job, [], [], [], [])
        return Seen(
            where,
            job,
            await readable("nodes", cluster.list(nodes, None, "")),
            await readable("pods of all namespaces", cluster.list(PODS, None, "")),
            await readable(f"resourcequotas in {where}", cluster.list(quotas, where, "")),
            await readable("rljobs of all namespaces", cluster.list(RLJOBS, None, "")),
            await _adopted(cluster, where, job),
        )
    finally:
        await cluster.close()


async def _adopted(
    cluster: Cluster, namespace: str, job: dict[str, Any]
) -> tuple[tuple[dict[str, Any], list[dict[str, Any]]], ...]:
    """The workloads that a job adopts, up to the first that is not there, each with its pods."""
    from rljob_operator.adopt import selector_text
    from rljob_operator.cluster import PODS, Resource

    found = []
    for role in ("sampler", "trainer"):
        ref = ((job.get("spec") or {}).get(role) or {}).get("targetRef")
        if ref is None:
            break
        workloads = Resource("apps/v1", f"{ref['kind'].lower()}s")
        workload = await cluster.get(workloads, namespace, ref["name"])
        if workload is None:
            break
        selector = selector_text((workload.get("spec") or {}).get("selector") or {})
        found.append((workload, await cluster.list(PODS, namespace, selector) if selector else []))
    return tuple(found)


def current_namespace(context: str | None) -> str:
    """The namespace of a context of the kubeconfig, by default the current one; ``default`` if it names none."""
    from kubernetes.aio import config

    try:
        contexts, active = config.list_kube_config_contexts()
    except (config.ConfigException, OSError):
        return "default"
    chosen = active if context is None else next((c for c in contexts if c.get("name") == context), None)
    return str((chosen or {}).get("context", {}).get("namespace") or "default")
