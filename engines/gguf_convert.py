"""A GGUF file into a Hugging Face folder: config, bf16 safetensors, tokenizer and chat template.

Tensor names and the order of rotary rows are llama.cpp's (its convert_hf_to_gguf.py); the tokenizer is built by
transformers.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.errors import ModelUnavailable
from engines.gguf_file import GgufFile, GgufTensor
from engines.quiet import quiet

if TYPE_CHECKING:
    import torch

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_SHARD_BYTES = 2 << 30
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: GgufFile, folder: Path, progress: Callable[[float], None]) -> None:
    """Fills `folder` with what `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer` open.

    Raises ModelUnavailable for an architecture, quantisation or tokenizer that cannot be read, OSError when the disk
    is full.
    """
    config = config_of(source)
    _write_json(folder / "config.json", config)
    special: dict[str, Any] = {
        key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config
    }
    _write_json(folder / "generation_config.json", special)
    _write_tokenizer(source, folder)
    _write_weights(source, config, folder, progress)


def config_of(source: GgufFile) -> dict[str, Any]:
    """The Hugging Face config.json that the file's metadata stand for. Raises ModelUnavailable."""
    meta, name = source.metadata, source.path.name
    architecture = meta.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelUnavailable(
            f"{name} holds the GGUF architecture {architecture!r}; supported are {', '.join(ARCHITECTURES)} "
            "(llama includes Mistral and SmolLM2)"
        )
    if meta.get("split.count", 1) > 1:
        raise ModelUnavailable(f"{name} is one part of several; join them first with llama-gguf-split --merge")
    if meta.get(f"{architecture}.expert_count", 0):
        raise ModelUnavailable(f"{name} is a mixture of experts, which is not supported")

    def get(key: str, default: Any = None) -> Any:
        value = meta.get(f"{architecture}.{key}", default)
        if value is None:
            raise ModelUnavailable(f"{name} lacks the metadata {architecture}.{key}; it may be damaged")
        return value

    if "token_embd.weight" not in source.tensors:
        raise ModelUnavailable(f"{name} holds no token embeddings; is it a language model?")
    hidden, heads = get("embedding_length"), get("attention.head_count")
    head_dim = get("attention.key_length", get("rope.dimension_count", hidden // heads))
    if not isinstance(heads, int) or get("attention.value_length", head_dim) != head_dim:
        raise ModelUnavailable(f"{name} has heads of different sizes, which is not supported")
    config = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(source, architecture),
        "vocab_size": source.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "torch_dtype": "bfloat16",
    }
    if architecture != "qwen2":
        config["attention_bias"] = "blk.0.attn_q.bias" in source.tensors
    for key, gguf_key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if (token := meta.get(f"tokenizer.ggml.{gguf_key}_token_id")) is not None:
            config[f"{key}_token_id"] = token
    return config


def _rope_scaling(source: GgufFile, architecture: str) -> dict[str, Any] | None:
    """Llama 3.1's scaling is kept as a tensor of divisors, of which the largest is the factor; the other three
    numbers are the same in every release that uses it."""
    kind = source.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if (divisors := source.tensors.get("rope_freqs.weight")) is not None:
        return {
            "rope_type": "llama3",
            "factor": max(float(rows.max()) for rows in source.rows(divisors)),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    if kind == "linear":
        return {"rope_type": "linear", "factor": source.metadata[f"{architecture}.rope.scaling.factor"]}
    if kind != "none":
        raise ModelUnavailable(f"{source.path.name} uses RoPE scaling {kind!r}; supported are none, linear and llama3")
    return None


def _name(gguf_name: str) -> str | None:
    """transformers' name of a tensor, or None for one that it does not keep."""
    stem, _, suffix = gguf_name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{suffix}"
    _, layer, *rest = stem.split(".", 2) if stem.startswith("blk.") else ("", "")
    return f"model.layers.{layer}.{_IN_LAYER[rest[0]]}.{suffix}" if rest and rest[0] in _IN_LAYER else None


def _write_weights(source: GgufFile, config: dict[str, Any], folder: Path, progress: Callable[[float], None]) -> None:
    total_bytes = sum(tensor.size_bytes for tensor in source.tensors.values())
    done_bytes = 0
    shards: list[list[str]] = []
    held: dict[str, torch.Tensor] = {}
    held_bytes = 0

    def flush() -> None:
        nonlocal held_bytes
        _save(held, folder / f"{len(shards)}.safetensors")
        shards.append(list(held))
        held.clear()
        held_bytes = 0

    for tensor in source.tensors.values():
        if (name := _name(tensor.name)) is not None:
            held[name] = _tensor(source, tensor, config)
            held_bytes += held[name].nbytes
        if held_bytes >= _SHARD_BYTES:
            flush()
        done_bytes += tensor.size_bytes
        progress(done_bytes / total_bytes)
    if held:
        flush()
    if len(shards) == 1:
        (folder / "0.safetensors").rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"{number}.safetensors").rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def _tensor(source: GgufFile, tensor: GgufTensor, config: dict[str, Any]) -> torch.Tensor:
    """bf16, in transformers' row order: in "llama" files the rotary pairs of q and k are neighbours."""
    import torch

    values = torch.empty((math.prod(tensor.shape[:-1]), tensor.shape[-1]), dtype=torch.bfloat16)
    at = 0
    for rows in source.rows(tensor):
        values[at : at + len(rows)] = torch.from_numpy(rows)
        at += len(rows)
    values = values.view(tensor.shape)
    kind = tensor.name.rpartition(".")[0].rpartition(".")[2]
    if config["model_type"] != "llama" or kind not in ("attn_q", "attn_k"):
        return values
    heads = config["num_attention_heads"] if kind == "attn_q" else config["num_key_value_heads"]
    paired = values.view(heads, config["head_dim"] // 2, 2, -1)
    return paired.transpose(1, 2).reshape(tensor.shape)


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata={"format": "pt"})
        path.chmod(path.with_name("config.json").stat().st_mode)  # safetensors' files are for their owner alone
    except SafetensorError as fault:
        raise as_os_error(fault) from fault


def as_os_error(fault: Exception) -> OSError:
    """safetensors reports a full disk in words only."""
    number = re.search(r"os error (\d+)", str(fault))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(fault))


