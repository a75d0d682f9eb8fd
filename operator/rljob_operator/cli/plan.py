"""``rljob plan``: the best split of a job, on nodes that are described or on those of the cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from rljob_operator.cli.cases import (
    AcceleratorOption,
    BudgetOption,
    CalibrationOption,
    ContextOption,
    JobOption,
    LengthsOption,
    LiveOption,
    NamespaceOption,
    NodesOption,
    Options,
    ProfileOption,
    SamplerAcceleratorOption,
    SamplerNodesOption,
    TrainerAcceleratorOption,
    TrainerNodesOption,
    case_of,
    fail_planning,
)
from rljob_operator.cli.console import Output, OutputOption, print_data, print_report, say

EXAMPLES = (
    "rljob plan job.yaml",
    "rljob plan job.yaml --nodes 4x8,2x4 --accelerator H200-SXM",
    "rljob plan job.yaml --sampler-nodes 4x8 --sampler-accelerator H20 --trainer-nodes 2x8 --trainer-accelerator H100",
    "rljob plan job.yaml --lengths run.jsonl --calibration calibration.yaml --budget 32",
    "kubectl get rljobprofile NAME -o yaml > profile.yaml; rljob plan job.yaml --profile profile.yaml",
    "rljob plan math -n research",
    "kubectl get rljob math -o yaml | rljob plan - -o json",
)


def plan(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="A manifest with an RLJob (the first one counts), - for stdin, or NAME for one on the cluster.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
    nodes: NodesOption = None,
    sampler_nodes: SamplerNodesOption = None,
    trainer_nodes: TrainerNodesOption = None,
    accelerator: AcceleratorOption = None,
    sampler_accelerator: SamplerAcceleratorOption = None,
    trainer_accelerator: TrainerAcceleratorOption = None,
    budget: BudgetOption = None,
    lengths: LengthsOption = None,
    calibration: CalibrationOption = None,
    profile: ProfileOption = None,
    live: LiveOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    job: JobOption = None,
) -> None:
    """Find the best split of a job's GPUs between samplers and trainers, by simulation."""
    from rljob_planner.errors import PlanningError

    case = case_of(
        file,
        Options(
            nodes=nodes,
            sampler_nodes=sampler_nodes,
            trainer_nodes=trainer_nodes,
            accelerator=accelerator,
            sampler_accelerator=sampler_accelerator,
            trainer_accelerator=trainer_accelerator,
            budget=budget,
            lengths=lengths,
            calibration=calibration,
            profile=profile,
            live=live,
            namespace=namespace,
            context=context,
            job=job,
        ),
    )
    found = case.plan()
    if output is not Output.TABLE:
        say(case.words)
        print_data(found.to_json(), output)
        return
    from rljob_planner.report import plan_report

    try:
        title = case.title
    except PlanningError as error:
        fail_planning(case.source, error)
    print_report(plan_report(found, case.spec, title, case.words))
