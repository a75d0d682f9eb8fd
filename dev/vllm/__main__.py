"""A real vLLM from the shell.

python -m dev.vllm install
python -m dev.vllm model /tmp/tiny
python -m dev.vllm serve /tmp/tiny --step 0.02 --per-sample 0.001 -- --max-num-seqs 8
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dev.controlplane.processes import ComponentError
from dev.vllm import device
from dev.vllm.install import InstallError, ensure
from dev.vllm.model import write_model
from dev.vllm.server import Server


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    own, options = _split(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(own)
    arguments.options = options
    try:
        code: int = arguments.run(arguments)
    except (InstallError, ComponentError, TimeoutError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and those after ``--``, which are vLLM's."""
    at = argv.index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dev.vllm", description="A real vLLM on this machine, without a GPU."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    install = commands.add_parser(
        "install", help="install vLLM's build for the CPU (once, three minutes), and print its Python"
    )
    install.set_defaults(run=_install)
    model = commands.add_parser("model", help="write a model with random weights")
    model.add_argument("directory", type=Path)
    model.add_argument("--seed", type=int, default=0, help="which weights (default: %(default)s)")
    model.set_defaults(run=_model)
    serve = commands.add_parser("serve", help="serve a model until Ctrl-C; options of vllm serve go after --")
    serve.add_argument("directory", type=Path)
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--step", type=float, default=0.0, metavar="SECONDS", help="the least that an iteration lasts")
    serve.add_argument(
        "--per-sample", type=float, default=0.0, metavar="SECONDS", help="and what each running sample adds"
    )
    serve.set_defaults(run=_serve)
    return parser


def _install(_: argparse.Namespace) -> int:
    print(ensure())
    return 0


def _model(arguments: argparse.Namespace) -> int:
    print(write_model(arguments.directory, seed=arguments.seed))
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    if not (arguments.directory / "config.json").is_file():
        raise ValueError(
            f"{arguments.directory} has no config.json: write a model with `python -m dev.vllm model {arguments.directory}`"
        )
    paced = arguments.step or arguments.per_sample
    env = device.environment(arguments.step, arguments.per_sample) if paced else {}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Server(ensure(), arguments.directory, more=arguments.options, env=env, port=arguments.port) as server:
        print(f"{server.url} serves {server.name}; Ctrl-C ends it", flush=True)
        while server.exit_code() is None:
            time.sleep(1.0)
        raise ComponentError(f"the server has ended with exit code {server.exit_code()}. {server.log()}")


if __name__ == "__main__":
    sys.exit(main())
