"""``python -m rljob_operator.cli``: the command without its script."""

from rljob_operator.cli import main

if __name__ == "__main__":
    main()
