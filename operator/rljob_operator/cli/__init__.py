"""The command ``rljob``: plans and simulates without a cluster, and starts the operator.

One module a command. A command's module is light: it imports what it needs when it runs, so that help and version answer at once,
planning needs no Kubernetes client, and whoever lacks an extra learns which. A new command is a function in a module of its own
and a line here.
"""

from __future__ import annotations

import gc
import os
import shlex
import sys
from pathlib import Path

import typer

from rljob_operator.cli import calibrate as calibrate_command
from rljob_operator.cli import compare as compare_command
from rljob_operator.cli import completion as completion_command
from rljob_operator.cli import diagnose as diagnose_command
from rljob_operator.cli import explain as explain_command
from rljob_operator.cli import latency as latency_command
from rljob_operator.cli import lengths as lengths_command
from rljob_operator.cli import move as move_command
from rljob_operator.cli import operator as operator_commands
from rljob_operator.cli import pause as pause_command
from rljob_operator.cli import plan as plan_command
from rljob_operator.cli import report as report_command
from rljob_operator.cli import simulate as simulate_command
from rljob_operator.cli import status as status_command
from rljob_operator.cli import validate as validate_command
from rljob_operator.cli.console import examples
from rljob_planner import __version__

EXIT_CODES = (
    "Exit codes: 0 done; 1 a defect of this program; 2 the input is wrong, stderr says where and what to write instead; "
    "3 the input is right, but no split of these GPUs can run it; 4 the cluster did otherwise: a move was refused or rolled back, or "
    "nobody answered in time."
)

PLANNING, MEASURING, RUNNING, OTHER = "Planning", "Measuring", "Running jobs", "Everything else"
"""How help sorts the commands."""

app = typer.Typer(
    name="rljob",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Sizes LLM reinforcement-learning jobs: how many GPUs sample, how many train, and why.",
    epilog=EXIT_CODES,
)
operator_app = typer.Typer(no_args_is_help=True, help="The Kubernetes operator.")

for panel, function, shown in (
    (PLANNING, plan_command.plan, plan_command.EXAMPLES),
    (PLANNING, report_command.report, report_command.EXAMPLES),
    (PLANNING, compare_command.compare, compare_command.EXAMPLES),
    (PLANNING, simulate_command.simulate, simulate_command.EXAMPLES),
    (MEASURING, lengths_command.lengths, lengths_command.EXAMPLES),
    (MEASURING, calibrate_command.calibrate, calibrate_command.EXAMPLES),
    (MEASURING, diagnose_command.diagnose, diagnose_command.EXAMPLES),
    (MEASURING, latency_command.latency, latency_command.EXAMPLES),
    (MEASURING, validate_command.validate, validate_command.EXAMPLES),
    (RUNNING, status_command.status, status_command.EXAMPLES),
    (RUNNING, pause_command.pause, pause_command.PAUSE_EXAMPLES),
    (RUNNING, pause_command.resume, pause_command.RESUME_EXAMPLES),
    (RUNNING, move_command.move, move_command.EXAMPLES),
    (RUNNING, explain_command.explain, explain_command.EXAMPLES),
    (OTHER, completion_command.completion, completion_command.EXAMPLES),
):
    app.command(function.__name__, rich_help_panel=panel, epilog=examples(*shown))(function)
app.add_typer(operator_app, name="operator", rich_help_panel=OTHER)
operator_app.command("run", epilog=operator_commands.ENVIRONMENT)(operator_commands.operator_run)


@app.command(rich_help_panel=OTHER)
def version() -> None:
    """Print the version."""
    typer.echo(f"rljob {__version__}")


def main() -> None:
    """The command ``rljob``, or ``kubectl rljob`` where it is installed as a plugin."""
    # A command lives for seconds and its garbage is arrays, which go by themselves; a collector would search all that it imports.
    gc.disable()
    if completion_command.VARIABLE in os.environ:
        completion_command.prepare()
    plugin = Path(sys.argv[0]).name.startswith("kubectl-rljob")
    # A launcher that runs this under another name says which one the user typed.
    app(
        prog_name=os.environ.get("RLJOB_PROGRAM") or ("kubectl rljob" if plugin else "rljob"),
        complete_var=completion_command.VARIABLE,
    )


def kubectl_complete() -> None:
    """The command ``kubectl_complete-rljob``, which kubectl runs for the words after ``kubectl rljob``: completions, then a directive."""
    words = sys.argv[1:]
    os.environ |= {
        completion_command.VARIABLE: "complete_bash",
        "COMP_WORDS": shlex.join(["rljob", *words]),
        "COMP_CWORD": str(len(words)),
    }
    try:
        main()
    except SystemExit:
        typer.echo(completion_command.FILES_TOO)
