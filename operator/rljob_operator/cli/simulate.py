"""``rljob simulate``: a job described by measured curves."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rljob_operator.cli.console import (
    Output,
    OutputOption,
    fail,
    has_kind,
    print_data,
    print_report,
    read,
    with_simulator,
)

EXAMPLES = ("rljob simulate scenario.yaml", "rljob simulate scenario.yaml -o json")


def simulate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or - for stdin.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate a job that is described by measured curves instead of a model and a GPU."""
    from rljob_planner.scenario import ScenarioError, parse_scenario

    text, source = read(file)
    try:
        scenario = parse_scenario(text, source)
    except ScenarioError as error:
        fail(f"{source}: this is an RLJob and no scenario: rljob plan {source}" if has_kind(text) else str(error))

    def run() -> Any:
        from rljob_planner.simulate import SimulationStalled, simulate_scenario

        try:
            return simulate_scenario(scenario)
        except (SimulationStalled, ValueError) as error:
            fail(f"{source}: {error}")

    result = with_simulator("Simulating", run)
    if output is not Output.TABLE:
        print_data(result.to_json(), output)
        return
    from rljob_planner.report import simulation_report

    print_report(simulation_report(result, scenario, f"{source}: {scenario.mode}"))
