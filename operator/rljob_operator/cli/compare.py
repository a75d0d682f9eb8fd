"""``rljob compare``: two jobs, plans or scenarios side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rljob_operator.cli.cases import (
    AcceleratorOption,
    BudgetOption,
    CalibrationOption,
    ContextOption,
    LengthsOption,
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
from rljob_operator.cli.console import Output, OutputOption, fail, print_data, print_report, say, with_simulator
from rljob_operator.cli.documents import Found, Kind, plan_of, recognized

if TYPE_CHECKING:
    from rljob_planner._plan_json import PlanJson
    from rljob_planner.compare import Comparison, PlannedJob

EXAMPLES = (
    "rljob compare before.yaml after.yaml",
    "rljob compare h100.yaml h200.yaml --nodes 8x8 -o json",
    "rljob compare plan-before.json plan-after.json",
    "rljob compare scenario-a.yaml scenario-b.yaml",
    "rljob compare rljob/math new.yaml",
)

_FILE = "An RLJob, a plan (rljob plan -o json), a scenario, or NAME for a job on the cluster."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=_FILE)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one of the same kind.")],
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
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Set two jobs, plans or scenarios side by side: what differs in them, what comes of it, and whether that is noise."""
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
        namespace=namespace,
        context=context,
    )
    if a == b == "-":
        fail("stdin can be only one of the two")
    sides = [None if live_name(side) else recognized(side) for side in (a, b)]
    kinds = [Kind.JOB if side is None else side.kind for side in sides]
    if (kinds[0] is Kind.SCENARIO) != (kinds[1] is Kind.SCENARIO):
        fail(f"{a} holds one {kinds[0].value} and {b} one {kinds[1].value}: compare two of a kind")
    if Kind.JOB not in kinds and options != Options():
        fail("options describe how to plan an RLJob, and neither of the two is one: leave them out")
    if kinds[0] is Kind.SCENARIO:
        found = _scenarios(*(side for side in sides if side is not None))
    elif kinds == [Kind.JOB, Kind.JOB]:
        found = _jobs((a, sides[0]), (b, sides[1]), options)
    else:
        found = _plans((a, sides[0]), (b, sides[1]), options)
    if output is not Output.TABLE:
        print_data(found.json().model_dump(by_alias=True, mode="json"), output)
        return
    from rljob_planner.compare_report import comparison_report

    print_report(comparison_report(found))


def _jobs(a: tuple[str, Found | None], b: tuple[str, Found | None], options: Options) -> Comparison:
    from rljob_planner.errors import PlanningError

    sides = _planned(*a, options), _planned(*b, options)

    def run() -> Comparison:
        from rljob_planner.compare import compared_jobs

        return compared_jobs(*sides)

    try:
        found: Comparison = with_simulator("Running both in pairs", run)
    except PlanningError as error:
        fail_planning(f"{a[0]} and {b[0]}", error)
    return found


def _planned(target: str, file: Found | None, options: Options) -> PlannedJob:
    from rljob_planner.compare import PlannedJob

    case = case_of(target, options, file)
    say(f"{target}: {word}" for word in case.words)
    name = target if file is None or file.source == "stdin" else file.source
    return PlannedJob(name, case.spec, case.rooms, case.plan(), case.lengths, case.calibration, case.steps)


def _plans(a: tuple[str, Found | None], b: tuple[str, Found | None], options: Options) -> Comparison:
    from rljob_planner.compare import compared_plans

    def plan(target: str, file: Found | None) -> PlanJson:
        from rljob_planner._plan_json import PlanJson

        if file is not None and file.kind is Kind.PLAN:
            return plan_of(file.document, file.source)
        return PlanJson.model_validate(case_of(target, options, file).plan().to_json())

    return compared_plans(a[0], plan(*a), b[0], plan(*b))


def _scenarios(a: Found, b: Found) -> Comparison:
    from rljob_planner.scenario import Scenario, ScenarioError, parse_scenario
    from rljob_planner.scenario import compile as compiled

    def read(side: Found) -> Scenario:
        try:
            return parse_scenario(side.text, side.source)
        except ScenarioError as error:
            fail(str(error))

    scenarios = read(a), read(b)

    def run() -> Comparison:
        from rljob_planner.compare import compared_scenarios
        from rljob_planner.simulate import SimulationStalled

        asked = tuple(s.model_dump(by_alias=True, mode="json", exclude_none=True) for s in scenarios)
        try:
            inputs = [compiled(scenario) for scenario in scenarios]
            return compared_scenarios(a.source, inputs[0], b.source, inputs[1], (asked[0], asked[1]))
        except (SimulationStalled, ValueError) as error:
            fail(f"{a.source} and {b.source}: {error}")

    found: Comparison = with_simulator("Running both in pairs", run)
    return found
