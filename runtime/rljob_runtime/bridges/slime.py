"""Import this to mirror what slime logs. Its two loggers are Ray actors, which ``RLJOB_BRIDGE=slime`` reaches and a script's line does not."""

from rljob_runtime.bridges import bridge

bridge("slime")
