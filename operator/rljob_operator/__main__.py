"""``python -m rljob_operator``: the operator as a container runs it."""

from __future__ import annotations

import sys

from rljob_operator.config import Config
from rljob_operator.handlers import run


def main() -> int:
    """Runs the operator from its environment; returns the exit code."""
    try:
        config = Config.from_env()
    except ValueError as error:
        print(f"rljob-operator: {error}", file=sys.stderr)
        return 2
    run(config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
