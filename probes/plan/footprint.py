"""The bytes of each tier at an engine's peak: what the engines here charge to their pools, worked out instead of run.

`tests/test_plan_memory.py` holds these formulas against real engines. What pools do not count (activations) is told
apart. n is the prompt's tokens, L layers, H query heads, G KV heads, d head dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from probes.plan.planned_model import PlannedModel

BLOCK_TOKENS = 16
SLOT_BYTES = 12  # of H2O's position (int64) and mass (float32), a layer, KV head and slot
ROUND_TOKENS = 64  # of InfiniGen's host pool
PAGED_CHUNK, BOUNDED_CHUNK = 2048, 512
PREFILLS = {
    "vllm": ("flash",),
    "h2o": ("eager", "flash", "chunked", "published"),
    "infinigen": ("eager", "flash", "published"),
}
ENGINES = tuple(PREFILLS)
UNCHARGED = ("activations",)


@dataclass(frozen=True)
class Request:
    """`batch` sequences of `context` prompt tokens and `new_tokens` more, all held at once. `budget` is the share of
    entries that H2O keeps and InfiniGen fetches, `partial_ratio` that of InfiniGen's columns. Prefills are those of
    `kvtui --prefill`; "published" is the policies' own code: eager, and all prompts of a batch together."""

    engine: str
    context: int
    new_tokens: int
    batch: int = 1
    budget: float = 0.3
    prefill: str = "flash"
    partial_ratio: float = 0.3


@dataclass(frozen=True)
class Footprint:
    """Bytes by kind, when the device holds most."""

    device: dict[str, int]
    host: dict[str, int]

    @property
    def device_bytes(self) -> int:
        return sum(self.device.values())

    @property
    def charged_bytes(self) -> int:
        """Without what the engines' pools do not count."""
        return sum(size for kind, size in self.device.items() if kind not in UNCHARGED)

    @property
    def host_bytes(self) -> int:
        return sum(self.host.values())

    @property
    def kv_bytes(self) -> int:
        """KV on the device, or what stands for it there."""
        return sum(self.device.get(kind, 0) for kind in ("kv", "staging", "partial keys"))


def footprint(model: PlannedModel, request: Request, *, fused: bool = True) -> Footprint:
    """`fused`: importance by the Triton kernel, as on a GPU; else by tiles of torch, as on a CPU."""
    if request.engine == "vllm":
        return _paged(model, request)
    if request.engine == "h2o":
        return _h2o(model, request, fused)
    return _infinigen(model, request)


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def h2o_blocks(request: Request) -> int:
    """Blocks that one sequence keeps in decode."""
    if request.budget == 1:
        return blocks_for(request.context + request.new_tokens)
    return max(1, round(request.budget * request.context / BLOCK_TOKENS))


