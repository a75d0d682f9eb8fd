"""A split of the GPU budget: the value that the planner finds, the operator applies and every report speaks of."""

from __future__ import annotations

from rljob_planner.api.base import ApiModel


class PoolSplit(ApiModel):
    """The samplers of one node pool."""

    name: str
    """Name of the pool."""
    replicas: int
    """Sampler pods there."""


class SamplerSplit(ApiModel):
    """The sampler side of a split."""

    replicas: int
    """Sampler pods."""
    gpus_per_replica: int
    """GPUs of one sampler pod."""
    tensor_parallel: int
    """Tensor-parallel width of one engine; equals the GPUs of a replica where one engine runs in a pod."""
    max_running: int
    """Most running samples of one replica (the engine's max_num_seqs)."""
    pools: tuple[PoolSplit, ...] | None = None
    """Where the replicas run, for a job with ``sampler.pools``; their sum is ``replicas``. Absent for a job without pools."""

    @property
    def gpus(self) -> int:
        """GPUs of all samplers."""
        return self.replicas * self.gpus_per_replica


class TrainerSplit(ApiModel):
    """The trainer side of a split."""

    replicas: int
    """Trainer pods."""
    gpus_per_replica: int
    """GPUs of one trainer pod."""
    dp: int
    """Data-parallel width."""
    tp: int
    """Tensor-parallel width."""
    pp: int
    """Pipeline-parallel depth."""
    ep: int
    """Expert-parallel width."""

    @property
    def gpus(self) -> int:
        """GPUs of all trainers."""
        return self.replicas * self.gpus_per_replica


class Split(ApiModel):
    """Sampler replicas × GPUs each, trainer replicas × GPUs each, and the in-flight cap that goes with them."""

    mode: str
    """``sync``, ``one-step-off`` or ``async``."""
    samplers: SamplerSplit
    trainers: TrainerSplit
    in_flight: int
    """Cap on samples submitted and not finished."""

    @property
    def gpus(self) -> int:
        """GPUs of both sides."""
        return self.samplers.gpus + self.trainers.gpus

    def same_shape(self, other: Split) -> bool:
        """Whether going from one to the other needs no pod to come or go (the in-flight cap may differ)."""
        return (
            self.samplers.replicas == other.samplers.replicas
            and self.samplers.gpus_per_replica == other.samplers.gpus_per_replica
            and self.trainers.replicas == other.trainers.replicas
            and self.trainers.gpus_per_replica == other.trainers.gpus_per_replica
        )

    def label(self) -> str:
        """A short name for people, such as ``48×1 samplers + 2×8 trainers``."""
        s, t = self.samplers, self.trainers
        return f"{s.replicas}×{s.gpus_per_replica} samplers + {t.replicas}×{t.gpus_per_replica} trainers"
