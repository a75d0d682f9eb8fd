"""How a container starts the engine's server, as far as its template shows. Pure.

Arguments come as words, as text for a shell, with variables in them, after a wrapper, or from a file; whatever stays hidden is said to be unknown here, and never guessed:
a probe on a port that nobody listens on takes a working server down, and an argument that a server lacks keeps it from starting.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rljob_operator.engines import Engine

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_OPERATORS = ";&|\n"
"""What ends a command in a shell's text."""


METRICS = "metrics"
"""Name of a port that is no server's."""


class Form(StrEnum):
    """How a container starts a server."""

    ARGUMENTS = "arguments"
    """By a list of words that ends in the server's arguments."""
    SHELL = "shell"
    """By a text that a shell reads."""
    HIDDEN = "hidden"
    """Not at all, or by something that the template does not show."""


@dataclass(frozen=True)
class Server:
    """How a container starts the engine's server, as far as its template shows."""

    form: Form
    words: tuple[str, ...] = ()
    """The server's command and arguments, without what stands before them; variables whose value the container says are replaced."""
    text: str = ""
    """The text that a shell reads; empty in the other forms."""

    @property
    def visible(self) -> bool:
        """Whether the template shows that the container starts the server."""
        return self.form is not Form.HIDDEN

    @property
    def configured(self) -> bool:
        """Whether arguments come from a file too, which the template does not show."""
        return self.flag("--config") is not None

    def flag(self, *names: str) -> str | None:
        """What is said for an argument, as ``--name value`` or ``--name=value``; None if it is not there, empty if it has no value.

        Of several the last one, as servers read them.
        """
        wished = {_plain(name) for name in names}
        for i in reversed(range(len(self.words))):
            name, equals, value = self.words[i].partition("=")
            if _plain(name) in wished:
                following = self.words[i + 1] if i + 1 < len(self.words) else ""
                return value if equals else "" if following.startswith("-") else following
        return None


def server_of(container: Mapping[str, Any], engine: Engine) -> Server:
    """How the container starts the engine's server."""
    variables = variables_of(container)
    command = [expanded(str(word), variables) for word in container.get("command") or ()]
    args = [expanded(str(word), variables) for word in container.get("args") or ()]
    words = (*command, *args)
    text = shell_text(words)
    if text is not None:
        found = _started(_shell_words(words, text, variables, everything="envFrom" not in container), engine)
        return Server(Form.HIDDEN) if found is None else Server(Form.SHELL, found, text)
    found = _started(words, engine)
    if found is None and not command and image_serves(str(container.get("image") or ""), engine):
        found = words
    return Server(Form.HIDDEN) if found is None else Server(Form.ARGUMENTS, found)


def listening(server: Server, engine: Engine) -> int | None:
    """The port of a visible server by its arguments; None if they have it from a variable or a file that the template does not show."""
    said = server.flag("--port")
    if said is None:
        return None if server.configured else engine.port
    return int(said) if said.isdecimal() else None


def reached(server: Server, engine: Engine) -> bool:
    """Whether others than its own container reach the server, by all that its arguments say."""
    host = server.flag("--host")
    if host is None and any("--host" in flag.names for flag in engine.needed):
        # Of itself it listens to its own container alone, and the operator adds the argument only to a list of words.
        host = "" if server.form is Form.ARGUMENTS and not server.configured else "localhost"
    return host not in _LOOPBACK and server.flag("--uds") is None


def declared(container: Mapping[str, Any]) -> list[int]:
    """The ports that the container declares, without those called ``metrics``: a page of numbers that a framework or its bridge serves beside the engine."""
    ports = container.get("ports") or ()
    return [int(port["containerPort"]) for port in ports if port.get("name") != METRICS]


def serving_port(container: Mapping[str, Any], engine: Engine) -> int:
    """The port in the server's URL: the declared one that its arguments say too, else the first declared, else what they say, else the engine's own."""
    server, ports = server_of(container, engine), declared(container)
    said = listening(server, engine) if server.visible else None
    if ports:
        return said if said in ports else ports[0]
    return engine.port if said is None else said


def known_port(container: Mapping[str, Any], engine: Engine) -> int | None:
    """The port of a visible server that a probe may ask; None where none is known, where two disagree, and where nobody outside is answered."""
    server, ports = server_of(container, engine), declared(container)
    if not server.visible or not reached(server, engine):
        return None
    said = listening(server, engine)
    if said is None:
        return ports[0] if ports else None
    return said if not ports or said in ports else None


