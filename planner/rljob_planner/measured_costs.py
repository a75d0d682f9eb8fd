"""What a step costs where it was measured and no data sheet explains it.

The roofline (``steptime``) carries a measurement over to other widths, lengths and batches, because it knows what the GPU can do. On an
accelerator that nobody has described it knows nothing, and constants fitted to a wrong data sheet would only look like knowledge. There
a step is what it was seen to be: a line through the measured steps. It needs no GPU, and says nothing of another one, nor of another
width of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_S = 1e-9
"""Seconds below which nothing was measured."""


@dataclass(frozen=True)
class DecodeSeconds:
    """Seconds of one iteration of a sampler replica: a line in what it runs, and in the experts that this visits."""

    step_s: float
    """Whatever it runs."""
    sample_s: float
    """Each running sample."""
    context_token_s: float
    """Each resident token of running samples."""
    prompt_token_s: float
    """Each prompt token that is prefilled in it."""
    experts_s: float = 0.0
    """All routed experts of a mixture; an iteration takes the share of it that its tokens visit."""


@dataclass(frozen=True)
class TrainSeconds:
    """Seconds of one training step: a line in its tokens."""

    step_s: float
    """Whatever it trains on, with any number of GPUs."""
    token_s: float
    """Each prompt or response token of the batch, on one GPU; GPUs share them."""
