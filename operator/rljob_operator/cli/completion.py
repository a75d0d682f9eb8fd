"""``rljob completion``: shell completion as a script, in the manner of kubectl and helm."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

EXAMPLES = (
    "source <(rljob completion bash)",
    "rljob completion zsh > ~/.zfunc/_rljob",
    "rljob completion fish > ~/.config/fish/completions/rljob.fish",
)

VARIABLE = "_RLJOB_COMPLETE"
"""The variable by which a shell asks the command for completions instead of running it."""

FILES_TOO = ":0"
"""Tells kubectl to complete names of files where there is nothing else to offer."""


class Shell(StrEnum):
    """Shells that can complete the command."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print a script that lets a shell complete this command's words."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # it re-exports by name alone

    typer.echo(get_completion_script(prog_name="rljob", complete_var=VARIABLE, shell=shell.value))


def prepare() -> None:
    """Lets the command answer a shell that asks for completions; needed only when one does."""
    from typer.completion import completion_init  # type: ignore[attr-defined]  # as above

    completion_init()
