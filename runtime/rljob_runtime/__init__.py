"""What runs inside the containers of an RLJob: the layout that they follow and the metrics that they report.

The operator speaks to a job through one file and listens to it through Prometheus, so any framework can take part
without linking to the operator. This package is the polite way to do both in Python. It depends on
``prometheus-client`` alone and imports nothing of the operator or the planner, so that it installs beside any version
of torch or vLLM.
"""

from rljob_runtime.bridges import bridge
from rljob_runtime.follower import LayoutFollower
from rljob_runtime.gate import Group, InFlightGate, Sample
from rljob_runtime.layout import (
    DEFAULT_DIRECTORY,
    Endpoint,
    Layout,
    LayoutError,
    LayoutPhase,
    SamplerLayout,
    TrainerLayout,
)
from rljob_runtime.reporter import Reporter
from rljob_runtime.watcher import LayoutWatcher

__all__ = [
    "DEFAULT_DIRECTORY",
    "Endpoint",
    "Group",
    "InFlightGate",
    "Layout",
    "LayoutError",
    "LayoutFollower",
    "LayoutPhase",
    "LayoutWatcher",
    "Reporter",
    "Sample",
    "SamplerLayout",
    "TrainerLayout",
    "bridge",
]