def host_slots(request: Request) -> int:
    """Of one sequence in InfiniGen's host pool."""
    return -(-(request.context + request.new_tokens) // ROUND_TOKENS) * ROUND_TOKENS


def published_scores(model: PlannedModel, request: Request) -> int:
    """Bytes of scores that the policies' published prefills hold at once, for all prompts of the batch together.

    H2O (FMInference/H2O, h2o_hf/utils_real_drop/modify_llama.py): while the softmax is cast back there are the scores
    with the mask added, the float32 softmax, and its copy in the model's dtype; and the mask, of one head. InfiniGen
    (snu-comparch/InfiniGen, speedup/flexgen): the masked scores and their softmax, in the model's dtype."""
    heads, b = model.shape.heads, model.width
    each = heads * (b + 4 + b) + b if request.engine == "h2o" else heads * 2 * b
    return request.batch * each * request.context**2


def _largest(*moments: dict[str, int]) -> dict[str, int]:
    return max(
        ({kind: size for kind, size in moment.items() if size} for moment in moments), key=lambda m: sum(m.values())
    )


def _paged(model: PlannedModel, request: Request) -> Footprint:
    held = blocks_for(max(request.context, request.context + request.new_tokens - 1))
    rows = min(PAGED_CHUNK, request.context)
    device = {
        "weights": model.weights_bytes,
        "kv": request.batch * held * BLOCK_TOKENS * model.token_bytes,
        # A later chunk's keys and values are gathered out of their blocks, and laid before its own.
        "activations": _activations(model, rows) + 2 * request.context * model.layer_token_bytes,
    }
    return Footprint(device, {})


def _h2o(model: PlannedModel, request: Request, fused: bool) -> Footprint:
    shape, n = model.shape, request.context
    blocks = h2o_blocks(request)
    slots = shape.layers * shape.kv_heads * blocks * BLOCK_TOKENS
    held = {
        "weights": model.weights_bytes,
        "kv": request.batch * blocks * BLOCK_TOKENS * model.token_bytes,
        "importance": request.batch * slots * SLOT_BYTES,
    }
    rows, length = n, n
    if request.prefill == "chunked":
        rows, length = _last_piece(request, blocks)
    prefill = held | _read(model, request, rows, length)
    if "scores" not in prefill:
        prefill["score tiles"] = _tile_bytes(model, rows, length, fused)
    decode = held | {"activations": _activations(model, request.batch)}
    return Footprint(_largest(prefill, decode), {})


def _read(model: PlannedModel, request: Request, rows: int, length: int) -> dict[str, int]:
    """What a layer holds while it reads `rows` of a prompt against `length` keys."""
    found = {
        "layer KV": length * model.layer_token_bytes,
        "activations": _activations(model, rows, eager=request.prefill == "eager"),
    }
    if request.prefill == "eager":
        found["scores"] = 4 * model.shape.heads * request.context**2
    elif request.prefill == "published":
        found = {kind: size_bytes * request.batch for kind, size_bytes in found.items()}
        found["scores"] = published_scores(model, request)
    return found


def _last_piece(request: Request, blocks: int) -> tuple[int, int]:
    """Of a prompt in bounded pieces: rows, and keys with those that are kept, of the piece that sees most."""
    n, kept = request.context, blocks * BLOCK_TOKENS - 1
    last_full = n // BOUNDED_CHUNK * BOUNDED_CHUNK
    pieces = [
        (min(BOUNDED_CHUNK, n - start), start) for start in (last_full - BOUNDED_CHUNK, last_full) if 0 <= start < n
    ]
    return max(((rows, min(start, kept) + rows) for rows, start in pieces), key=lambda piece: piece[1])


def _infinigen(model: PlannedModel, request: Request) -> Footprint:
    shape, n = model.shape, request.context
    heads = shape.layers * shape.kv_heads
    capacity = host_slots(request)
    width = max(1, round(request.partial_ratio * shape.head_dim))
    staging = capacity + 1 + math.ceil(request.budget * capacity) + 1
    held = {
        "weights": model.weights_bytes,
        "skew matrices": heads * shape.head_dim**2 * 4,
        "partial keys": request.batch * heads * width * capacity * model.width,
        "partial weights": request.batch * heads * shape.head_dim * width * model.wide,
        "staging": request.batch * staging * model.layer_token_bytes,
    }
    prefill = held | _read(model, request, n, n)
    decode = held | {
        "speculation": 2 * shape.kv_heads * (n + request.new_tokens - 1) * 4,
        "activations": _activations(model, request.batch),
    }
    return Footprint(_largest(prefill, decode), {"kv": request.batch * capacity * model.token_bytes})


def _activations(model: PlannedModel, rows: int, *, eager: bool = False) -> int:
    """The most that a step of so many rows has in hand (engines.decoder, on CUDA): in the MLP the residual stream, its
    normalised copy, gate and up and their product; in attention what goes in and comes out; in a norm two float32
    copies. Eager scores are formed from float32 copies of queries, keys and values, and masked by n² bytes."""
    shape, b = model.shape, model.wide
    projected = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    queries = shape.heads * shape.head_dim
    mlp = b * (2 * shape.hidden + 3 * shape.ffn)
    attention = b * (shape.hidden + projected + queries)
    norm = (2 * b + 8) * shape.hidden
    if eager:
        attention += 4 * (projected + queries) + rows
    return rows * max(mlp, attention, norm)


def _tile_bytes(model: PlannedModel, rows: int, length: int, fused: bool) -> int:
    """As engines.importance.tile_bytes."""
    heads, groups = model.shape.heads, model.shape.kv_heads
    if fused:
        return 4 * (heads * length + groups * length + heads * rows)
    return 4 * (heads // groups * min(rows, 256) * min(length, 2048) + groups * length + heads * rows)
