"""The command line of the runtime: what runs beside a sampler's own process.

``drain`` is a container's preStop hook, or with ``--listen`` a sidecar that answers the hook of a container without Python:

    python -m rljob_runtime drain --url http://127.0.0.1:8000 --deadline 60s
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rljob_runtime.drain import Patience, drain, on_stderr
from rljob_runtime.layout import DEFAULT_DIRECTORY
from rljob_runtime.sampler import Sampler

_DURATION = re.compile(r"(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?")


def duration_s(text: str) -> float:
    """``90s``, ``15m``, ``1h30m`` or plain seconds, in seconds; ArgumentTypeError for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write for example 90s or 15m")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def _expanded(text: str) -> str:
    """``$(NAME)`` from the environment: Kubernetes expands it in a container's arguments, but not in those of a hook."""
    for name in re.findall(r"\$\((\w+)\)", text):
        if name not in os.environ:
            raise argparse.ArgumentTypeError(f"{text!r} names the environment variable {name}, which is not set")
        text = text.replace(f"$({name})", os.environ[name])
    return text


def _url(text: str) -> str:
    text = _expanded(text)
    if not re.match(r"https?://[^/]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no URL; write for example http://127.0.0.1:8000")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rljob-runtime", description="What runs beside a sampler of an RLJob.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "drain",
        help="wait until a sampler has finished what it has",
        description="Wait until a sampler has finished what it has, or the deadline is over. To be a preStop hook, it ends with 0 either way.",
    )
    command.add_argument("--url", type=_url, required=True, help="base URL of the sampler's server")
    command.add_argument(
        "--deadline",
        type=duration_s,
        required=True,
        help="wait no longer, however slowly the server answers: the pod's grace period less the server's shutdown timeout and 10 s",
    )
    command.add_argument("--settle", type=duration_s, default=3.0, help="without samples for so long (3s)")
    command.add_argument(
        "--lag",
        type=duration_s,
        default=15.0,
        help="at least so long, where the layout did not list the pod as draining: for the job to learn that it leaves (15s)",
    )
    command.add_argument("--timeout", type=duration_s, default=5.0, help="an answer that takes longer is no news (5s)")
    command.add_argument(
        "--tracked",
        action="store_true",
        help="the server runs with --enable-server-load-tracking, so that its /load is to be believed while it is paused",
    )
    command.add_argument("--layout", type=Path, default=Path(DEFAULT_DIRECTORY), help=f"({DEFAULT_DIRECTORY})")
    command.add_argument(
        "--pod",
        # Not HOSTNAME: on the host's network that is the node, which no layout lists.
        default=os.environ.get("POD_NAME", ""),
        help="this pod in the layout (environment POD_NAME); $(NAME) stands for an environment variable, here and in --url",
    )
    command.add_argument(
        "--log",
        type=Path,
        help="write there as well: /proc/1/fd/2 is the container's log, while what a hook prints is seen nowhere",
    )
    command.add_argument(
        "--listen", type=int, metavar="PORT", help="as a sidecar: drain when asked for /drain, and answer afterwards"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code, 0 but for wrong arguments (2)."""
    asked = _parser().parse_args(arguments)
    say = _sayer(asked.log)
    patience = Patience(deadline_s=asked.deadline, settle_s=asked.settle, lag_s=asked.lag)

    def run() -> str:
        try:
            sampler = Sampler(asked.url, timeout_s=asked.timeout, tracks_load=asked.tracked)
            return drain(sampler, patience, layout=asked.layout, pod=_pod(asked.pod, say), say=say).value
        except Exception as error:
            # A hook that fails has the server killed at once, one that ends has it stopped.
            say(f"the drain itself failed ({error!r}), so the server is stopped now; please report this")
            return "failed"

    if asked.listen is None:
        run()
        return 0
    # The first process of a container has no default handlers: without this one, SIGTERM would be passed over.
    signal.signal(signal.SIGTERM, _leave)
    from rljob_runtime.hook import serve

    serve(asked.listen, run, say)
    return 0


def _pod(text: str, say: Callable[[str], None]) -> str:
    """The pod's name; empty, and said, where the environment does not hold it: samples are waited for without the layout as well."""
    try:
        return _expanded(text)
    except argparse.ArgumentTypeError as error:
        say(f"--pod {error}; so the layout is not asked, and the job gets --lag to learn that this sampler leaves")
        return ""


def _leave(*_: object) -> NoReturn:
    sys.exit(0)


def _sayer(log: Path | None) -> Callable[[str], None]:
    def say(text: str) -> None:
        line = f"rljob-runtime drain: {text}"
        on_stderr(line)
        if log is not None:
            try:
                with log.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except (OSError, ValueError):
                # A log that can't be written is no reason to cut samples.
                return

    return say


if __name__ == "__main__":
    sys.exit(main())
