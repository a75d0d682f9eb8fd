"""Models by name: the packaged shapes, and the many ways in which people and tables write their names.

A name is looked up without its organisation, case and separators, and without what does not change the shape: instruct or base,
a date, a number format. Nothing else is dropped, since a name that quietly became a model of another shape would make
every figure of a plan wrong; what is not known is an error that lists near names. A model that is not packaged is described by
its ``config.json`` (``resolve`` takes a path to one).
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from rljob_planner.configs import WHERE, from_config
from rljob_planner.errors import PlanningError
from rljob_planner.naming import examples, near
from rljob_planner.shapes import LatentAttention, ModelShape

__all__ = [
    "LatentAttention",
    "ModelShape",
    "format_in",
    "from_config",
    "model",
    "model_names",
    "published_parameters",
    "resolve",
]

# fmt: off
_OF_TRAINING = {"base", "chat", "hf", "instruct", "it", "meta", "moe", "preview", "rl", "sft", "thinking"}
_OF_FORMAT = {
    "4bit", "8bit", "awq", "bf16", "block", "bnb", "dynamic", "fp16", "fp4", "fp8",
    "gptq", "int4", "int8", "kv", "mxfp4", "nvfp4", "pertensor", "static", "w4a16", "w8a8",
}
_HOW_SCALED = {"block", "dynamic", "kv", "pertensor", "static"}
# fmt: on
_SAME_SHAPE = frozenset(_OF_TRAINING | _OF_FORMAT)
"""Words of a name that say nothing of the shape."""
_DATE = re.compile(r"\d{4}|\d{6}|\d{8}")
_ACTIVE = re.compile(r"a\d+(?:\.\d+)?b$")


@cache
def _data() -> dict[str, Any]:
    text = resources.files("rljob_planner").joinpath("data/models.yaml").read_text(encoding="utf-8")
    models: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["models"]
    return models


def _plain(name: str) -> str:
    """The name without organisation, brackets, case, separators and words that say nothing of the shape."""
    text = re.sub(r"\(.*?\)", " ", name).strip().lower().rstrip("/").rsplit("/", 1)[-1]
    words = [w for w in re.split(r"[\s_\-:]+", text) if w]
    kept = [w for w in words if w not in _SAME_SHAPE and not _DATE.fullmatch(w)]
    return "".join(kept or words)


@cache
def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    shorter: dict[str, set[str]] = {}
    for key, fields in _data().items():
        for alias in (key, fields["hf_id"], *fields.get("aliases", ())):
            plain = _plain(alias)
            names.setdefault(plain, key)
            shorter.setdefault(_ACTIVE.sub("", plain), set()).add(key)
    for plain, keys in shorter.items():
        if len(keys) == 1:
            names.setdefault(plain, next(iter(keys)))
    return names


def model_names() -> tuple[str, ...]:
    """The Hugging Face names of the packaged shapes."""
    return tuple(fields["hf_id"] for fields in _data().values())


def published_parameters(name: str) -> tuple[float, float | None]:
    """The published counts of a packaged model: total, and active for mixtures of experts."""
    fields = _data()[_names()[_plain(name)]]
    active = fields.get("params_active_b")
    return float(fields["params_total_b"]) * 1e9, None if active is None else float(active) * 1e9


def model(name: str) -> ModelShape:
    """The shape of a known model, by Hugging Face name, short name or as tables write it.

    Raises PlanningError ``UnknownModel`` with the names that come near.
    """
    key = _names().get(_plain(name))
    if key is None:
        raise PlanningError(
            "UnknownModel",
            f"model {name!r} is not known; {_others(name)}. For another model put the fields of its config.json "
            "(hidden_size, num_hidden_layers, num_attention_heads, …; simply all of it) under spec.model.config instead of spec.model.name",
        )
    return _packaged(key)


def _others(name: str) -> str:
    """Which names come near, or a few that are known."""
    packaged = _data()
    found = near(_plain(name), _names())
    if found:
        return f"near are {', '.join(packaged[key]['hf_id'] for key in found)}"
    few = examples((key.partition("-")[0].rstrip("0123456789."), fields["hf_id"]) for key, fields in packaged.items())
    return f"none of the {len(packaged)} known names is near, which are such as {', '.join(few)}"


def format_in(name: str) -> str | None:
    """The number format of weights that a name ends in, as repositories of quantised checkpoints do; None if it has none.

    May be one that the planner does not know, such as ``awq``: those weights are not the published ones, and not 16 bits wide.
    """
    words = re.split(r"[\s_\-:/]+", name.strip().lower())
    known = [w for w in words if w in _OF_FORMAT - _HOW_SCALED]
    if "fp8" in known and "block" in words:
        return "fp8_block"
    return known[-1] if known else None


def resolve(name_or_path: str) -> ModelShape:
    """The shape of a known model, or of the ``config.json`` at a path (or in a folder); raises PlanningError ``UnknownModel``."""
    path = Path(name_or_path)
    try:
        folder = path.is_dir() and (path / "config.json").is_file()
    except OSError:  # too long for a path, and so no path
        folder = False
    if folder:
        path = path / "config.json"
    elif path.suffix != ".json":
        return model(name_or_path)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanningError("UnknownModel", f"{path}: cannot be read as a model's config.json ({error})") from error
    if not isinstance(fields, dict):
        raise PlanningError(
            "UnknownModel", f"{path}: this is no config.json of a model, which is an object with fields"
        )
    try:
        return from_config(fields)
    except PlanningError as error:
        raise PlanningError(error.reason, str(error).replace(WHERE, str(path))) from error


@cache
def _packaged(key: str) -> ModelShape:
    f = _data()[key]
    experts, moe_intermediate = int(f.get("experts", 0)), int(f.get("moe_intermediate", 0))
    return ModelShape(
        name=f["hf_id"],
        layers=f["layers"],
        hidden=f["hidden"],
        heads=f["heads"],
        kv_heads=f["kv_heads"],
        head_dim=f["head_dim"],
        intermediate=f["intermediate"],
        vocab=f["vocab"],
        tie_embeddings=f["tie_embeddings"],
        experts=experts,
        active_experts=int(f.get("active_experts", 0)),
        moe_intermediate=moe_intermediate,
        shared_intermediate=int(f.get("shared_intermediate", int(f.get("shared_experts", 0)) * moe_intermediate)),
        moe_layers=int(f.get("moe_layers", f["layers"] - int(f.get("first_k_dense", 0)))) if experts else 0,
        sliding_window=int(f.get("sliding_window", 0)),
        sliding_layers=int(f.get("sliding_layers", 0)),
        mla=LatentAttention(**f["mla"]) if "mla" in f else None,
        state_layers=int(f.get("state_layers", 0)),
        state_parameters=float(f.get("state_parameters", 0.0)),
        state_bytes=float(f.get("state_bytes", 0.0)),
        gated_attention=bool(f.get("gated_attention", False)),
        feed_forward_matrices=int(f.get("feed_forward_matrices", 3)),
        mixer_parameters=float(f["mixer_parameters"]) if "mixer_parameters" in f else None,
        native=str(f.get("native", "bf16")),
    )
