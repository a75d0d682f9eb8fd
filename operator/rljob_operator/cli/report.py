"""``rljob report``: a plan or a simulation as one HTML page with pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rljob_operator.cli.cases import (
    AcceleratorOption,
    BudgetOption,
    CalibrationOption,
    Case,
    ContextOption,
    JobOption,
    LengthsOption,
    LiveOption,
    NamespaceOption,
    NodesOption,
    Options,
    SamplerAcceleratorOption,
    SamplerNodesOption,
    TrainerAcceleratorOption,
    TrainerNodesOption,
    case_of,
    fail_planning,
    live_name,
)
from rljob_operator.cli.console import fail, with_simulator
from rljob_operator.cli.documents import Kind, recognized

if TYPE_CHECKING:
    from rljob_planner.report_html import Page

EXAMPLES = (
    "rljob report job.yaml -o report.html",
    "rljob report job.yaml --nodes 8x8 -o report.html",
    "rljob plan job.yaml -o json > plan.json; rljob report plan.json -o report.html",
    "rljob report scenario.yaml -o report.html",
    "rljob report math -n research -o report.html",
)


def report(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="An RLJob, a plan (rljob plan -o json), a scenario, - for stdin, or NAME for a job on the cluster.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="HTML", help="The page to write, - for stdout.")
    ] = Path("report.html"),
    nodes: NodesOption = None,
    sampler_nodes: SamplerNodesOption = None,
    trainer_nodes: TrainerNodesOption = None,
    accelerator: AcceleratorOption = None,
    sampler_accelerator: SamplerAcceleratorOption = None,
    trainer_accelerator: TrainerAcceleratorOption = None,
    budget: BudgetOption = None,
    lengths: LengthsOption = None,
    calibration: CalibrationOption = None,
    live: LiveOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    job: JobOption = None,
) -> None:
    """Write a plan or a simulation as one HTML page with pictures; it needs no network to be read."""
    _need_matplotlib()
    options = Options(
        nodes=nodes,
        sampler_nodes=sampler_nodes,
        trainer_nodes=trainer_nodes,
        accelerator=accelerator,
        sampler_accelerator=sampler_accelerator,
        trainer_accelerator=trainer_accelerator,
        budget=budget,
        lengths=lengths,
        calibration=calibration,
        live=live,
        namespace=namespace,
        context=context,
        job=job,
    )
    found = None if file is None or live is not None or live_name(file) else recognized(file)
    if found is None or found.kind is Kind.JOB:
        page = _job_page(case_of(file, options, found))
    elif options != Options():
        fail(
            f"{found.source}: it holds a {found.kind.value}, and options describe how to plan an RLJob: leave them out"
        )
    elif found.kind is Kind.PLAN:
        page = _plan_page(found.document, found.source)
    else:
        page = _scenario_page(found.text, found.source)
    _write(page, output)


def _job_page(case: Case) -> Page:
    plan = case.plan()

    def simulate() -> Page:
        from rljob_planner._plan_json import PlanJson
        from rljob_planner.report_data import details_of
        from rljob_planner.report_pages import plan_page

        details = details_of(case.spec, case.rooms, plan, case.calibration, case.lengths)
        return plan_page(PlanJson.model_validate(plan.to_json()), case.title, details, case.words)

    from rljob_planner.errors import PlanningError

    try:
        page: Page = with_simulator(f"{case.name}: simulating what the report shows", simulate)
    except PlanningError as error:
        fail_planning(case.source, error)
    return page


def _plan_page(document: Any, source: str) -> Page:
    from rljob_operator.cli.documents import plan_of
    from rljob_planner.report_pages import plan_page

    return plan_page(plan_of(document, source), f"A plan from {Path(source).name}")


def _scenario_page(text: str, source: str) -> Page:
    from rljob_planner.report_pages import scenario_page
    from rljob_planner.scenario import ScenarioError, parse_scenario
    from rljob_planner.scenario import compile as compiled

    try:
        scenario = parse_scenario(text, source)
    except ScenarioError as error:
        fail(str(error))

    def simulate() -> Page:
        from rljob_planner.report_data import Run
        from rljob_planner.simulate import SimulationStalled
        from rljob_planner.simulate import simulate as simulated

        try:
            inp = compiled(scenario)
            run = Run(inp, simulated(inp, record=True), 1.0)
        except (SimulationStalled, ValueError) as error:
            fail(f"{source}: {error}")
        return scenario_page(run, scenario, f"{Path(source).name}: {scenario.mode} simulation")

    page: Page = with_simulator("Simulating", simulate)
    return page


def _need_matplotlib() -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        fail("a report needs matplotlib, which is not installed: pip install 'rljob-operator[report]'")


def _write(page: Page, output: Path) -> None:
    from rljob_planner.report_html import render

    text = render(page)
    if str(output) == "-":
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"--output: {output}: {(error.strerror or str(error)).lower()}")
    typer.echo(f"rljob: wrote {output}", err=True)
