"""The command ``rljob``: plans and simulates without a cluster, and starts the operator.

Each command imports what it needs when it runs: help and version answer at once, planning needs no Kubernetes client, and
whoever lacks an extra learns which. What is wrong with a file is said in the words of the file, one problem a line, with exit code 2.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console, RenderableType

from rljob_planner import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from rljob_planner.api.spec import RLJob
    from rljob_planner.placement import Room

WRONG_INPUT = 2
"""Exit code for anything that the user can correct."""

EXTRA = {"kopf", "kubernetes", "aiohttp", "prometheus_client"}
"""Top-level modules of the extra ``operator``."""

app = typer.Typer(
    name="rljob",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Sizes LLM reinforcement-learning jobs: how many GPUs sample, how many train, and why.",
)
operator_app = typer.Typer(no_args_is_help=True, help="The Kubernetes operator.")
app.add_typer(operator_app, name="operator")


class Output(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table for people; json or yaml for programs.")]


@app.command(
    epilog="Examples:\n\n"
    "`rljob plan job.yaml`\n\n"
    "`rljob plan job.yaml --nodes 4x8,2x4 --accelerator H200-SXM`\n\n"
    "`kubectl get rljob math -o yaml | rljob plan - -o json`",
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

    job, source = _read_job(file)
    spec = job.spec
    if accelerator is not None:
        spec = spec.model_copy(update={"accelerator": accelerator})
    rooms = _rooms(nodes, spec.gpus)

    def search() -> Any:
        from rljob_planner.search import plan as find

        return find(spec, rooms)

    try:
        found = _with_simulator("Comparing splits", search)
    except PlanningError as error:
        hint = "; or name it with --accelerator" if error.reason == "UnknownAccelerator" and accelerator is None else ""
        _fail(f"{source}: {error}{hint}")
    if output is not Output.TABLE:
        _print_data(found.to_json(), output)
        return
    from rljob_planner.accelerators import accelerators_of
    from rljob_planner.report import describe_rooms, plan_report

    gpus = accelerators_of(spec, rooms)
    types = " and ".join(dict.fromkeys((gpus.sampler.name, gpus.trainer.name)))
    name = job.metadata.get("name") or job.metadata.get("generateName") or "job"
    where = describe_rooms([room.free_gpus for room in rooms])
    title = f"{name}: {spec.gpus} GPUs ({types}) on {where}, {spec.workload.steps} steps"
    _print_report(plan_report(found, spec, title))


@app.command(
    epilog="Examples:\n\n`rljob simulate scenario.yaml`\n\n`rljob simulate scenario.yaml -o json`",
)
def simulate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or - for stdin.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate a job that is described by measured curves instead of a model and a GPU."""
    from rljob_planner.scenario import ScenarioError, parse_scenario

    text, source = _read(file)
    try:
        scenario = parse_scenario(text, source)
    except ScenarioError as error:
        _fail(f"{source}: this is an RLJob and no scenario: rljob plan {source}" if _has_kind(text) else str(error))

    def run() -> Any:
        from rljob_planner.simulate import SimulationStalled, simulate_scenario

        try:
            return simulate_scenario(scenario)
        except (SimulationStalled, ValueError) as error:
            _fail(f"{source}: {error}")

    result = _with_simulator("Simulating", run)
    if output is not Output.TABLE:
        _print_data(result.to_json(), output)
        return
    from rljob_planner.report import simulation_report

    _print_report(simulation_report(result, scenario, f"{source}: {scenario.mode}"))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"rljob {__version__}")


