"""``python -m rljob_operator``: the operator as a container runs it."""

from __future__ import annotations

import sys

from rljob_operator.config import Config
from rljob_operator.handlers import run


def main() -> int:
    """Runs the operator from its environment; returns the exit code. Takes no arguments: one that does nothing would look as if it did."""
    if sys.argv[1:]:
        print(
            f"rljob-operator: unknown argument {sys.argv[1]!r}: there are none, so remove it and set RLJOB_OPERATOR_* in the environment",
            file=sys.stderr,
        )
        return 2
    try:
        config = Config.from_env()
    except ValueError as error:
        print(f"rljob-operator: {error}", file=sys.stderr)
        return 2
    run(config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
