"""Whether an event can have happened. A trace may hold anything: a time that is no number, or a size beyond all memory,
would stop a replay's clock or take the whole machine."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from engines import events
from kvtui.state import MOST_ENGINES

LONGEST_S = 1e7
LARGEST_BYTES = 1 << 53
MOST = 1 << 28  # tokens, heads, prompts
CELLS = 1 << 25  # of one picture; 128 layers of 131,072 tokens are half of it
LAYERS = 1 << 12
GPUS = 1024
ROUNDING = 1e-3  # of a difference of two clocks that should be 0
_ENGINE = re.compile(r"[A-Za-z0-9_+.-]{0,32}")
_RATES = ("bytes_per_s", "decode_tok_s")


def check(event: events.AnyEvent) -> None:
    """Raises ValueError, in a few words, for an event that no run can have sent."""
    _check_struct(event)
    match event:
        case events.RunStarted():
            _demand(event.layers <= LAYERS and event.kv_heads <= LAYERS, "the model's shape")
            _demand(len(event.engines) <= MOST_ENGINES and all(e.id for e in event.engines), "the engines")
        case events.Cache():
            _demand(event.layers <= LAYERS and event.layers * event.tokens <= CELLS, "the cache's shape")
            _demand(event.layers * event.mass_bins <= CELLS, "the cache's shape")
        case events.Heads():
            _demand(event.layer <= LAYERS and event.kv_heads * event.tokens <= CELLS, "the layer's shape")


def _check_struct(item: msgspec.Struct) -> None:
    for name in item.__struct_fields__:
        _check(name, getattr(item, name))


def _check(name: str, value: Any) -> None:
    if isinstance(value, float):
        if name == "logprob":  # of a token that had no chance, minus infinity
            _demand(not math.isnan(value) and value < MOST, name)
        elif name == "temperature_c":
            _demand(-274 < value < MOST, name)
        else:
            _demand(
                -ROUNDING <= value < (LONGEST_S if name.endswith("_s") and name not in _RATES else LARGEST_BYTES), name
            )
    elif isinstance(value, bool):
        return
    elif isinstance(value, int):
        large = "bytes" in name or name.endswith("_hz")
        _demand(-1 <= value < (LARGEST_BYTES if large else 1 << 31 if name == "token_id" else MOST), name)
        _demand(value >= 0 or name in ("request", "token_id"), name)
    elif name in ("engine", "id"):
        _demand(_ENGINE.fullmatch(value) is not None, name)
    elif name == "offsets":
        _demand(len(value) <= MOST and (not value or (min(value) >= 0 and max(value) <= MOST)), name)
    elif name == "engines":
        for info in value:
            _check("id", info.id)
    elif name == "gpus":
        _demand(len(value) <= GPUS, name)
        for gpu in value:
            _check_struct(gpu)
    elif isinstance(value, msgspec.Struct):
        _check_struct(value)
    elif isinstance(value, dict):  # bytes by kind
        for size in value.values():
            _check(name, size)


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} cannot be")
