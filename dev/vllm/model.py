"""Write a model that vLLM serves: Qwen2's architecture with some 150 thousand random weights, and a tokenizer of bytes.

Written by hand, since that takes milliseconds and no torch. What the model says is noise; how long it takes, what it holds in the KV cache and how
the engine schedules it is not. The same seed gives the same files, byte for byte.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

VOCABULARY = 288
"""Tokens: all bytes, the special ones, and fillers up to a multiple of 32."""

END = "<|endoftext|>"

_SPECIAL = (END, "<|im_start|>", "<|im_end|>")

_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(
    directory: Path, *, hidden: int = 64, layers: int = 2, heads: int = 2, max_tokens: int = 4096, seed: int = 0
) -> Path:
    """Write configuration, weights and tokenizer of a model into ``directory``, which is made if need be, and return that.

    ``hidden`` is the width, of which each of the ``heads`` takes an equal part (a multiple of 32, for vLLM's kernels); ``max_tokens`` the longest
    context. Another ``seed`` gives other weights for the same model, as a step of training would.

    Raises ValueError for a width that the heads can't share so.
    """
    if hidden % heads or (hidden // heads) % 32:
        raise ValueError(
            f"{hidden} is no width for {heads} heads: each takes a multiple of 32, as in hidden={32 * heads}"
        )
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", _config(hidden, layers, heads, max_tokens))
    _write_json(
        directory / "generation_config.json", {"eos_token_id": _token_ids()[END], "pad_token_id": _token_ids()[END]}
    )
    _write_json(directory / "tokenizer.json", _tokenizer())
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": END,
            "model_max_length": max_tokens,
            "clean_up_tokenization_spaces": False,
            "chat_template": _CHAT_TEMPLATE,
        },
    )
    write_weights(directory / "model.safetensors", hidden=hidden, layers=layers, heads=heads, seed=seed)
    return directory


def write_weights(path: Path, *, hidden: int = 64, layers: int = 2, heads: int = 2, seed: int = 0) -> None:
    """Write weights alone, over those that are there: what a trainer does before the samplers load them again."""
    generator = np.random.default_rng(seed)
    del heads  # as many keys and values as queries: no shape depends on their number
    inner = 2 * hidden
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, hidden),
        "model.norm.weight": (hidden,),
    }
    for i in range(layers):
        layer = f"model.layers.{i}"
        for name in ("q_proj", "k_proj", "v_proj"):
            shapes[f"{layer}.self_attn.{name}.weight"] = (hidden, hidden)
            shapes[f"{layer}.self_attn.{name}.bias"] = (hidden,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[f"{layer}.mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{layer}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, inner)
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data: list[bytes] = []
    offset = 0
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            values = np.ones(shape, dtype=np.float32)
        else:
            values = generator.normal(0.0, 0.5 / hidden**0.5, shape).astype(np.float32)
        raw = _bfloat16(values)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + len(raw)]}
        data.append(raw)
        offset += len(raw)
    described = json.dumps(header, separators=(",", ":")).encode()
    described += b" " * (-len(described) % 8)
    # Whoever loads the weights meanwhile sees the old file or the new one.
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.write_bytes(struct.pack("<Q", len(described)) + described + b"".join(data))
    unfinished.replace(path)


def _bfloat16(values: np.ndarray) -> bytes:
    # The upper half of a float32, rounded to the nearest.
    return ((values.view(np.uint32) + 0x8000) >> 16).astype("<u2").tobytes()


def _config(hidden: int, layers: int, heads: int, max_tokens: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": max_tokens,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": _token_ids()[END],
    }


def _token_ids() -> dict[str, int]:
    characters = [chr(c) for c in _byte_characters()]
    fillers = [f"<|unused{i}|>" for i in range(VOCABULARY - len(characters) - len(_SPECIAL))]
    return {token: number for number, token in enumerate([*characters, *_SPECIAL, *fillers])}


def _byte_characters() -> list[int]:
    """The character that stands for each byte in a byte-level vocabulary: itself if it can be seen, else one from 256 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [byte if byte in seen else next(others) for byte in range(256)]


def _tokenizer() -> dict[str, object]:
    ids = _token_ids()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token, number in ids.items()
            if token.startswith("<|")
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for token, number in ids.items() if not token.startswith("<|")},
            "merges": [],
        },
    }


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")
