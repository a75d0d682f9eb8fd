"""Import this to mirror what AReaL logs: one line in the training script. ``RLJOB_BRIDGE=areal`` does the same without a line."""

from rljob_runtime.bridges import bridge

bridge("areal")
