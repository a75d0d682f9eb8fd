"""Derives the constants of a decode step in ``data/hardware.yaml`` from the measured curves that the package carries.

``python -m dev.fit_steptime`` fits each architecture that has vLLM serving curves and prints the constants as the data file holds
them, with three errors: on the curves of the fit, on the curves marked ``held_out``, which it never sees, and on each model while the
fit sees only the others. ``--check`` only measures what the file holds now.

Relative errors are minimised, by their size and not by its square (iteratively reweighted Gauss-Newton in the logarithms of the
constants): a few published rows are off by 30 % for reasons of their own, and squares would bend everything towards them. A
weak pull (``PRIOR``) towards what kernels and data sheets say decides where the curves do not: bandwidth against launch cost on
curves that all have the same model.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rljob_planner.hardware import DecodeEfficiency, Gpu, Kernels
from rljob_planner.serving import served
from rljob_planner.steptime import Engine
from rljob_planner.validation.curves import Curve, packaged_curves

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Constant:
    """A constant that is fitted, and what is known of it besides the curves."""

    name: str
    expected: float
    spread: float
    """Standard deviation of its logarithm: how far kernels and engines are seen to differ in it."""
    unit: float
    """In the data file, in SI units."""
    most: float = math.inf


PRIOR = (
    Constant("mbu", 0.85, 0.08, 1.0, 0.95),
    Constant("mfu", 0.65, 0.15, 1.0, 0.90),
    Constant("layer_s", 40e-6, 0.5, 1e-6),
    Constant("step_s", 1e-3, 1.0, 1e-3),
    Constant("request_s", 20e-6, 0.7, 1e-6),
    Constant("sample_layer_s", 0.2e-6, 0.7, 1e-6),
    Constant("expert_layer_s", 15e-6, 0.7, 1e-6),
    Constant("block_layer_s", 20e-6, 0.7, 1e-6),
    Constant("activation_passes", 12.0, 0.4, 1.0),
    Constant("expert_mfu", 0.55, 0.4, 1.0, 1.0),
    Constant("narrow_kv_mbu", 0.7, 0.3, 1.0, 1.0),
    Constant("unpack_bytes_per_s", 3e12, 0.5, 1e9),
    Constant("prompt_s", 300e-6, 1.0, 1e-6),
)
FILE_NAMES = {
    "layer_s": "c_layer_us", "step_s": "c_step_ms", "request_s": "c_req_us", "sample_layer_s": "c_sample_layer_us",
    "expert_layer_s": "c_expert_layer_us", "block_layer_s": "c_block_layer_us", "unpack_bytes_per_s": "unpack_gbs", "prompt_s": "prompt_us",
}  # fmt: skip
PULL = 0.03
"""Relative error of a curve's row that weighs as much as one standard deviation of a constant, over the square root of the rows."""
ROUNDS = 30
NUDGE = 1e-4


def changed(gpu: Gpu, values: dict[str, float]) -> Gpu:
    """The GPU with other constants."""
    decode = {k: v for k, v in values.items() if k in DecodeEfficiency.__dataclass_fields__}
    kernels = {k: v for k, v in values.items() if k in Kernels.__dataclass_fields__}
    if gpu.kernels.unpack_bytes_per_s is None:
        kernels.pop("unpack_bytes_per_s", None)
    return replace(gpu, decode=replace(gpu.decode, **decode), kernels=replace(gpu.kernels, **kernels))


def ratios(curves: Iterable[Curve], values: dict[str, float] | None = None) -> FloatArray:
    """Predicted over measured time per output token, for the judged rows of these curves."""
    found: list[float] = []
    for curve in curves:
        engine = curve.engine
        if values is not None:
            engine = Engine(
                engine.model, changed(engine.gpu, values), engine.tensor_parallel, engine.weights, engine.kv
            )
        rows = [r for r in curve.rows if r.excluded is None]
        if rows:
            points = served(engine, curve.isl, curve.osl, [r.batch for r in rows])
            found += [p.tpot_s * 1e3 / r.tpot_ms for p, r in zip(points, rows, strict=True)]
    return np.array(found)


def fitted(curves: Sequence[Curve], constants: Sequence[Constant]) -> dict[str, float]:
    """The constants that these curves say."""
    expected = np.log([c.expected for c in constants])
    spread = np.array([c.spread for c in constants])
    most = np.log([c.most for c in constants])

    def residuals(at: FloatArray) -> FloatArray:
        return np.log(ratios(curves, {c.name: math.exp(x) for c, x in zip(constants, at, strict=True)}))

    at = _minimised(residuals, expected, spread, most)
    return {c.name: math.exp(x) for c, x in zip(constants, at, strict=True)}


def _minimised(
    residuals: Callable[[FloatArray], FloatArray], expected: FloatArray, spread: FloatArray, most: FloatArray
) -> FloatArray:
    at = expected.copy()
    here = residuals(at)
    prior = (PULL / spread) ** 2

    def cost(x: FloatArray, r: FloatArray) -> float:
        return float(np.sum(np.abs(r)) * PULL + np.sum(prior * (x - expected) ** 2) / 2.0)

    for _ in range(ROUNDS):
        slope = np.stack([(residuals(at + NUDGE * unit) - here) / NUDGE for unit in np.eye(len(at))], axis=1)
        weights = PULL / np.maximum(np.abs(here), 0.005)
        normal = (slope.T * weights) @ slope + np.diag(prior)
        step = -np.linalg.solve(normal, (slope.T * weights) @ here + prior * (at - expected))
        before, scale = cost(at, here), 1.0
        while scale > 1e-3:
            further = np.minimum(at + scale * step, most)
            there = residuals(further)
            if cost(further, there) < before:
                break
            scale /= 2.0
        else:
            return at
        moved = float(np.max(np.abs(further - at)))
        at, here = further, there
        if moved < 1e-4:
            break
    return at


def _mean_error(values: FloatArray) -> str:
    return f"{np.mean(np.abs(values - 1.0)):.3f} (n={len(values)})" if len(values) else "no rows"


def _line(values: dict[str, float]) -> str:
    units = {c.name: c.unit for c in PRIOR}
    return ", ".join(f"{FILE_NAMES.get(k, k)}: {float(f'{v / units[k]:.3g}'):g}" for k, v in values.items())


def main() -> None:
    """Fits, or checks, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="measure the constants that the data file holds; fit nothing"
    )
    parser.add_argument("--arch", action="append", help="architecture; default: all that have curves")
    asked = parser.parse_args()
    curves = [c for c in packaged_curves() if c.vllm and any(r.excluded is None for r in c.rows)]
    for arch in asked.arch or sorted({c.engine.gpu.arch for c in curves}):
        own = [c for c in curves if c.engine.gpu.arch == arch]
        seen, held = [c for c in own if not c.held_out], [c for c in own if c.held_out]
        if asked.check:
            print(f"{arch}: seen {_mean_error(ratios(seen))}, held out {_mean_error(ratios(held))}")
            continue
        constants = [c for c in PRIOR if c.name != "unpack_bytes_per_s" or seen[0].engine.gpu.peak_fp4 is None]
        values = fitted(seen, constants)
        print(f"  {arch}: {{{_line(values)}}}")
        print(f"    # seen {_mean_error(ratios(seen, values))}, held out {_mean_error(ratios(held, values))}")
        for name in sorted({c.engine.model.name for c in seen}):
            others = [c for c in seen if c.engine.model.name != name]
            if others:
                left = ratios([c for c in own if c.engine.model.name == name], fitted(others, constants))
                print(f"    # {name} from the other models: {_mean_error(left)}", flush=True)


if __name__ == "__main__":
    main()
