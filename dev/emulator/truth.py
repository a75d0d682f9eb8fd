"""The hidden truth: how fast the emulated hardware is.

These are not the planner's formulas with other numbers. A decode iteration joins memory time and compute time by a p-norm
instead of a maximum, a training step loses efficiency with width by a power instead of a communication term, KV room is linear in GPUs. The
constants are those of a job's own ``emulator.yaml``; ``speed`` factors put both sides off what a planner would expect. Nothing
outside of the emulator reads them: the operator has only the metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DecodeTruth:
    """One sampler replica: an iteration gives each of its running samples one token."""

    fixed_s: float
    """Time of an iteration that depends on nothing, in seconds."""
    weights_s: float
    """Time to read the weights that every iteration needs, on one GPU, in seconds."""
    per_context_token_s: float
    """Time to read one token of KV cache, on one GPU, in seconds."""
    per_sample_s: float
    """Compute time of one sample's token, on one GPU, in seconds."""
    prefill_per_token_s: float
    """Time to prefill one token, on one GPU, in seconds; also what a preempted sample pays for each token it had."""
    kv_tokens_per_gpu: float
    """KV room of one GPU that held no weights, in tokens."""
    weights_kv_tokens: float
    """What the weights of a replica displace of it, in tokens."""
    uncached_prompt_share: float = 1.0
    """Share of prompt tokens that the prefix cache does not hold, since a group's samples share their prompt."""
    experts_s: float = 0.0
    """Time to read all experts of a mixture-of-experts model, on one GPU, in seconds."""
    experts_scale: float = 32.0
    """Running samples at which 63 % of the experts are touched."""
    per_request_s: float = 0.0
    """Time on the CPU for each running sample (sampling, scheduling), in seconds; more GPUs do not help."""
    all_reduce_s: float = 0.0
    """Communication of an iteration for each doubling of the GPUs of a replica, in seconds."""
    sharpness: float = 4.0
    """Exponent that joins memory and compute time: large is a maximum, 1 is a sum."""
    speed: float = 1.0
    """Speed of the real thing over that of the constants."""
    noise: float = 0.0
    """Log standard deviation of an iteration's time over one tick."""

    def iteration_s(self, running: Floats, context: Floats, gpus: Floats) -> Floats:
        """Seconds of an iteration, without noise; arrays over replicas (running samples, resident tokens, GPUs)."""
        touched = -np.expm1(-running / self.experts_scale)
        memory = (self.weights_s + self.experts_s * touched + self.per_context_token_s * context) / gpus
        compute = self.per_sample_s * running / gpus
        p = self.sharpness
        joined = (memory**p + compute**p) ** (1.0 / p)
        host = self.fixed_s + self.per_request_s * running + self.all_reduce_s * np.log2(gpus)
        return np.asarray((host + joined) / self.speed)

    def kv_tokens(self, gpus: int) -> int:
        """KV room of a replica in tokens."""
        return max(0, int(self.kv_tokens_per_gpu * gpus - self.weights_kv_tokens))


@dataclass(frozen=True)
class TrainTruth:
    """The trainer as a whole."""

    fixed_s: float
    """Time of a step that depends on nothing, in seconds."""
    per_token_gpu_s: float
    """Time of one GPU for one token, in seconds."""
    per_square_token_gpu_s: float = 0.0
    """Time of one GPU for one token², summed over samples (attention), in seconds."""
    efficiency: float = 0.97
    """Exponent of the GPUs: twice the GPUs are ``2**efficiency`` as fast."""
    regroup_s: float = 3.0
    """Pause when the trainer's replicas change."""
    checkpoint_s: float = 1.0
    """Pause to write a checkpoint."""
    speed: float = 1.0
    """Speed of the real thing over that of the constants."""
    noise: float = 0.0
    """Log standard deviation of a step's time."""

    def step_s(self, lengths: NDArray[np.int64], prompt_tokens: int, replicas: int, gpus_per_replica: int) -> float:
        """Seconds of a step, without noise, on samples of these response lengths in tokens.

        Each replica takes its share of whole samples: the widest share counts.
        """
        totals = lengths.astype(np.float64) + prompt_tokens
        work = self.per_token_gpu_s * totals.sum() + self.per_square_token_gpu_s * (totals * totals).sum()
        padding = -(-len(totals) // replicas) * replicas / len(totals)
        gpus = float(replicas * gpus_per_replica)
        return float((self.fixed_s + work * padding / gpus**self.efficiency) / self.speed)


@dataclass(frozen=True)
class Truth:
    """Everything that the operator has to find out."""

    decode: DecodeTruth
    train: TrainTruth
    weight_sync_s: float = 0.2
    """Pause of each sampler for a new policy version, in seconds."""
    sampler_start_s: float = 0.0
    """From a sampler's readiness to its first iteration (it takes the newest weights), in seconds."""
