"""What ``plan``, ``report`` and ``compare`` plan: a job from a file or from the cluster, on nodes that are given or found.

The options are declared once, here, so that they mean the same in every command. A job of a file is planned on nodes that the user
describes, a live one on those that the API server shows; what was found out on the way stands in ``words`` and is printed, since a
plan for other nodes or other lengths than one thinks of is worse than none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rljob_operator.cli.console import NOTHING_FEASIBLE, WRONG_INPUT, fail, read_job, with_simulator

if TYPE_CHECKING:
    from rljob_operator.cli.documents import Found
    from rljob_planner.api.spec import RLJob, RLJobSpec
    from rljob_planner.calibrate import Calibration
    from rljob_planner.errors import PlanningError
    from rljob_planner.lengths import LengthDistribution
    from rljob_planner.placement import Room
    from rljob_planner.search import Plan
    from rljob_planner.traces import FittedLengths

_LIVE = re.compile(r"(?:rlj|rljobs?)(?:\.rljob\.dev)?/(?P<name>[^/]+)")
"""How kubectl names an object: its kind, a slash and its name."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
"""A name that an RLJob may have, without the dots that may also begin the ending of a file's name."""

_INFEASIBLE = {"NothingFeasible", "DoesNotFit"}

NodesOption = Annotated[
    str | None,
    typer.Option(
        metavar="N×GPUS",
        help="Nodes × GPUs of a node, such as 8x8 or 8x8,2x4; by default the budget in nodes of the GPU's usual size, mostly 8.",
        show_default=False,
    ),
]
SamplerNodesOption = Annotated[
    str | None,
    typer.Option(
        metavar="N×GPUS",
        help="Nodes for samplers alone, such as 4x8, or near=4x8,spot=2x8 by pool.",
        show_default=False,
    ),
]
TrainerNodesOption = Annotated[
    str | None, typer.Option(metavar="N×GPUS", help="Nodes for trainers alone, such as 2x8.", show_default=False)
]
AcceleratorOption = Annotated[
    str | None,
    typer.Option(metavar="GPU", help="GPU type, such as H100-SXM, instead of spec.accelerator.", show_default=False),
]
SamplerAcceleratorOption = Annotated[
    str | None, typer.Option(metavar="GPU", help="GPU type of the sampler nodes.", show_default=False)
]
TrainerAcceleratorOption = Annotated[
    str | None, typer.Option(metavar="GPU", help="GPU type of the trainer nodes.", show_default=False)
]
BudgetOption = Annotated[
    int | None,
    typer.Option(metavar="GPUS", min=1, help="GPUs of the job, instead of spec.gpus.", show_default=False),
]
LengthsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Response lengths of a run (JSONL), instead of workload.responseTokens.",
        show_default=False,
    ),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What rljob calibrate wrote: measured speeds.", show_default=False),
]
ProfileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="An RLJobProfile, as kubectl get rljobprofile NAME -o yaml prints it: what earlier runs measured.",
        show_default=False,
    ),
]
LiveOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Read this RLJob and the nodes from the cluster.", show_default=False),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace of a live job; by default the kubeconfig's.", show_default=False),
]
ContextOption = Annotated[
    str | None,
    typer.Option(help="Context of the kubeconfig, for a live job; by default the current one.", show_default=False),
]
JobOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Which RLJob of the file; by default the first.", show_default=False),
]


class Options(NamedTuple):
    """What a user may say besides the job."""

    nodes: str | None = None
    sampler_nodes: str | None = None
    trainer_nodes: str | None = None
    accelerator: str | None = None
    sampler_accelerator: str | None = None
    trainer_accelerator: str | None = None
    budget: int | None = None
    lengths: Path | None = None
    calibration: Path | None = None
    profile: Path | None = None
    live: str | None = None
    namespace: str | None = None
    context: str | None = None
    job: str | None = None

    @property
    def describes_nodes(self) -> bool:
        """Whether the nodes are described, so that those of a cluster don't matter."""
        return any((self.nodes, self.sampler_nodes, self.trainer_nodes))


@dataclass(frozen=True)
class Case:
    """A job on its nodes, ready to be planned."""

    name: str
    source: str
    """The file, or the live object, in messages."""
    spec: RLJobSpec
    rooms: tuple[Room, ...]
    lengths: LengthDistribution | None = None
    """Response lengths in place of the spec's."""
    calibration: Calibration | None = None
    steps: int | None = None
    """Steps that remain of a live job; None: all of the spec's."""
    words: tuple[str, ...] = ()
    """What the reader should know of how this case came about, in sentences."""

    @property
    def title(self) -> str:
        """The job, its model, GPUs and nodes in a line; raises PlanningError for names that are unknown."""
        from rljob_planner.job import Job
        from rljob_planner.report import describe_rooms

        job = Job.of(self.spec, self.rooms, self.lengths)
        gpus = job.accelerators
        types = " and ".join(dict.fromkeys((gpus.sampler.name, gpus.trainer.name)))
        steps = self.spec.workload.steps if self.steps is None else self.steps
        left = "" if self.steps is None else " to go"
        model = f"{job.model.name} ({job.model.parameters / 1e9:.3g}B, sampled in {job.weights.name})"
        return f"{self.name}: {model} on {self.spec.gpus} GPUs ({types}), {describe_rooms(self.rooms)}, {steps} steps{left}"

    def plan(self, **options: Any) -> Plan:
        """The plan of this case; ends the command where there is none."""
        from rljob_planner.errors import PlanningError

        def search() -> Plan:
            from rljob_planner.search import plan

            return plan(
                self.spec,
                self.rooms,
                calibration=self.calibration,
                lengths=self.lengths,
                steps=self.steps,
                **options,
            )

        try:
            found: Plan = with_simulator(f"{self.name}: comparing splits", search)
        except PlanningError as error:
            fail_planning(self.source, error)
        return found


