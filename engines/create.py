"""Engines by name, with the knobs that each takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from engines import events
from engines.caches.base import Surroundings
from engines.caches.h2o import H2OCache, H2OKnobs
from engines.caches.infinigen import InfiniGenCache, InfiniGenKnobs
from engines.caches.infinigen_plus import InfiniGenPlusCache
from engines.caches.paged import PagedCache, PagedKnobs
from engines.clock import Clock
from engines.disktier import DiskTier
from engines.engine import Engine
from engines.errors import BadRequest
from engines.graphs import open_graphs
from engines.hybrid import AnyEngine, HybridEngine
from engines.knobs import ANCHORS, PREFETCHES, PREFILLS, SCORINGS
from engines.link import open_link
from engines.memory import Pool
from engines.model import Model
from engines.scheduler import CHUNK_TOKENS
from engines.server import ServerEngine
from engines.server_address import KEY_VARIABLE

# The recommended H2O: flash scoring, chunked prefill, anchors.
PLUS_PREFILL, PLUS_SCORING, PLUS_HEAVY_SHARE, CHUNKED_TOKENS = "chunked", "flash", 0.75, 512
HEAVY_SHARE = 0.5  # the paper's


def create_engine(
    id: str,
    model: Model,
    *,
    budget: float = 0.3,
    budget_tokens: int | None = None,
    alpha: float | None = None,
    prefill: str | None = None,
    scoring: str | None = None,
    anchors: float | None = None,
    link: str | None = None,
    device_memory_bytes: int | None = None,
    host_memory_bytes: int | None = None,
    arena_tokens: int | None = None,
    partial_ratio: float = 0.3,
    victim: str = "counter",
    heavy_share: float | None = None,
    prefix_sharing: bool = True,
    chunk_tokens: int | None = None,
    prefetch: str | None = None,
    resident: float | None = None,
    resident_tokens: int | None = None,
    disk_bytes: int | None = None,
    disk_folder: Path | None = None,
    graphs: bool = True,
) -> AnyEngine:
    """`id` is one of `events.ENGINE_LABELS`. `budget` (share of KV entries kept or fetched) is for H2O and InfiniGen;
    H2O takes `budget_tokens` instead, an absolute number. `alpha` is InfiniGen's (logits below the maximum; inf fetches
    all that the budget allows). `prefill` and `scoring` are among `knobs.PREFILLS` and `knobs.SCORINGS`; `anchors` is
    the share of H2O's budget for protected positions. `prefetch` is among `knobs.PREFETCHES`, `resident` and
    `resident_tokens` are what InfiniGen's predictive prefetch keeps on the device (see InfiniGenKnobs). `link` is a
    profile's name (see engines.link). Caps are bytes. With `disk_bytes` or `disk_folder`, what InfiniGen's capped host
    pool has no room for goes to a file there (of the system's temporary folder by default) instead of being evicted.
    `graphs`: on CUDA, decode steps are recorded and replayed where they can be (see engines.graphs).

    Raises BadRequest for knobs out of range, and OutOfMemory when the weights alone exceed the cap.
    """
    if id not in events.ENGINE_LABELS:
        raise BadRequest(f"unknown engine {id!r}: choose from {', '.join(events.ENGINE_LABELS)}")
    if id == events.SERVER:
        raise BadRequest(f"{id} is a server elsewhere: engines.server.ServerEngine asks one")
    if not 0 < budget <= 1:
        raise BadRequest(f"budget {budget:g} is outside (0, 1]")
    if not 0 < partial_ratio <= 1:
        raise BadRequest(f"partial_ratio {partial_ratio:g} is outside (0, 1]")
    if heavy_share is not None and not 0 <= heavy_share <= 1:
        raise BadRequest(f"heavy_share {heavy_share:g} is outside [0, 1]")
    if chunk_tokens is not None and chunk_tokens < 1:
        raise BadRequest(f"chunk_tokens {chunk_tokens} must be positive")
    if prefill is not None and prefill not in PREFILLS[id]:
        raise BadRequest(f"engine {id} has no {prefill!r} prefill: choose {' or '.join(PREFILLS[id])}")
    if prefetch is not None and prefetch not in PREFETCHES:
        raise BadRequest(f"prefetch is {' or '.join(PREFETCHES)}, not {prefetch!r}")
    if disk_bytes is not None and disk_bytes < 1:
        raise BadRequest(f"disk_bytes {disk_bytes} must be positive")
    if disk_folder is not None and not disk_folder.is_dir():
        raise BadRequest(f"no folder {str(disk_folder)!r} for the disk tier")
    if scoring is not None and scoring not in SCORINGS:
        raise BadRequest(f"scoring is {', '.join(SCORINGS)}, not {scoring!r}")
    clock = Clock(model.device)
    device, host = Pool("device", device_memory_bytes), Pool("host", host_memory_bytes)
    disk = None if disk_bytes is None and disk_folder is None else DiskTier(Pool("disk", disk_bytes), disk_folder)
    around = Surroundings(model, clock, device, host, open_link(link, model.device, clock), disk)
    device.charge("weights", model.weights_bytes)
    arena = arena_tokens or _arena_tokens(model, device)

    def paged() -> Engine:
        cache = PagedCache(around, PagedKnobs(arena, prefix_sharing))
        return Engine("vllm", cache, chunk_tokens or CHUNK_TOKENS, open_graphs(model.device, clock, graphs))

    def h2o(id: str) -> Engine:
        plus = id == "h2o+"
        way = prefill or (PLUS_PREFILL if plus else PREFILLS[id][0])
        scored = scoring or (PLUS_SCORING if plus else "eager" if way == "eager" else "flash")
        if way == "eager" and scored != "eager":
            way = "flash"  # scores that are never there cannot be what a prompt's attention is made of
        knobs = H2OKnobs(
            budget,
            arena,
            heavy_share if heavy_share is not None else PLUS_HEAVY_SHARE if plus else HEAVY_SHARE,
            prefill=way,
            scoring=scored,
            anchors=anchors if anchors is not None else ANCHORS if plus else 0.0,
            budget_tokens=budget_tokens,
        )
        chunk = chunk_tokens or (CHUNKED_TOKENS if way.startswith("chunked") else CHUNK_TOKENS)
        return Engine(id, H2OCache(around, knobs), chunk, open_graphs(model.device, clock, graphs))

    def infinigen(id: str) -> Engine:
        ahead = prefetch or ("predictive" if id == "infinigen+" else "off")
        spread = {} if alpha is None else {"alpha": alpha}
        knobs = InfiniGenKnobs(
            budget,
            partial_ratio=partial_ratio,
            victim=victim,
            prefill=prefill if prefill in PREFILLS[id] else PREFILLS[id][0],
            prefetch=ahead,
            resident=resident,
            resident_tokens=resident_tokens,
            **spread,
        )
        cache = (InfiniGenPlusCache if ahead == "predictive" else InfiniGenCache)(around, knobs)
        return Engine(id, cache, chunk_tokens or CHUNK_TOKENS)

    match id:
        case "vllm":
            return paged()
        case "h2o" | "h2o+":
            return h2o(id)
        case "infinigen" | "infinigen+":
            return infinigen(id)
    return HybridEngine([paged(), h2o("h2o+"), infinigen("infinigen+"), infinigen("infinigen")])


def create_racer(id: str, model: Model, *, server: str | None = None, **knobs: Any) -> AnyEngine | ServerEngine:
    """As `create_engine`; or, for "vllm-server", the column of the one at `server`, with the key that the environment
    has for it. The knobs are the engines' here: a server has its own."""
    if id == events.SERVER and server is not None:
        return ServerEngine(model, server, key=os.environ.get(KEY_VARIABLE, ""))
    return create_engine(id, model, **knobs)


def _arena_tokens(model: Model, device: Pool) -> int:
    """KV slots of an arena: four contexts' worth, if the cap (or the GPU) has room for them. On a CPU, memory that is
    never touched costs nothing."""
    wanted = 4 * model.context_limit
    room = None
    if device.cap_bytes is not None:
        room = device.cap_bytes - device.used_bytes
    elif model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
        room = free // 4
    if room is not None:
        wanted = min(wanted, max(16, room // model.kv_bytes_per_token))
    return wanted
