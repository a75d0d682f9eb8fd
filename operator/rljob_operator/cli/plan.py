"""``rljob plan``: the best split of a job, without a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rljob_operator.cli.console import Output, OutputOption, fail, print_data, print_report, read_job, with_simulator

if TYPE_CHECKING:
    from rljob_planner.placement import Room

EXAMPLES = (
    "Examples:\n\n"
    "`rljob plan job.yaml`\n\n"
    "`rljob plan job.yaml --nodes 4x8,2x4 --accelerator H200-SXM`\n\n"
    "`kubectl get rljob math -o yaml | rljob plan - -o json`"
)


def plan(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A manifest with an RLJob (the first one counts), or - for stdin.")
    ],
    output: OutputOption = Output.TABLE,
    nodes: Annotated[
        str | None,
        typer.Option(
            help="Nodes × GPUs of a node, such as 8x8 or 8x8,2x4; by default the budget in nodes of 8.",
            show_default=False,
        ),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(help="GPU type, such as H100-SXM, instead of spec.accelerator.", show_default=False),
    ] = None,
) -> None:
    """Find the best split of a job's GPUs between samplers and trainers, by simulation, without a cluster."""
    from rljob_planner.errors import PlanningError

    job, source = read_job(file)
    spec = job.spec
    if accelerator is not None:
        spec = spec.model_copy(update={"accelerator": accelerator})
    rooms = _rooms(nodes, spec.gpus)

    def search() -> Any:
        from rljob_planner.search import plan as find

        return find(spec, rooms)

    try:
        found = with_simulator("Comparing splits", search)
    except PlanningError as error:
        hint = "; or name it with --accelerator" if error.reason == "UnknownAccelerator" and accelerator is None else ""
        fail(f"{source}: {error}{hint}")
    if output is not Output.TABLE:
        print_data(found.to_json(), output)
        return
    from rljob_planner.accelerators import accelerators_of
    from rljob_planner.report import describe_rooms, plan_report

    gpus = accelerators_of(spec, rooms)
    types = " and ".join(dict.fromkeys((gpus.sampler.name, gpus.trainer.name)))
    name = job.metadata.get("name") or job.metadata.get("generateName") or "job"
    where = describe_rooms([room.free_gpus for room in rooms])
    title = f"{name}: {spec.gpus} GPUs ({types}) on {where}, {spec.workload.steps} steps"
    print_report(plan_report(found, spec, title))


def _rooms(nodes: str | None, gpus: int) -> tuple[Room, ...]:
    from rljob_planner.placement import default_rooms, rooms_of

    if nodes is None:
        return default_rooms(gpus)
    try:
        return rooms_of(nodes)
    except ValueError as error:
        fail(f"--nodes: {error}")
