"""The Kubernetes side: applies a plan to the cluster and keeps it right from live metrics.

Layers, from the edge inwards: ``handlers`` (kopf), ``reconcile`` (one pass over one job) and the readers of the outside
world (``cluster``, ``telemetry``); then what decides, as pure functions over values: ``inventory``, ``children``, ``decide``,
``rebalance``, ``status``. The command line imports the outer layers only inside commands that need a cluster.
"""

from rljob_planner import __version__ as __version__
