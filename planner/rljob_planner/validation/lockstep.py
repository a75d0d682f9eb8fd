"""How long it takes to sample one whole batch on engines that keep a prompt's samples together.

``rollout.batch_s`` spreads what still runs evenly over all replicas. Systems that sample a batch at once hand each prompt to one engine
with all its samples (one prefill, one request), and samples of one prompt are alike in length: a hard prompt makes one engine run
all its samples to the end while others idle. The last engine then has not one but most of a group in its batch, each with a long
context, so the tail goes at half the speed. How alike: of the spread of ln length, ``ALIKE`` is between prompts. Six runs of Applied
Compute have tail multipliers of 1.42 to 1.45 (mean longest of a group over the mean), which leaves a within-prompt spread of about 0.22 for
groups of 16, next to 0.85 in all: their share would be 0.9; their prompts were arithmetic, so less is taken.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rljob_planner.simulate import DecodeCost, SimulationInput

FloatArray = NDArray[np.float64]

ALIKE = 0.7


def batch_s(inp: SimulationInput, complete: float = 1.0) -> float:
    """Seconds from the first token of a batch to the end of its longest response, or until a share of its groups is complete.

    While more samples wait than run, slots stay full; then the slowest replica drains. It holds its even share of what still runs, or of
    one group what runs given that one sample of it does, whichever is more.
    """
    lengths, S = inp.lengths, inp.samples_per_prompt
    samples = inp.prompts_per_step * S
    mean = lengths.mean()
    context = inp.prompt_tokens + lengths.resident_mean_tokens()
    slots = min(float(inp.max_running), max(1.0, inp.kv_tokens / (context + 1.0)))
    edges = np.concatenate([[0.0], lengths.coarse.support_tokens])
    steps = np.diff(edges)
    middle = edges[:-1] + 0.5 * (steps - 1.0)
    survival = lengths.survival(np.floor(middle))
    share, full_s = samples / inp.replicas, 0.0
    drained = np.minimum(1.0, survival)
    if share > slots:
        full_s = (
            (share - slots)
            * mean
            * _iterations_s(inp.decode, np.array([slots]), np.array([slots * context]))[0]
            / slots
        )
        drained = np.minimum(1.0, np.cumsum((survival * steps)[::-1])[::-1] / mean)
        share = slots
    together = 1.0 + (S - 1) * alive_sibling(survival)
    n = np.maximum(1.0, np.maximum(share * drained, np.minimum(together, slots)))
    independent = 1.0 + (S - 1) * (1.0 - ALIKE)
    if complete < 1.0:
        last = lengths.quantile(complete ** (1.0 / independent))
        alive = (middle < last).astype(np.float64)
    else:
        groups = max(1.0, share * inp.replicas / S)
        alive = 1.0 - (1.0 - np.minimum(1.0, survival)) ** (groups * independent)
    prefill_s = inp.decode.prefill_s_per_sample * samples / inp.replicas
    iterations_s = _iterations_s(inp.decode, n, n * (inp.prompt_tokens + middle))
    return full_s + prefill_s + float(np.sum(steps * alive * iterations_s))


def alive_sibling(survival: FloatArray) -> FloatArray:
    """Probability that a sample still runs, given that another of its prompt does: normal scores with correlation ``ALIKE``."""
    p = np.clip(survival, 1e-9, 1.0 - 1e-9)
    z = _score(p)
    beyond = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / p
    return np.asarray(_tail((z - ALIKE * beyond) / math.sqrt(1.0 - ALIKE * ALIKE)))


def _tail(z: FloatArray) -> FloatArray:
    return 0.5 * np.fromiter(map(math.erfc, (z / math.sqrt(2.0)).tolist()), np.float64, z.size)


def _score(p: FloatArray) -> FloatArray:
    """Z with P(Z > z) = p, to 0.0005 (Abramowitz and Stegun 26.2.23)."""
    q = np.minimum(p, 1.0 - p)
    t = np.sqrt(-2.0 * np.log(q))
    z = t - (2.515517 + 0.802853 * t + 0.010328 * t * t) / (1.0 + 1.432788 * t + 0.189269 * t**2 + 0.001308 * t**3)
    return np.asarray(np.where(p <= 0.5, z, -z))


def _iterations_s(decode: DecodeCost, n: FloatArray, resident: FloatArray) -> FloatArray:
    at = np.arange(len(decode.fixed_s))
    fixed, memory, compute = (np.interp(n, at, table) for table in (decode.fixed_s, decode.memory_s, decode.compute_s))
    bound = np.maximum(memory + decode.memory_s_per_token * resident, compute + decode.compute_s_per_token * resident)
    return np.asarray(fixed + bound)
