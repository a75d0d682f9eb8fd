"""Import this to mirror what TRL's AsyncGRPO logs: one line in the training script. ``RLJOB_BRIDGE=trl`` does the same without a line."""

from rljob_runtime.bridges import bridge

bridge("trl")