def case_of(target: str | None, options: Options, found: Found | None = None) -> Case:
    """The case that a user asks for; ends the command with what is wrong. ``found``: the file, where it has been read."""
    name = options.live or (None if target is None else live_name(target))
    if options.live and target is not None:
        fail("either a FILE or --live NAME: there is one job to plan")
    if target is None and name is None:
        fail("say which job: a FILE with an RLJob, - for stdin, or NAME for one on the cluster")
    if name is None:
        for option, given in (("--namespace", options.namespace), ("--context", options.context)):
            if given is not None:
                fail(f"{option}: is of live jobs: name one by NAME or rljob/NAME, or leave it out")
        content = None if found is None else (found.text, found.source)
        job, source = read_job(str(target), _changes(options), content, options.job)
        return _finished(Case(_name(job), source, job.spec, ()), options)
    if options.job is not None:
        fail("--job: is of files: a live job is named by NAME or rljob/NAME")
    from rljob_operator.cli.live import live_case

    return _finished(live_case(name, options), options)


def live_name(target: str) -> str | None:
    """The name of the live job that is meant, by ``rljob/NAME`` or by NAME alone where no such file is; None for a file."""
    if Path(target).is_file():
        return None
    named = _LIVE.fullmatch(target)
    if named:
        return named["name"]
    return target if _NAME.fullmatch(target) else None


def job_name(target: str) -> str:
    """The name of a job in a command that knows live ones only: NAME, or ``rljob/NAME`` as kubectl prints it."""
    named = _LIVE.fullmatch(target)
    name = named["name"] if named else target
    if "/" in name or not name:
        fail(f"{target}: this is no name of an RLJob: kubectl get rljobs -A lists all")
    return name


def fail_planning(source: str, error: PlanningError) -> Any:
    """Ends the command with why there is no plan."""
    hint = (
        "; or name it with --accelerator" if error.reason == "UnknownAccelerator" and "set spec" in str(error) else ""
    )
    fail(f"{source}: {error}{hint}", NOTHING_FEASIBLE if error.reason in _INFEASIBLE else WRONG_INPUT)


def _finished(case: Case, options: Options) -> Case:
    """The case with what the options say of nodes, lengths and speeds."""
    from dataclasses import replace

    from rljob_planner.errors import PlanningError

    rooms = _rooms(options, case.spec) if options.describes_nodes or not case.rooms else case.rooms
    words = [*case.words, *_format_words(case.spec)]
    try:
        lengths, fit = _lengths(options, case.spec)
        calibration = case.calibration
        wished = case.spec.calibration
        if wished is not None and wished.config_map and options.calibration is None and calibration is None:
            words.append(
                f"spec.calibration names ConfigMap {wished.config_map}, which the operator reads on the cluster: give "
                "its file with --calibration to plan with it here"
            )
        inline = None if wished is None or calibration is not None else wished.inline
        if options.calibration is not None or inline is not None:
            from rljob_planner.calibrate import calibration_in, judged, read_calibration, unstated
            from rljob_planner.job import Job

            if options.calibration is not None:
                calibration = read_calibration(options.calibration)
            else:
                calibration = calibration_in(inline, f"{case.source}: spec.calibration.inline")
            source = options.calibration or f"{case.source}: spec.calibration.inline"
            calibration, said = judged(calibration, Job.of(case.spec, rooms, lengths), str(source))
            words += (*said, *unstated(calibration))
            if calibration.pegged:
                words.append(
                    f"{options.calibration or 'spec.calibration.inline'}: a factor or constant stands at its limit, so this benchmark is probably of another model, "
                    "GPU or engine than it says, or of GPUs that others used too: measure again before relying on the plan"
                )
    except PlanningError as error:
        fail(str(error)) if error.reason == "InvalidCalibration" else fail_planning(case.source, error)
    found = replace(case, rooms=rooms, lengths=lengths or case.lengths, calibration=calibration, words=(*words, *fit))
    if options.profile is None:
        return found
    from rljob_operator.cli.profile import with_profile

    return with_profile(found, options.profile)


