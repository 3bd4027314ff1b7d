"""What a Hugging Face config.json implies without loading anything: parameter names, their shapes, the context."""

from __future__ import annotations

import math
from typing import Any

Shapes = dict[str, tuple[int, ...]]


def normalised(config: dict[str, Any]) -> dict[str, Any]:
    """A copy with defaults filled in, and RoPE in its new place (`rope_parameters`) and its old ones (`rope_theta`,
    `rope_scaling`) alike. Raises KeyError for a size that must be there."""
    config = dict(config)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    config["tie_word_embeddings"] = config.get("tie_word_embeddings", config["model_type"] == "opt")
    if config["model_type"] == "opt":
        return config
    config["num_key_value_heads"] = config.get("num_key_value_heads") or heads
    config["head_dim"] = config.get("head_dim") or hidden // heads
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
    rope["rope_theta"] = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    config["rope_parameters"] = rope
    config["rope_theta"] = rope["rope_theta"]
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return config


def context_limit(config: dict[str, Any]) -> int:
    """Positions that a sequence may have. Sliding-window models are served within their window, where they equal
    full attention."""
    limit = int(config.get("max_position_embeddings", 2048))
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", config["model_type"] == "mistral"):
        return min(limit, int(window))
    return limit


def parameter_shapes(config: dict[str, Any]) -> Shapes:
    """Name to shape, in transformers' naming, of a normalised config; a tied `lm_head.weight` is left out."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes = _opt(config) if config["model_type"] == "opt" else _llama_like(config)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def count_parameters(config: dict[str, Any]) -> int:
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def _linear(shapes: Shapes, name: str, rows: int, columns: int, bias: bool) -> None:
    shapes[f"{name}.weight"] = (rows, columns)
    if bias:
        shapes[f"{name}.bias"] = (rows,)


def _llama_like(config: dict[str, Any]) -> Shapes:
    family, hidden, ffn = config["model_type"], config["hidden_size"], config["intermediate_size"]
    head = config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    biased = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3")
    mlp_bias = bool(config.get("mlp_bias", False)) and family == "llama"
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        root = f"model.layers.{layer}."
        shapes[root + "input_layernorm.weight"] = (hidden,)
        _linear(shapes, root + "self_attn.q_proj", queries, hidden, biased or family == "qwen2")
        _linear(shapes, root + "self_attn.k_proj", keys, hidden, biased or family == "qwen2")
        _linear(shapes, root + "self_attn.v_proj", keys, hidden, biased or family == "qwen2")
        _linear(shapes, root + "self_attn.o_proj", hidden, queries, biased)
        if family == "qwen3":
            shapes[root + "self_attn.q_norm.weight"] = shapes[root + "self_attn.k_norm.weight"] = (head,)
        shapes[root + "post_attention_layernorm.weight"] = (hidden,)
        _linear(shapes, root + "mlp.gate_proj", ffn, hidden, mlp_bias)
        _linear(shapes, root + "mlp.up_proj", ffn, hidden, mlp_bias)
        _linear(shapes, root + "mlp.down_proj", hidden, ffn, mlp_bias)
    shapes["model.norm.weight"] = (hidden,)
    return shapes


def _opt(config: dict[str, Any]) -> Shapes:
    hidden, ffn, bias = config["hidden_size"], config["ffn_dim"], bool(config.get("enable_bias", True))
    affine = bool(config.get("layer_norm_elementwise_affine", True))
    shapes: Shapes = {
        "model.decoder.embed_tokens.weight": (config["vocab_size"], hidden),
        # Positions are offset by two in every OPT release (transformers, OPTLearnedPositionalEmbedding).
        "model.decoder.embed_positions.weight": (config["max_position_embeddings"] + 2, hidden),
    }

    def norm(name: str) -> None:
        if affine:
            shapes[name + ".weight"] = shapes[name + ".bias"] = (hidden,)

    norm("model.decoder.final_layer_norm")
    for layer in range(config["num_hidden_layers"]):
        root = f"model.decoder.layers.{layer}."
        norm(root + "self_attn_layer_norm")
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            _linear(shapes, f"{root}self_attn.{projection}", hidden, hidden, bias)
        norm(root + "final_layer_norm")
        _linear(shapes, root + "fc1", ffn, hidden, bias)
        _linear(shapes, root + "fc2", hidden, ffn, bias)
    return shapes
