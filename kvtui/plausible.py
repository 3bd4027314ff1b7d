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
LARGEST_BYTES = 1 << 50
FASTEST_BYTES_PER_S = 1e14
MOST = 1 << 28  # tokens, heads, prompts
CELLS = 1 << 25  # of one picture; 128 layers of 131,072 tokens are half of it
LAYERS = 1 << 12
GPUS = 64  # and slices
LABEL_CHARACTERS = 48
LARGEST_KNOB = 1e9
ROUNDING = 1e-3  # of a difference of two clocks that should be 0
_ENGINE = re.compile(r"[A-Za-z0-9_+.-]{0,32}")
_SHARES = {"waste", "hit_rate", "kv_usage", "kv_usage_peak", "prefix_hit_share", "fraction"}
_BELOW = {  # of floats; what is no share, no time and not here is a size
    "busy_percent": 101.0,
    "worker_cpu_percent": 100.0 * 4096 + 1,
    "face_cpu_percent": 100.0 * 4096 + 1,
    "host_cpu_percent": 100.0 * 4096 + 1,
    "power_w": 1e5,
    "power_limit_w": 1e5,
    "temperature_c": 1000.0,
    "bytes_per_s": FASTEST_BYTES_PER_S,
    "decode_tok_s": 1e6,
    "worker_page_faults_per_s": 1e9,
    "fetched_tokens": float(MOST),
    "evicted_tokens": float(MOST),
}


def check(event: events.AnyEvent) -> None:
    """Raises ValueError, in a few words, for an event that no run can have sent."""
    _check_struct(event)
    match event:
        case events.RunStarted():
            _demand(event.layers <= LAYERS and event.kv_heads <= LAYERS, "the model's shape")
            _demand(len(event.engines) <= MOST_ENGINES and all(e.id for e in event.engines), "the engines")
            for engine in event.engines:
                _demand(len(engine.label) <= LABEL_CHARACTERS, "an engine's label")
                for name, value in engine.knobs.items():
                    _check_knob(name, value)
        case events.Prefill():
            _demand(event.tokens_done <= event.tokens_total and event.layers_done <= event.layers_total, "the prefill")
            _demand(event.tokens_total > 0 and event.layers_total > 0, "the prefill")
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
        elif name in _SHARES:
            _demand(-ROUNDING <= value <= 1 + ROUNDING, name)
        else:
            least = -274.0 if name == "temperature_c" else -ROUNDING
            _demand(least <= value < _BELOW.get(name, LONGEST_S if name.endswith("_s") else LARGEST_BYTES), name)
    elif isinstance(value, bool):
        return
    elif isinstance(value, int):
        if name.endswith("bytes_per_s"):
            below = FASTEST_BYTES_PER_S
        elif name.endswith("_hz"):
            below = 1e12
        else:
            below = LARGEST_BYTES if "bytes" in name else 1 << 31 if name == "token_id" else MOST
        _demand(-1 <= value < below, name)
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


def _check_knob(name: str, value: str | float | int | bool | None) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _demand(0 <= value <= 1 if name == "budget" else abs(value) <= LARGEST_KNOB, "a knob")


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} cannot be")