def _format_words(spec: RLJobSpec) -> list[str]:
    """A word where the model's name says another number format than its weights are planned in."""
    from rljob_planner.models import format_in

    name, weights = spec.model.name or "", spec.model.weights.value
    said = format_in(name)
    if said is None or said.split("_")[0] == weights.split("_")[0]:
        return []
    return [
        f"the name {name} says {said}, but samplers are planned with {weights} weights: spec.model.weights says which"
    ]


def _name(job: RLJob) -> str:
    return str(job.metadata.get("name") or job.metadata.get("generateName") or "job")


def _changes(options: Options) -> dict[str, Any]:
    """What options put in the place of fields of the spec: they are then checked as if they stood in the file."""
    changes = {"gpus": options.budget, "accelerator": options.accelerator}
    return {field: value for field, value in changes.items() if value is not None}


def _rooms(options: Options, spec: RLJobSpec) -> tuple[Room, ...]:
    from rljob_planner.pools import rooms_for

    if not options.describes_nodes:
        if options.sampler_accelerator or options.trainer_accelerator:
            fail(
                "--sampler-accelerator and --trainer-accelerator: say on which nodes, with --sampler-nodes and --trainer-nodes"
            )
        return rooms_for(spec)
    for role, other, of in (
        ("sampler", "trainer", options.sampler_nodes),
        ("trainer", "sampler", options.trainer_nodes),
    ):
        if of is None and options.nodes is None:
            fail(f"--{other}-nodes: no node is left for {role}s: write --{role}-nodes, or --nodes for those of both")
    for role, gpu, own in (
        ("sampler", options.sampler_accelerator, options.sampler_nodes),
        ("trainer", options.trainer_accelerator, options.trainer_nodes),
    ):
        if gpu is not None and own is None:
            fail(f"--{role}-accelerator: say on which nodes, with --{role}-nodes")
    rooms = (
        *_described("--nodes", options.nodes, None, ""),
        *_described("--sampler-nodes", options.sampler_nodes, options.sampler_accelerator, "sampler"),
        *_described("--trainer-nodes", options.trainer_nodes, options.trainer_accelerator, "trainer"),
    )
    return _in_pools(rooms, spec)


def _in_pools(rooms: tuple[Room, ...], spec: RLJobSpec) -> tuple[Room, ...]:
    """The rooms, checked against the pools of the job's samplers; nodes of no pool are the trainers' where there are pools."""
    pools, named = [pool.name for pool in spec.sampler.pools], {room.pool for room in rooms if room.pool is not None}
    unknown = sorted(named - set(pools))
    if unknown:
        known = f"its pools are {', '.join(pools)}" if pools else "it has no sampler.pools"
        fail(f"--sampler-nodes: the job knows no pool {unknown[0]}: {known}")
    if not pools:
        return rooms
    if not named:
        example = ",".join(f"{name}=2x8" for name in pools[:2])
        fail(f"the job's samplers span pools: say which nodes each has, as in --sampler-nodes {example}")
    return tuple(
        replace(room, accelerator=room.accelerator or _of_pool(spec, room.pool), samplers=room.pool is not None)
        for room in rooms
    )


def _of_pool(spec: RLJobSpec, name: str | None) -> str | None:
    return next((pool.accelerator for pool in spec.sampler.pools if pool.name == name), None)


def _described(option: str, nodes: str | None, accelerator: str | None, role: str) -> tuple[Room, ...]:
    """The rooms that an option describes, of one role if ``role`` says which."""
    from dataclasses import replace

    from rljob_planner.errors import PlanningError
    from rljob_planner.hardware import gpu
    from rljob_planner.placement import rooms_of

    if nodes is None:
        return ()
    try:
        known = None if accelerator is None else gpu(accelerator).name
        rooms = rooms_of(nodes, known)
    except PlanningError as error:
        fail(f"--{role}-accelerator: {error}")
    except ValueError as error:
        fail(f"{option}: {error}")
    return tuple(
        replace(
            room,
            node=f"{role}-{room.node}" if role else room.node,
            samplers=role != "trainer",
            trainers=role != "sampler",
        )
        for room in rooms
    )


def _lengths(options: Options, spec: RLJobSpec) -> tuple[LengthDistribution | None, tuple[str, ...]]:
    """The lengths of a run's log, and what the reader should know of the fit; raises PlanningError."""
    if options.lengths is None:
        return None, ()
    from rljob_planner.traces import fitted, read_lengths

    try:
        trace = read_lengths(options.lengths)
        fit = fitted(trace, spec.workload.response_tokens.max)
    except ValueError as error:
        fail(f"--lengths: {error}")
    return fit.distribution, tuple(describe_fit(fit))


def describe_fit(fit: FittedLengths) -> list[str]:
    """A fit of response lengths in sentences: what was fitted, how well, and what to be careful of."""
    lengths = fit.distribution
    found = (
        f"response lengths from {fit.samples:,} samples of the log, as {fit.law}: mean {lengths.mean():,.0f} tokens, "
        f"cv {lengths.cv():.2f}, cap {lengths.cap_tokens:,}; law and log differ by at most {fit.ks:.3f} in the share of responses below any length"
    )
    return [found, *fit.notes, *(f"careful: {warning}" for warning in fit.warnings)]
