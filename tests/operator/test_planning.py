"""What the first plan says to whoever asked for it: also where the nodes contradict the spec."""

from __future__ import annotations

from rljob_operator import planning
from rljob_operator.inventory import take_inventory
from rljob_operator.status import Verdict
from rljob_planner.api.spec import RLJobSpec
from tests.operator.objects import node, spec


def _message(of: RLJobSpec) -> str:
    nodes = [node(name, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}) for name in ("a", "b")]
    inventory = take_inventory(of, "uid", nodes, [], [], [])
    found = planning.first_plan(of, inventory)
    assert not isinstance(found, Verdict), found
    return planning.planned(of, found, inventory).message


def test_a_gpu_that_the_nodes_contradict_is_said() -> None:
    message = _message(spec(accelerator="A100-SXM"))
    assert "planned for h100-sxm-80gb, as the nodes are labelled, and not for spec.accelerator A100-SXM" in message
    assert "spec.accelerator" not in _message(spec(accelerator="H100-SXM"))
    assert "spec.accelerator" not in _message(spec())
