"""Tiny random models of each family, ours and transformers' side by side, with the same weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engines.decoder import Decoder
from engines.model import Model
from engines.shape import read_shape

COMMON = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **COMMON, "rope_theta": 10000.0},
    "llama-mha": {"model_type": "llama", **COMMON, "num_key_value_heads": 6, "attention_bias": True, "mlp_bias": True},
    "llama3": {
        "model_type": "llama",
        **COMMON,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama-linear": {"model_type": "llama", **COMMON, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "smollm2": {"model_type": "llama", **COMMON, "tie_word_embeddings": True, "rope_theta": 100000.0},
    "mistral": {"model_type": "mistral", **COMMON, "head_dim": 16, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", **COMMON, "tie_word_embeddings": True, "use_sliding_window": False},
    "qwen3": {"model_type": "qwen3", **COMMON, "head_dim": 16},
    "opt": {
        "model_type": "opt",
        "vocab_size": 97,
        "hidden_size": 48,
        "ffn_dim": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 1024,
        "word_embed_proj_dim": 48,
    },
}


class NoTokenizer:
    """Ids are all that these models know; the calibration text becomes its bytes."""

    @staticmethod
    def encode(text: str, add_special_tokens: bool = True) -> list[int]:
        return [byte % 97 for byte in text.encode()]

    @staticmethod
    def decode(token_ids: list[int], **_options: object) -> str:
        return " ".join(map(str, token_ids))

    @staticmethod
    def get_vocab() -> dict[str, int]:
        return {}


def tiny(family: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Model, Any]:
    """(our model, transformers' model), random weights large enough for attention to have a shape."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(**CONFIGS[family])
    theirs = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    raw = {**config.to_dict(), **CONFIGS[family]}
    shape = read_shape(raw)
    tensors = {name: tensor.detach().clone().to(dtype) for name, tensor in theirs.state_dict().items()}
    device = torch.device("cpu")
    decoder = Decoder(shape, tensors, device, dtype)
    model = Model(f"tiny-{family}", None, raw, shape, decoder, NoTokenizer(), device, dtype, set())
    return model, theirs


def prompt(length: int, seed: int = 0, vocab: int = 97) -> list[int]:
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
