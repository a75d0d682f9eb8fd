"""Import this to mirror what verl logs: one line in the process that logs. ``RLJOB_BRIDGE=verl`` does the same without a line."""

from rljob_runtime.bridges import bridge

bridge("verl")
