"""docs/cli.md: every command and flag of ``rljob``, read from the very functions that the command line is made of.

They are read as typer reads them, from their signatures: what typer makes of them inside differs from version to version.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Union

import typer
from typer.models import ArgumentInfo, OptionInfo

from dev.docs.page import page, require, table

_MARKUP = re.compile(r"\[/?[a-z ]+\]")
_EXAMPLE = re.compile(r"\[cyan\](.+?)\[/cyan\]")


@dataclass(frozen=True)
class Command:
    """One command."""

    name: str
    function: Callable[..., Any]
    epilog: str

    @property
    def help(self) -> str:
        """What it does."""
        return _plain(inspect.getdoc(self.function))

    def parameters(self) -> list[tuple[str, Any, Any, Any]]:
        """Name, type, typer's description and default of each parameter."""
        hints = typing.get_type_hints(self.function, include_extras=True)
        found = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            hint = hints[name]
            if typing.get_origin(hint) is Annotated:
                kind, info, *_ = typing.get_args(hint)
                found.append((name, kind, info, parameter.default))
        return found


def text() -> str:
    """The page."""
    from rljob_operator.cli import EXIT_CODES, app

    commands = list(_commands(app, "rljob"))
    require("3 the input is right" in EXIT_CODES, "exit code 3 is that of an input without a feasible split")
    contents = "\n".join(f"- [`{c.name}`](#{c.name.replace(' ', '-')}): {_first_sentence(c)}" for c in commands)
    return page(
        "# The command line",
        """`rljob` plans and simulates without a cluster, reads and judges what was measured, and runs the operator. Linked or copied as
`kubectl-rljob` into the `PATH` it is the plugin `kubectl rljob`. `--help` of each command says what is said here. Results go to stdout, words about them to
stderr; with `-o json` or `-o yaml` stdout holds data alone, and [schemas](schemas) says of what form.""",
        contents,
        "## Exit codes",
        table(("code", "meaning"), _exit_codes(EXIT_CODES)).replace("--:", ":--"),
        *(_section(command) for command in commands),
    )


def _commands(app: typer.Typer, name: str) -> Iterator[Command]:
    for info in app.registered_commands:
        if info.callback is not None and not info.hidden:
            own = info.name or info.callback.__name__.replace("_", "-")
            yield Command(f"{name} {own}", info.callback, info.epilog or "")
    for group in app.registered_groups:
        if group.typer_instance is not None and not group.hidden:
            yield from _commands(group.typer_instance, f"{name} {group.name}")


def _plain(text: str | None) -> str:
    """Help without the marks that colour it in a terminal."""
    return " ".join(_MARKUP.sub("", text or "").replace("\\[", "[").split())


def _first_sentence(command: Command) -> str:
    return re.split(r"(?<=[a-z)])[.:;] ", command.help)[0].rstrip(".") + "."


def _exit_codes(words: str) -> list[tuple[str, str]]:
    return [(code, meaning.strip()) for code, meaning in re.findall(r"(\d) ([^;]+?)(?:;|\.$)", words)]


def _section(command: Command) -> str:
    parameters = command.parameters()
    arguments = [p for p in parameters if isinstance(p[2], ArgumentInfo)]
    options = [p for p in parameters if isinstance(p[2], OptionInfo) and not p[2].hidden]
    usage = " ".join([command.name, *map(_in_usage, arguments), *(["[options]"] if options else [])])
    shown = [example.replace("\\[", "[") for example in _EXAMPLE.findall(command.epilog)]
    rows = [(f"`{_metavar(name, info)}`".replace("|", "\\|"), _cell(info.help), "") for name, _, info, _ in arguments]
    rows += [
        (_flags(name, kind, info), _cell(info.help), _default(info, default)) for name, kind, info, default in options
    ]
    parts = [f"## {command.name}", f"```\n{usage}\n```", command.help]
    if rows:
        parts.append(table(("", "", "default"), rows).replace("--:", ":--"))
    if shown:
        parts.append("```\n" + "\n".join(shown) + "\n```")
    elif command.epilog:
        parts.append(_plain(command.epilog))
    return "\n\n".join(parts)


def _metavar(name: str, info: Any) -> str:
    return str(info.metavar or name.upper().replace("_", "-"))


def _in_usage(parameter: tuple[str, Any, Any, Any]) -> str:
    name, kind, info, default = parameter
    shown = _metavar(name, info) + ("..." if typing.get_origin(kind) is list else "")
    return shown if default is inspect.Parameter.empty else f"[{shown}]"


def _flags(name: str, kind: Any, info: OptionInfo) -> str:
    # With a default in the signature, typer keeps the first name of the flag where the default would be.
    declared = [d for d in (info.default, *(info.param_decls or ())) if isinstance(d, str) and d.startswith("-")]
    declared = declared or [f"--{name.replace('_', '-')}"]
    names = ", ".join(f"`{flag}`" for flag in sorted(declared, key=len))
    kinds = [
        k
        for k in (typing.get_args(kind) if typing.get_origin(kind) in (Union, UnionType) else (kind,))
        if k is not type(None)
    ]
    plain = kinds[0]
    if plain is bool:
        return names
    if isinstance(plain, type) and issubclass(plain, Enum) and info.metavar is None:
        return names + " " + "\\|".join(str(member.value) for member in plain)
    return f"{names} {_metavar(name, info)}"


def _cell(help: str | None) -> str:  # noqa: A002
    return _plain(help).replace("|", "\\|")


def _default(info: OptionInfo, default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if default is None or default is False or not info.show_default:
        return ""
    return f"`{getattr(default, 'value', default)}`"
