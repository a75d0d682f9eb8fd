"""Import this to mirror what NeMo-RL logs: one line in the process that logs. ``RLJOB_BRIDGE=nemo-rl`` does the same without a line."""

from rljob_runtime.bridges import bridge

bridge("nemo-rl")
