"""Import this to mirror what skyrl logs: one line in the process that logs. ``RLJOB_BRIDGE=skyrl`` does the same without a line."""

from rljob_runtime.bridges import bridge

bridge("skyrl")
