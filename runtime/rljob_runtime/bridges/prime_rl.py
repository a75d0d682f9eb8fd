"""Import this to mirror what prime-rl logs: one line in the process that logs. ``RLJOB_BRIDGE=prime-rl`` does the same without a line."""

from rljob_runtime.bridges import bridge

bridge("prime-rl")