def _write_tokenizer(source: GgufFile, folder: Path) -> None:
    from tokenizers import decoders, pre_tokenizers

    meta = source.metadata
    with quiet():
        from transformers import PreTrainedTokenizerFast

        # In a folder of its own, so that tokenizer files that happen to lie beside the model are not taken for its own.
        with tempfile.TemporaryDirectory(dir=folder) as alone:
            (Path(alone) / "model.gguf").symlink_to(source.path.absolute())
            try:
                backend = PreTrainedTokenizerFast.from_pretrained(alone, gguf_file="model.gguf").backend_tokenizer
            except Exception as fault:  # tokenizers raises bare Exception for a vocabulary that contradicts itself
                reason = (str(fault).splitlines() or [type(fault).__name__])[0][:150]
                raise ModelUnavailable(f"the tokenizer in {source.path.name} cannot be read ({reason})") from fault
        kind = meta.get("tokenizer.ggml.model")
        if kind == "gpt2":
            backend.decoder = decoders.ByteLevel()
        if meta.get("tokenizer.ggml.pre") == "smollm":
            # transformers takes GPT-2's splitting here, but SmolLM2 was trained with every digit on its own.
            digits = pre_tokenizers.Digits(individual_digits=True)
            words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
            backend.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
        # The roles are set from the file, since transformers' versions differ in what they make of them.
        roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        ids = {role: meta.get(f"tokenizer.ggml.{key}_token_id") for role, key in roles.items()}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            chat_template=meta.get("tokenizer.chat_template"),
            add_bos_token=bool(meta.get("tokenizer.ggml.add_bos_token", kind == "llama")),
            clean_up_tokenization_spaces=False,
            **{role: backend.id_to_token(token) if token is not None else None for role, token in ids.items()},
        )
        tokenizer.save_pretrained(folder)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