def image_serves(image: str, engine: Engine) -> bool:
    """Whether the image's entry point is the engine's server."""
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return any(name == wished or name.startswith(f"{wished}-") for wished in engine.images)


def version_of(image: str, engine: Engine) -> tuple[int, int] | None:
    """The engine's version by the tag of its own image, wherever that is kept; None for any other image, or a tag that is no version.

    A number in a tag of somebody else's image may be of anything: a date, another program, that image itself.
    """
    name, _, tag = image.partition("@")[0].rpartition(":")
    if "/" in tag or name.rpartition("/")[2] not in engine.images:
        return None
    found = re.match(r"v?0\.(\d{1,3})(?!\d)", tag)
    return None if found is None else (0, int(found[1]))


def variables_of(container: Mapping[str, Any]) -> dict[str, str | None]:
    """The container's variables as the kubelet makes them; None for one whose value the template does not say."""
    found: dict[str, str | None] = {}
    for variable in container.get("env") or ():
        if not isinstance(variable, Mapping):
            continue
        name = str(variable.get("name"))
        found[name] = None if variable.get("valueFrom") else expanded(str(variable.get("value") or ""), found)
    return found


def expanded(word: str, variables: Mapping[str, str | None]) -> str:
    """A word with ``$(NAME)`` replaced as the kubelet does it; one whose value is not known stays."""

    def of(found: re.Match[str]) -> str:
        value = "$" if found[1] == "$" else variables.get(found[2])
        return found[0] if value is None else value

    return re.sub(r"\$(\$|\(([^()]*)\))", of, word)


def shell_text(words: Sequence[str]) -> str | None:
    """The text that a shell on the command line is to read; None without one."""
    found = _shell_call(words)
    return None if found is None else words[found]


def split(text: str) -> tuple[str, ...]:
    """The words of a shell's text, roughly: enough to find a server and its arguments in it. What ends a command is a word of its own."""
    joined = text.strip().replace("\\\n", " ")
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    try:
        return tuple(lexer)
    except ValueError:
        return tuple(joined.split())


def _shell_call(words: Sequence[str]) -> int | None:
    """Where the text stands that a shell on the command line is to read."""
    for at, word in enumerate(words):
        if word.rpartition("/")[2] not in _SHELLS:
            continue
        reads, i = False, at + 1
        while i < len(words) and words[i].startswith(("-", "+")):
            option = words[i]
            short = not option.startswith("--")
            reads = reads or (short and option.startswith("-") and "c" in option)
            # These are followed by a name of their own.
            i += 2 if option in ("--rcfile", "--init-file") or (short and {"o", "O"} & set(option)) else 1
            if option in ("--", "-"):
                break
        return i if reads and i < len(words) else None
    return None


def _shell_words(
    words: Sequence[str], text: str, variables: Mapping[str, str | None], *, everything: bool
) -> tuple[str, ...]:
    """The words of the text with the shell's variables in them; ``everything``: whether ``variables`` has all that the template sets."""
    at = _shell_call(words) or 0
    positional = {str(i): word for i, word in enumerate(words[at + 1 :])}

    def of(found: re.Match[str]) -> str:
        name = found["braced"] or found["bare"]
        if re.search(rf"(?<![\w$]){name}=|\bread\b[^\n;]*\b{name}\b", text):
            return found[0]
        known = positional.get(name, variables.get(name))
        if found["default"] is not None and everything and name not in variables:
            known = found["default"]
        return found[0] if known is None else known

    filled = re.sub(r"\$(?:\{(?P<braced>\w+)(?::?-(?P<default>[^{}$]*))?\}|(?P<bare>\w+))", of, text)
    result: list[str] = []
    for word in split(filled):
        result += words[at + 2 :] if word in ("$@", "$*", "${@}", "${*}") else [word]
    return tuple(result)


def _started(words: Sequence[str], engine: Engine) -> tuple[str, ...] | None:
    """The words from those on that start the server, up to the end of its command; None without them."""
    bare = [word.rpartition("/")[2] if "://" not in word else word for word in words]
    for at in range(len(bare)):
        if any(tuple(bare[at : at + len(wished)]) == wished for wished in engine.words):
            return _first(words[at:], lambda word: bool(word) and set(word) <= set(_OPERATORS))
    return None


def _first(words: Sequence[str], ends: Callable[[str], bool]) -> tuple[str, ...]:
    """The words before the first at which something ends."""
    return tuple(words[: next((i for i, word in enumerate(words) if ends(word)), len(words))])


def _plain(name: str) -> str:
    """An argument's name as both engines read it: underscores and dashes are the same."""
    return name.replace("_", "-")