@operator_app.command(
    "run",
    epilog="`RLJOB_OPERATOR_PROMETHEUS_URL`: Prometheus for jobs that name none; without one nothing is rebalanced.\n\n"
    "`RLJOB_OPERATOR_ALLOWED_PROMETHEUS_URLS`: others that a job may name, comma-separated.\n\n"
    "`RLJOB_OPERATOR_NAMESPACES`: namespaces to watch, comma-separated; all by default.\n\n"
    "`RLJOB_OPERATOR_METRICS_PORT`: port of the operator's own metrics; none by default.\n\n"
    "`RLJOB_OPERATOR_LIVENESS_ENDPOINT`: URL for liveness probes, such as `http://0.0.0.0:8080/healthz`.\n\n"
    "`RLJOB_OPERATOR_SCRAPE_INTERVAL` (15s), `_METRICS_WINDOW` (120s), `_SETTLE_STEPS` (3): how metrics are read.\n\n"
    "`RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE` (5m), `_GONE_DEADLINE` (20m), `_READY_DEADLINE` (30m): of a move's phases.",
)
def operator_run() -> None:
    """Run the operator on the cluster of the current kubeconfig, or inside one; its environment configures it."""
    try:
        from rljob_operator.config import Config
        from rljob_operator.handlers import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in EXTRA:
            raise
        _fail(f"the operator needs {error.name}, which is not installed: pip install 'rljob-operator[operator]'")
    try:
        config = Config.from_env()
    except ValueError as error:
        _fail(str(error))
    run(config)


def main() -> None:
    """The command ``rljob``."""
    app()


def _fail(message: str) -> NoReturn:
    for line in message.splitlines():
        typer.echo(f"rljob: {line}", err=True)
    raise typer.Exit(WRONG_INPUT)


def _read(file: str) -> tuple[str, str]:
    """The text of a file or of stdin, and its name in messages."""
    from rljob_planner.documents import InvalidDocumentError, read_text

    try:
        if file == "-":
            return sys.stdin.buffer.read().decode("utf-8"), "stdin"
        return read_text(Path(file)), file
    except UnicodeDecodeError:
        _fail("stdin: this is no text in UTF-8, so it is no YAML")
    except InvalidDocumentError as error:
        _fail(str(error))


def _read_job(file: str) -> tuple[RLJob, str]:
    """The first RLJob of a file (lists as kubectl prints them are looked into), and its name in messages."""
    from rljob_planner.api.reading import InvalidJobError, read_job
    from rljob_planner.documents import InvalidDocumentError, parse_documents

    text, source = _read(file)
    try:
        documents = parse_documents(text, source)
    except InvalidDocumentError as error:
        _fail(str(error))
    objects: list[Any] = []
    for document in documents:
        items = document.get("items") if isinstance(document, dict) else None
        objects += items if isinstance(items, list) else [document]
    if not objects:
        _fail(f"{source}: there is nothing in it: write an RLJob, with apiVersion, kind, metadata and spec")
    first = next((o for o in objects if isinstance(o, dict) and o.get("kind") == "RLJob"), objects[0])
    if isinstance(first, dict) and "kind" not in first and "samplers" in first:
        _fail(f"{source}: this is a scenario and no RLJob: rljob simulate {source}")
    try:
        return read_job(first), source
    except InvalidJobError as error:
        _fail("\n".join(f"{source}: {problem}" for problem in error.problems))


def _has_kind(text: str) -> bool:
    """Whether a text is a Kubernetes object: whoever mixes up the two commands should be told, not corrected key by key."""
    return any(line.rstrip() == "kind: RLJob" for line in text.splitlines())


def _rooms(nodes: str | None, gpus: int) -> tuple[Room, ...]:
    from rljob_planner.placement import default_rooms, rooms_of

    if nodes is None:
        return default_rooms(gpus)
    try:
        return rooms_of(nodes)
    except ValueError as error:
        _fail(f"--nodes: {error}")


def _with_simulator(doing: str, work: Callable[[], Any]) -> Any:
    """Does something that simulates, with a word to whoever waits; on stderr, since stdout is for the result."""
    from rljob_planner.simulate import is_compiled, warm_up

    console = Console(stderr=True)
    if not is_compiled():
        console.print("Compiling the simulator; this takes about ten seconds, and only the first time.", style="dim")
        warm_up()
    if not console.is_terminal:
        return work()
    with console.status(f"{doing}…"):
        return work()


def _print_report(report: RenderableType) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        # A pipe has no width; a fixed one keeps what people paste into issues readable.
        console = Console(highlight=False, width=120)
    console.print(report)


def _print_data(data: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
        return
    import yaml

    typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120), nl=False)


if __name__ == "__main__":
    main()
