"""Where the pods of a job may run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rljob_planner.api.base import ApiModel, Int


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

    selector: dict[str, str] = Field(default_factory=dict, max_length=32, description="Labels that a node must carry.")
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=32, description="Tolerations added to the pods.")
    gpu_resource: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=317,
        description="The extended resource that counts GPUs; it can't change in a run.",
    )
