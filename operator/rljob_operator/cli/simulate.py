"""``rljob simulate``: a job described by measured curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from rljob_planner.scenario import Scenario
    from rljob_planner.simulate import SimulationResult

EXAMPLES = (
    "rljob simulate scenario.yaml",
    "rljob simulate scenario.yaml -o json",
    "rljob simulate scenario.yaml --trace out.json",
)


def simulate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or - for stdin.")],
    output: OutputOption = Output.TABLE,
    trace: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write the run as a trace that ui.perfetto.dev opens.")
    ] = None,
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
            return simulate_scenario(scenario, record=trace is not None)
        except (SimulationStalled, ValueError) as error:
            fail(f"{source}: {error}")

    result = with_simulator("Simulating", run)
    if trace is not None:
        _write_trace(trace, result, scenario)
    if output is not Output.TABLE:
        print_data(result.to_json(), output)
        return
    from rljob_planner.report import simulation_report

    print_report(simulation_report(result, scenario, f"{source}: {scenario.mode}"))


def _write_trace(path: Path, result: SimulationResult, scenario: Scenario) -> None:
    from rljob_planner.scenario import compile as compile_scenario
    from rljob_planner.trace import chrome_trace

    if result.timeline is None:
        return
    trace = chrome_trace(result.timeline, compile_scenario(scenario))
    try:
        path.write_text(json.dumps(trace, separators=(",", ":")), encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    told = trace["otherData"]
    part = "" if told["wholeRun"] else f", the first {told['endSeconds']:.0f} s of the run"
    typer.echo(f"Wrote {path}{part}; open it at https://ui.perfetto.dev", err=True)
