"""What the commands share: reading what a user names, doing what takes time with a word about it, and printing what came out.

Results go to stdout, words about them to stderr, so that a pipe sees data only. What a user can correct ends with one line a
problem, in the words of the file, and exit code 2. Nothing here is imported before it is used: rich, yaml and pydantic cost more
time than ``rljob version`` may take.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rich.console import RenderableType

    from rljob_planner.api.spec import RLJob

WRONG_INPUT = 2
"""Exit code for anything that the user can correct."""

NOTHING_FEASIBLE = 3
"""Exit code where the input is right and no split of its GPUs can run it."""

NOT_DONE = 4
"""Exit code where the cluster did otherwise than asked: a move was refused or rolled back, or nobody answered in time."""

OPERATOR_EXTRA = {"kopf", "kubernetes", "aiohttp", "prometheus_client"}
"""Top-level modules of the extra ``operator``."""

PIPE_COLUMNS = 120
"""Width of reports that go into a pipe, which has none: what people paste into issues stays readable."""


class Output(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table for people; json or yaml for programs.")]


def fail(message: str, code: int = WRONG_INPUT) -> NoReturn:
    """Ends the command with a message, one line a problem, on stderr."""
    for line in message.splitlines():
        typer.echo(f"rljob: {line}", err=True)
    raise typer.Exit(code)


def say(words: Iterable[str]) -> None:
    """Says something besides the result, on stderr."""
    for word in words:
        typer.echo(f"rljob: {word}", err=True)


def examples(*commands: str) -> str:
    """The end of a command's help: what one may type."""
    return "\n\n".join(("Examples:", *(f"[cyan]{command.replace('[', chr(92) + '[')}[/cyan]" for command in commands)))


def read(file: str) -> tuple[str, str]:
    """The text of a file or of stdin (``-``), and its name in messages."""
    from rljob_planner.documents import InvalidDocumentError, read_text

    try:
        if file == "-":
            return sys.stdin.buffer.read().decode("utf-8"), "stdin"
        return read_text(Path(file)), file
    except UnicodeDecodeError:
        fail("stdin: this is no text in UTF-8, so it is no YAML")
    except InvalidDocumentError as error:
        fail(str(error))


def read_job(
    file: str, changes: Mapping[str, Any] | None = None, content: tuple[str, str] | None = None, name: str | None = None
) -> tuple[RLJob, str]:
    """An RLJob of a file (lists as kubectl prints them are looked into), and the file's name in messages.

    The one called ``name``, or the first. ``changes`` replace fields of its spec before it is checked; ``content``: text and
    name of the file, where it has been read already.
    """
    from rljob_planner.api.reading import InvalidJobError
    from rljob_planner.api.reading import read_job as validated
    from rljob_planner.documents import InvalidDocumentError, parse_documents

    text, source = content or read(file)
    try:
        documents = parse_documents(text, source)
    except InvalidDocumentError as error:
        fail(str(error))
    chosen = _chosen(documents, name, source)
    if changes and isinstance(chosen, dict) and isinstance(chosen.get("spec"), dict):
        chosen = chosen | {"spec": chosen["spec"] | changes}
    chosen, lacking = _with_templates(chosen)
    try:
        job = validated(chosen)
    except InvalidJobError as error:
        fail("\n".join(f"{source}: {problem}" for problem in error.problems))
    if lacking:
        say([f"{source} has no {' and no '.join(lacking)}: a plan needs none, kubectl apply will ask for it"])
    return job, source


def _with_templates(job: Any) -> tuple[Any, list[str]]:
    """A job that may be planned before its pods are written: templates that are left out are filled in, and named.

    What stands there is checked as ever; a template with a mistake in it is no template left out.
    """
    spec = job.get("spec") if isinstance(job, dict) else None
    if not isinstance(spec, dict):
        return job, []
    lacking, roles = [], {}
    for role in ("sampler", "trainer"):
        given = spec.get(role)
        adopted = isinstance(given, dict) and given.get("targetRef") is not None
        if given is None or (isinstance(given, dict) and given.get("template") is None and not adopted):
            roles[role] = (given or {}) | {"template": {"spec": {"containers": [{"name": role, "image": role}]}}}
            lacking.append(f"spec.{role}.template")
    return (job | {"spec": spec | roles} if roles else job), lacking


def _chosen(documents: Iterable[Any], name: str | None, source: str) -> Any:
    """The object of a file that is meant; where none is an RLJob the first one, whose errors say the most."""
    objects: list[Any] = []
    for document in documents:
        items = document.get("items") if isinstance(document, dict) else None
        objects += items if isinstance(items, list) else [document]
    if not objects:
        fail(f"{source}: there is nothing in it: write an RLJob, with apiVersion, kind, metadata and spec")
    jobs = {
        _name_of(o) or f"job {i + 1}": o
        for i, o in enumerate(objects)
        if isinstance(o, dict) and o.get("kind") == "RLJob"
    }
    if name is not None:
        if name not in jobs:
            fail(f"--job: {source} has no RLJob called {name}" + (f": there are {', '.join(jobs)}" if jobs else ""))
        return jobs[name]
    if len(jobs) > 1:
        first, *others = jobs
        say([f"{source} has {len(jobs)} RLJobs, of which {first} is taken: --job takes another, {' or '.join(others)}"])
    first_job = next(iter(jobs.values()), objects[0])
    if isinstance(first_job, dict) and "kind" not in first_job and "samplers" in first_job:
        fail(f"{source}: this is a scenario and no RLJob: rljob simulate {source}")
    return first_job


def _name_of(job: dict[str, Any]) -> str | None:
    metadata = job.get("metadata")
    return str(metadata.get("name") or "") or None if isinstance(metadata, dict) else None


def has_kind(text: str) -> bool:
    """Whether a text is an RLJob: whoever mixes up two commands should be told, not corrected key by key."""
    return any(line.rstrip() == "kind: RLJob" for line in text.splitlines())


def with_simulator(doing: str, work: Callable[[], Any]) -> Any:
    """Does something that simulates, with a word to whoever waits; on stderr, since stdout is for the result."""
    from rljob_planner.simulate import is_compiled, warm_up

    if not is_compiled():
        typer.echo("Compiling the simulator; this takes ten to twenty seconds, and only the first time.", err=True)
        warm_up()
    if not sys.stderr.isatty():
        return work()
    from rich.console import Console

    with Console(stderr=True).status(f"{doing}…"):
        return work()


def print_report(report: RenderableType) -> None:
    """Prints something that rich can draw."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_COLUMNS)
    console.print(report)


def print_data(data: Any, output: Output) -> None:
    """Prints what a program reads, as JSON or YAML."""
    if output is Output.JSON:
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))
        return
    import yaml

    typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120), nl=False)
