"""What a Hugging Face config.json says about a decoder, in our words and checked: `Shape`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engines.errors import ModelUnavailable
from engines.parameters import context_limit

if TYPE_CHECKING:
    import torch

FAMILIES = {
    "llama": "Llama 2/3, SmolLM2",
    "mistral": "Mistral",
    "qwen2": "Qwen2/2.5",
    "qwen3": "Qwen3",
    "opt": "OPT",
}


@dataclass(frozen=True)
class Shape:
    """Sizes and variants of one decoder. `rope_theta` is None for learned positions (OPT)."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    norm_eps: float
    rope_theta: float | None
    rope_scaling: dict[str, Any]

    @property
    def scale(self) -> float:
        """Of attention scores: 1 / sqrt(head_dim)."""
        return 1 / math.sqrt(self.head_dim)

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.heads // self.kv_heads


def read_shape(config: dict[str, Any]) -> Shape:
    """Raises ModelUnavailable, naming what is supported, for other families and for variants not built here."""
    family = config.get("model_type", "unknown")
    if family not in FAMILIES:
        known = ", ".join(f"{name} ({models})" for name, models in FAMILIES.items())
        raise ModelUnavailable(f"model family {family!r} is not supported; supported are: {known}")
    if family == "opt":
        return _read_opt(config)
    if config.get("hidden_act", "silu") != "silu":
        raise ModelUnavailable(f"activation {config['hidden_act']!r} is not supported in {family}; supported: silu")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise ModelUnavailable(f"RoPE scaling {kind!r} is not supported; supported: default, linear, llama3")
    return Shape(
        family=family,
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        ffn=config["intermediate_size"],
        vocab=config["vocab_size"],
        context=context_limit(config),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        rope_scaling={**rope, "kind": kind},
    )


def _read_opt(config: dict[str, Any]) -> Shape:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    if not config.get("do_layer_norm_before", True) or config.get("word_embed_proj_dim", hidden) != hidden:
        raise ModelUnavailable("this OPT variant (opt-350m's post-norm, projected embeddings) is not supported")
    if config.get("activation_function", "relu") != "relu":
        raise ModelUnavailable(f"activation {config['activation_function']!r} is not supported in opt; supported: relu")
    return Shape(
        family="opt",
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=config["ffn_dim"],
        vocab=config["vocab_size"],
        context=context_limit(config),
        norm_eps=1e-5,
        rope_theta=None,
        rope_scaling={},
    )


def rope_tables(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [context, head_dim / 2]. Llama 3's scaling as in the Llama 3.1 release (long wavelengths
    divided by `factor`, a smooth ramp between)."""
    import torch

    assert shape.rope_theta is not None
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    frequencies = 1.0 / shape.rope_theta**exponents
    scaling = shape.rope_scaling
    if scaling["kind"] == "linear":
        frequencies = frequencies / scaling["factor"]
    elif scaling["kind"] == "llama3":
        low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
        turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        ramp = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * (ramp + (1 - ramp) / factor)
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()
