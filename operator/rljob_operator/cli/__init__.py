"""The command ``rljob``: plans and simulates without a cluster, and starts the operator.

One module a command. A command's module is light: it imports what it needs when it runs, so that help and version answer at once,
planning needs no Kubernetes client, and whoever lacks an extra learns which. A new command is a function in a module of its own
and a line here.
"""

from __future__ import annotations

import typer

from rljob_operator.cli import operator as operator_commands
from rljob_operator.cli import plan as plan_command
from rljob_operator.cli import simulate as simulate_command
from rljob_planner import __version__

app = typer.Typer(
    name="rljob",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Sizes LLM reinforcement-learning jobs: how many GPUs sample, how many train, and why.",
)
operator_app = typer.Typer(no_args_is_help=True, help="The Kubernetes operator.")

app.command("plan", epilog=plan_command.EXAMPLES)(plan_command.plan)
app.command("simulate", epilog=simulate_command.EXAMPLES)(simulate_command.simulate)
app.add_typer(operator_app, name="operator")
operator_app.command("run", epilog=operator_commands.ENVIRONMENT)(operator_commands.operator_run)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"rljob {__version__}")


def main() -> None:
    """The command ``rljob``."""
    app()
