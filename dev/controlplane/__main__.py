"""Run a local control plane from the shell.

python -m dev.controlplane up --nodes 8x8
eval "$(python -m dev.controlplane env)"
kubectl get nodes
python -m dev.controlplane down
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dev.controlplane import keeper, paths
from dev.controlplane.build import FAMILIES, BuildError, binary, ensure_built
from dev.controlplane.nodes import NodeSpec, parse_shape, parse_taint
from dev.controlplane.plane import ControlPlane
from dev.controlplane.processes import ComponentError
from dev.controlplane.toolchain import ToolchainError

DEFAULT_NAME = "local"
STOP_TIMEOUT_S = 20.0


class UsageError(RuntimeError):
    """What the user asked for cannot be done; the message says what to do instead."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except (UsageError, BuildError, ToolchainError, ComponentError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing is left running", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dev.controlplane",
        description="A real Kubernetes control plane on this machine, with simulated GPU nodes.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="build the binaries that are missing (once, 10 to 15 minutes)")
    build.set_defaults(run=_build)

    up = commands.add_parser("up", help="start a plane that goes on running")
    up.add_argument("--nodes", type=_shape, default=(8, 8), metavar="NxG", help="nodes x GPUs of each (default: 8x8)")
    up.add_argument("--product", default=NodeSpec(0).product, help="GPU product label (default: %(default)s)")
    up.add_argument("--zones", default="zone-a", help="comma-separated zones, dealt out in turn (default: %(default)s)")
    up.add_argument(
        "--taint", action="append", default=[], type=_taint, help="taint of the nodes, as kubectl writes it"
    )
    up.set_defaults(run=_up)

    env = commands.add_parser("env", help='print shell commands that select the plane: eval "$(... env)"')
    env.set_defaults(run=_env)

    down = commands.add_parser("down", help="stop a plane and delete its data")
    down.set_defaults(run=_down)

    for command in (up, env, down):
        command.add_argument(
            "--name", default=DEFAULT_NAME, type=_plane_name, help="which plane (default: %(default)s)"
        )
    return parser


def _shape(text: str) -> tuple[int, int]:
    try:
        return parse_shape(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _taint(text: str) -> str:
    try:
        parse_taint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _plane_name(text: str) -> str:
    if not text.replace("-", "").isalnum() or text.startswith(("-", "plane-", "prometheus-")):
        raise argparse.ArgumentTypeError(f"{text!r}: use letters, digits and dashes")
    return text


def _build(_arguments: argparse.Namespace) -> int:
    ensure_built()
    for family in FAMILIES:
        print(family.directory)
    return 0


def _state_file(name: str) -> Path:
    return paths.run_dir() / name / "state.json"


def _running(name: str) -> dict[str, str | int] | None:
    """Return the state of a running plane, or None; clears away what a killed one left."""
    directory = paths.run_dir() / name
    if not directory.is_dir():
        return None
    if not keeper.is_locked(directory):
        shutil.rmtree(directory, ignore_errors=True)
        return None
    with contextlib.suppress(FileNotFoundError):
        state: dict[str, str | int] = json.loads(_state_file(name).read_text())
        return state
    raise UsageError(f"the plane {name!r} is just starting; try again in a few seconds")


def _up(arguments: argparse.Namespace) -> int:
    if _running(arguments.name) is not None:
        raise UsageError(
            f"the plane {arguments.name!r} is up already; end it with `python -m dev.controlplane down "
            f"--name {arguments.name}`, or start another with --name"
        )
    count, gpus = arguments.nodes
    nodes = NodeSpec(
        count=count,
        gpus_per_node=gpus,
        product=arguments.product,
        zones=tuple(zone for zone in arguments.zones.split(",") if zone),
        taints=tuple(arguments.taint),
    )
    with ControlPlane.start(
        data_dir=paths.run_dir() / arguments.name,
        keep_data=False,
        nodes=nodes,
        log=lambda text: print(text, file=sys.stderr, flush=True),
    ) as plane:
        state = {
            "server": plane.server,
            "kubeconfig": str(plane.kubeconfig),
            "dataDir": str(plane.data_dir),
            "keeperPid": plane.supervisor.pid,
        }
        scratch = _state_file(arguments.name).with_suffix(".new")
        scratch.write_text(json.dumps(state, indent=2) + "\n")
        scratch.rename(_state_file(arguments.name))
        plane.detach()
    name = "" if arguments.name == DEFAULT_NAME else f" --name {arguments.name}"
    print(
        f"{count} nodes with {gpus} GPUs each. Use it in this shell, then stop it:\n"
        f'  eval "$(python -m dev.controlplane env{name})"\n'
        f"  kubectl get nodes\n"
        f"  python -m dev.controlplane down{name}\n"
        f"Logs: {plane.data_dir / 'logs'}"
    )
    return 0


def _env(arguments: argparse.Namespace) -> int:
    state = _running(arguments.name)
    if state is None:
        raise UsageError(f"no plane {arguments.name!r} is up; start it with `python -m dev.controlplane up`")
    folders = dict.fromkeys(str(binary(tool).parent) for tool in ("kubectl", "promtool"))
    current = os.environ.get("PATH", "").split(":")
    path = ":".join([*(folder for folder in folders if folder not in current), "$PATH"])
    print(f"export KUBECONFIG={shlex.quote(str(state['kubeconfig']))}")
    print(f"export KUBECACHEDIR={shlex.quote(str(Path(str(state['dataDir'])) / 'kubectl-cache'))}")
    print(f'export PATH="{path}"')
    return 0


def _down(arguments: argparse.Namespace) -> int:
    state = _running(arguments.name)
    if state is None:
        print(f"no plane {arguments.name!r} is up")
        return 0
    # The lock that was just seen proves that the process is our keeper, and no other that got its number.
    os.kill(int(state["keeperPid"]), signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while Path(str(state["dataDir"])).exists():
        if time.monotonic() > deadline:
            raise UsageError(f"{state['dataDir']} is still there after {STOP_TIMEOUT_S:.0f} s")
        time.sleep(0.05)
    print(f"the plane {arguments.name!r} is down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
