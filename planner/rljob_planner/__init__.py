"""Sizes RL post-training jobs from first principles.

The planner turns a job's description, the hardware it may use and what was measured so far into a split of GPUs
between samplers and trainers, and says why. It reads and returns values only: no cluster, no HTTP. That keeps it
usable on a laptop before a run, inside the operator during one, and in a test without either.

Sub-packages import what they need when they are used; importing this package costs nothing.
"""

__version__ = "0.1.0"
