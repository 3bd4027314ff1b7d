"""What predictive prefetch saves: bytes over the link, time that nobody waits for, and a million tokens on a device.

Times are those of the fair clock; over a modelled link they are modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import engines
from engines.decoder import Decoder
from engines.engine import Engine
from engines.errors import KvtuiError
from engines.events import Token
from engines.model import Model
from engines.random_weights import random_tensors
from engines.shape import read_shape
from probes.prose import passages

ENGINES = ("vllm", "infinigen", "infinigen+")
MILLION = 1_000_000
BLOCK_TOKENS = 16384


@dataclass(frozen=True)
class Row:
    """One engine's decode steps: bytes from host to device a step, the share of the link's busy time that computation
    hid, the share of selected entries that were on the device (None: nothing stays there), seconds a token, and the
    peak of KV bytes on the device. `modelled`: the link is."""

    engine: str
    context: int
    h2d_bytes: float
    hidden_share: float | None
    hit_rate: float | None
    tpot_s: float
    device_kv_peak_bytes: int
    modelled: bool


@dataclass(frozen=True)
class Million:
    """Decoding after a context of `tokens` synthetic entries. Bytes are peaks."""

    tokens: int
    new_tokens: int
    device_peak_bytes: int
    host_bytes: int
    disk_bytes: int
    h2d_bytes: float
    hit_rate: float | None
    tpot_s: float


def prose_ids(model: Model, tokens: int) -> list[int]:
    """That many tokens of prose, repeated where there is not enough."""
    ids = model.tokenizer.encode("\n\n".join(passages()))
    return (ids * (tokens // len(ids) + 1))[:tokens]


def measure(
    model: Model,
    link: str | None = None,
    tokens: int = 4096,
    new_tokens: int = 32,
    *,
    token_ids: list[int] | None = None,
    **knobs: Any,
) -> list[Row]:
    """Each of `ENGINES` on one prompt of `tokens` (of prose, or `token_ids`): its steps after the first token. `knobs`
    are create_engine's. Raises KvtuiError when one of them fails."""
    ids = token_ids or prose_ids(model, tokens)
    return [_decode(engines.create_engine(name, model, link=link, **knobs), ids, new_tokens) for name in ENGINES]


def million(
    model: Model | None = None,
    tokens: int = MILLION,
    new_tokens: int = 8,
    *,
    device_memory_bytes: int = 256 << 20,
    host_memory_bytes: int = 128 << 20,
    selected: int = 4096,
    resident_tokens: int = 1 << 19,
    link: str | None = None,
) -> Million:
    """Decodes after `tokens` random entries that lie on the host and, beyond its cap, on the disk. `selected` is the
    budget in tokens. The model is `small_model` if none is given. Raises KvtuiError when it does not fit."""
    model = model or small_model(tokens + 1024)
    engine = engines.create_engine(
        "infinigen+",
        model,
        budget=selected / tokens,
        link=link,
        device_memory_bytes=device_memory_bytes,
        host_memory_bytes=host_memory_bytes,
        disk_bytes=2 * tokens * model.kv_bytes_per_token,
        resident_tokens=resident_tokens,
    )
    assert isinstance(engine, Engine)
    engine.adopt([1] * tokens, _random_entries(model, tokens), room=new_tokens + 1)
    row = _decode(engine, [1], new_tokens, follow_up=True)
    memory = engine.memory()
    return Million(
        tokens=tokens,
        new_tokens=new_tokens,
        device_peak_bytes=memory.device_peak_bytes,
        host_bytes=memory.host_bytes["kv"],
        disk_bytes=memory.disk_bytes.get("kv", 0),
        h2d_bytes=row.h2d_bytes,
        hit_rate=row.hit_rate,
        tpot_s=row.tpot_s,
    )


def small_model(context: int, layers: int = 3, vocab: int = 512, dtype: torch.dtype = torch.bfloat16) -> Model:
    """A decoder of few layers with random weights and a context as long as one likes."""
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": context,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    }
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = read_shape(config)
    decoder = Decoder(shape, random_tensors(config, device, dtype), device, dtype)
    return Model("small-random", None, config, shape, decoder, _Bytes(), device, dtype, set())


class _Bytes:
    """A tokenizer for a model that nobody reads."""

    @staticmethod
    def encode(text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())


def _random_entries(model: Model, tokens: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    generator = torch.Generator().manual_seed(0)
    for start in range(0, tokens, BLOCK_TOKENS):
        extent = (2, model.layers, model.kv_heads, min(BLOCK_TOKENS, tokens - start), model.shape.head_dim)
        both = torch.randn(extent, generator=generator).to(model.device, model.dtype)
        yield list(zip(both[0], both[1], strict=True))


def _decode(engine: Any, ids: list[int], new_tokens: int, follow_up: bool = False) -> Row:
    """The steps after the first token, so that neither the prompt nor what it leaves behind counts."""
    engine.submit(1, ids, new_tokens + 1, follow_up=follow_up, ignore_eos=True)
    seen, before, first_s = 0, None, 0.0
    while engine.has_work:
        for event in engine.advance():
            if isinstance(event, Token):
                seen += 1
                last_s = event.clock_s
                if seen == 1:
                    before, first_s = engine.transfer(), event.clock_s
    if seen <= new_tokens or before is None:
        raise KvtuiError(f"{engine.label} ended after {seen} of {new_tokens + 1} tokens")
    moved, memory = engine.transfer(), engine.memory()
    return Row(
        engine=engine.id,
        context=len(ids),
        h2d_bytes=moved.h2d_bytes / new_tokens,
        hidden_share=moved.hidden_s / moved.busy_s if moved.busy_s else None,
        hit_rate=moved.hit_rate,
        tpot_s=(last_s - first_s) / new_tokens,
        device_kv_peak_bytes=memory.device_kv_peak_bytes,
        modelled=not moved.measured,
    )
