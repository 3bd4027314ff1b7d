"""Models small enough to make on the spot: as transformers' own, as a Hugging Face folder, as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engines.random_weights import byte_tokenizer

VOCAB = 300
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {"intermediate_size": 96, "num_key_value_heads": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_COMMON, **_GROUPED, "tie_word_embeddings": True},
    "mistral": {**_COMMON, **_GROUPED, "tie_word_embeddings": False, "sliding_window": None},
    "qwen2": {**_COMMON, **_GROUPED, "tie_word_embeddings": False},
    "qwen3": {**_COMMON, **_GROUPED, "tie_word_embeddings": True, "head_dim": 32},
    "opt": {**_COMMON, "ffn_dim": 96, "word_embed_proj_dim": 64, "pad_token_id": 0},
}


def tiny_model(family: str, **changes: Any) -> PreTrainedModel:
    """In float32, with values that bfloat16 can hold."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**CONFIGS[family], **changes}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # biases and norms that would show if they were lost
                parameter.copy_(torch.randn_like(parameter) * 0.1 + ("norm" in name))
            parameter.copy_(parameter.bfloat16())
    return model.eval()


def tiny_folder(folder: Path, family: str, **saving: Any) -> PreTrainedModel:
    model = tiny_model(family)
    model.save_pretrained(folder, **saving)
    byte_tokenizer(VOCAB).save_pretrained(folder)
    return model


def lm_folder(folder: Path, context: int = 256) -> None:
    """A Llama whose likelihoods differ, with a tokenizer that begins every text with <s>, as Llama's own does."""
    from tokenizers.processors import TemplateProcessing

    model = tiny_model("llama", max_position_embeddings=context)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    model.save_pretrained(folder)
    tokenizer = byte_tokenizer(VOCAB)
    start = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{start[0]} $A", special_tokens=[start])
    tokenizer.save_pretrained(folder)


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    extra: dict[str, Any] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
    quantised: bool = False,
) -> None:
    """As llama.cpp's converter writes it: its names, and q and k of "llama" files with rotary pairs side by side."""
    import gguf

    config = model.config
    family = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, family)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for key, value in (extra or {}).items():
        writer.add_uint32(key, value) if isinstance(value, int) else writer.add_string(key, value)
    vocabulary = byte_tokenizer(VOCAB).get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    tokens += ["ab", "ĠĠ"]
    tokens += [f"<unused{number}>" for number in range(VOCAB - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") and len(token) > 1 else 1 for token in tokens])
    writer.add_token_merges(["a b", "Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}")
    for name, tensor in {**model.state_dict(), **(tensors or {})}.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = values.view(heads, 2, -1, config.hidden_size).transpose(1, 2).reshape(tensor.shape)
        array = np.ascontiguousarray(values.numpy())
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised and array.ndim == 2 else None
        if kind is not None:
            array = gguf.quants.quantize(array, kind)
        writer.add_tensor(_gguf_name(name), array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    for ours, theirs in (
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ):
        name = name.replace(ours, theirs)
    return name
