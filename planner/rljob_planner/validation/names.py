"""From the names that people write to shapes and data sheets.

Sources write "Llama 3.1 405B", "R1-Distill-Qwen-7B", "H100 FP8" or "H800 (8 per node)". Names are looked up in the packaged data
with what is beside the point taken off. A model that is not there, but whose name has both its total and its active size, is a
mixture of experts of these sizes, so the nearest packaged shape of its kind is widened to them; what the text itself calls unstated is
taken to be usual. Both are assumptions, and the row's note says so. All other names are errors that list those that come near:
"80B" alone may be a dense model or one with 3B active, and any GPU put in for another makes a number that means nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Generic, TypeVar

from rljob_planner.errors import PlanningError
from rljob_planner.hardware import Gpu, gpu
from rljob_planner.models import ModelShape, model, model_names

T = TypeVar("T")

REFERENCE_GPU = "h100-sxm-80gb"
"""What most public RL runs use; a factor per side corrects it wherever a family has three rows."""

_SIZES = re.compile(r"(\d+(?:\.\d+)?)\s*[bB](?:[-\s]?[aA](\d+(?:\.\d+)?)\s*[bB])?(?![a-zA-Z])")
_SAME_SIZE = 0.05
_NOT_STATED = re.compile(r"not stated|not known|unknown|unstated", re.IGNORECASE)


@dataclass(frozen=True)
class Named(Generic[T]):
    """What a name stands for."""

    value: T
    precision: str | None = None
    """A number format that the name mentions."""
    assumption: str | None = None
    """What was assumed to find it."""


@cache
def shape_of(text: str) -> Named[ModelShape]:
    """The shape of a model by any name of it; raises PlanningError ``UnknownModel`` unless its name has both sizes."""
    precision = _precision(text)
    error: PlanningError | None = None
    for name in _variants(text):
        try:
            return Named(model(name), precision)
        except PlanningError as unknown:
            error = error or unknown
    sizes = _SIZES.findall(text)
    stated = all(active for _, active in sizes) or _NOT_STATED.search(text)
    if len({total for total, _ in sizes}) == 1 and stated:
        total, active = sizes[0]
        shape = _of_size(text, float(total) * 1e9, float(active) * 1e9 if active else None)
        how = "taken" if shape == model(shape.name) else "widened to the sizes in its name"
        return Named(shape, precision, f"the shape of {text} is not packaged: {shape.name}, {how}")
    raise error or PlanningError("UnknownModel", f"model {text!r} is not known")


@cache
def gpu_of(text: str) -> Named[Gpu]:
    """The GPU that a text names; the reference GPU, with a note, where it says that the type is not stated.

    Raises PlanningError ``UnknownAccelerator`` with the names that come near.
    """
    precision = _precision(text)
    error: PlanningError | None = None
    for name in _variants(text):
        try:
            return Named(gpu(name), precision)
        except PlanningError as unknown:
            error = error or unknown
    if _NOT_STATED.search(text):
        return Named(gpu(REFERENCE_GPU), precision, f"the source does not state the GPU type: {REFERENCE_GPU} assumed")
    raise error or PlanningError("UnknownAccelerator", f"accelerator {text!r} is not known")


def _precision(text: str) -> str | None:
    found = re.search(r"\b(fp8|bf16|fp16|mxfp4|nvfp4|fp4)\b", text, re.IGNORECASE)
    return found.group(1).lower() if found else None


def _variants(text: str) -> Iterator[str]:
    """The name as it stands, without what is in brackets or after a comma, without formats, in dashes, word by word less."""
    bare = re.sub(r"\(.*?\)|,.*$|-class\b|^\s*(\d+\s*x\s*)+(?=[a-zA-Z])", "", text).strip()
    plain = re.sub(r"[-\s]*\b(fp8|bf16|fp16|base|instruct|sft)\b", "", bare, flags=re.IGNORECASE).strip()
    seen: set[str] = set()
    for name in (text, bare, plain):
        spelled = re.sub(r"(?<=[a-z])(?=\d+\.\d)", "-", name.replace("_", "-"), flags=re.IGNORECASE)
        for form in (name, "-".join(name.split()), "-".join(spelled.split()), f"DeepSeek-{name}"):
            if form and form.lower() not in seen:
                seen.add(form.lower())
                yield form
    words = plain.split()
    for count in range(len(words) - 1, 0, -1):
        yield "-".join(words[:count])
        yield "-".join(words[-count:])


def _of_size(text: str, total: float, active: float | None) -> ModelShape:
    """The packaged shape that comes nearest, widened to the sizes.

    Of its kind where the name has an active size; without one, of the same series if that has the size, else of any.
    """

    def distance(shape: ModelShape) -> float:
        far = abs(math.log(shape.parameters / total))
        return far + (abs(math.log(shape.active_parameters / active)) if active else 0.0)

    shapes = [model(name) for name in model_names()]
    series = re.match(r"[a-z]+", text.lower())
    akin = [s for s in shapes if series and s.name.rsplit("/", 1)[-1].lower().startswith(series.group())]
    same = [s for s in akin if distance(s) <= _SAME_SIZE]
    if same and not active:
        return min(same, key=distance)
    known = [s for s in shapes if (s.kind == "moe") == bool(active)]
    shape = min(known, key=distance)
    if distance(shape) <= _SAME_SIZE:
        return shape
    width = math.sqrt(total / shape.parameters)

    def wide(size: int) -> int:
        return max(64, round(size * width / 64) * 64)

    widened = replace(
        shape,
        hidden=wide(shape.hidden),
        intermediate=wide(shape.intermediate),
        moe_intermediate=wide(shape.moe_intermediate) if shape.experts else 0,
        shared_intermediate=wide(shape.shared_intermediate) if shape.shared_intermediate else 0,
    )
    if active and widened.experts:
        always = widened.active_parameters - widened.moe_layers * widened.active_experts * widened.expert_parameters
        visits = (active - always) / (widened.moe_layers * widened.expert_parameters)
        widened = replace(widened, active_experts=max(1, min(widened.experts, round(visits))))
    return widened
