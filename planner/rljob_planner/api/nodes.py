"""Where the pods of a job may run."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field

from rljob_planner.api.base import ApiModel, Int, Rule

SHARES = r"^nvidia[.]com/mig-|[.]shared$|^amd[.]com/(c|d|t|q)px_|/gpu-?(mem|core|percent)|^volcano[.]sh/vgpu"
"""Extended resources that count slices or shares of GPUs: MIG, time-slicing under its own name, AMD partitions, memory of a GPU."""


class Toleration(ApiModel):
    """A toleration of a pod, as in the core API."""

    key: str | None = Field(default=None, max_length=317, description="Key of the taint; all keys if absent.")
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None, description="How the value is compared; Equal if absent."
    )
    value: str | None = Field(default=None, max_length=63, description="Value of the taint, used with Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; all effects if absent."
    )
    toleration_seconds: Int | None = Field(
        default=None, description="How long a NoExecute taint is tolerated, in seconds; for ever if absent."
    )


class Nodes(ApiModel):
    """The nodes that may run the job's pods."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=f"!has(self.gpuResource) || !self.gpuResource.matches('{SHARES}')",
            message=(
                "nodes.gpuResource counts slices or shares of GPUs (MIG, time-slicing, partitions), but samplers and trainers are "
                "planned for whole GPUs: write one that counts those, such as nvidia.com/gpu or amd.com/gpu"
            ),
            holds=lambda n: re.search(SHARES, n.gpu_resource) is None,
            field="gpuResource",
        ),
    )

    selector: dict[str, str] = Field(default_factory=dict, max_length=32, description="Labels that a node must carry.")
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=32, description="Tolerations added to the pods.")
    gpu_resource: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=317,
        description="The extended resource that counts GPUs; it can't change in a run.",
    )
