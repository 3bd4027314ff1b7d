"""What a person may turn, and how far. Light to import: a wrong knob is refused before any worker runs."""

from __future__ import annotations

import os

from engines.commands import WorkerConfig
from engines.errors import BadRequest
from engines.events import ENGINE_LABELS, SERVER
from engines.server_address import EXAMPLE, checked_address

# How each engine can compute a prompt's attention; the first is its default.
PREFILLS = {
    "vllm": ("flash",),
    "h2o": ("eager", "flash", "chunked", "chunked-exact"),
    "h2o+": ("chunked", "chunked-exact", "flash", "eager"),
    "infinigen": ("flash", "eager"),
    "infinigen+": ("flash", "eager"),
    "hybrid": ("chunked", "chunked-exact", "flash"),
    "vllm-server": (),
}
ANCHORS = 0.6  # of H2O's budget, where anchors are wanted and no share is given
SCORINGS = ("eager", "flash", "sampled")
PREFETCHES = ("off", "predictive")
WEIGHTS = ("auto", "int8")


def check_knobs(config: WorkerConfig) -> None:
    """Raises BadRequest for the first knob that no engine can serve."""
    if not config.engines:
        raise BadRequest(f"no engine to run; known are {', '.join(ENGINE_LABELS)}")
    for engine_id in config.engines:
        if engine_id not in ENGINE_LABELS:
            raise BadRequest(f'unknown engine "{engine_id}"; known are {", ".join(ENGINE_LABELS)}')
        if config.engines.count(engine_id) > 1:
            raise BadRequest(f'engine "{engine_id}" is named twice')
    if config.server is not None:
        checked_address(config.server)
    elif SERVER in config.engines:
        raise BadRequest(f'engine "{SERVER}" is a server elsewhere: its address goes with it, as in {EXAMPLE}')
    if not 0 < config.budget <= 1:
        raise BadRequest(f"the budget is a share above 0 and at most 1, not {config.budget:g}")
    if config.alpha is not None and not config.alpha > 0:
        raise BadRequest(f"alpha is above 0, not {config.alpha:g}")
    if config.prefill is not None and not any(config.prefill in PREFILLS[engine_id] for engine_id in config.engines):
        raise BadRequest(f"none of {', '.join(config.engines)} has a prefill called {config.prefill!r}")
    if config.scoring is not None and config.scoring not in SCORINGS:
        raise BadRequest(f"scoring is {', '.join(SCORINGS)}, not {config.scoring!r}")
    if config.anchors is not None and not 0 <= config.anchors < 1:
        raise BadRequest(f"the anchors' share of the budget is 0 or more and below 1, not {config.anchors:g}")
    if config.prefetch is not None and config.prefetch not in PREFETCHES:
        raise BadRequest(f"prefetch is {' or '.join(PREFETCHES)}, not {config.prefetch!r}")
    if config.resident is not None and not 0 < config.resident <= 1:
        raise BadRequest(f"what stays resident is a share above 0 and at most 1, not {config.resident:g}")
    if config.weights not in WEIGHTS:
        raise BadRequest(f"weights are {' or '.join(WEIGHTS)}, not {config.weights!r}")
    _check_disk(config)
    if config.max_new_tokens < 1:
        raise BadRequest(f"the number of new tokens is 1 or more, not {config.max_new_tokens}")
    if config.max_new_tokens >= 1 << 31:
        raise BadRequest(f"the number of new tokens is below 2^31, not {config.max_new_tokens}")
    if not 0 <= config.seed < 1 << 63:
        raise BadRequest(f"the seed is 0 or more (and below 2^63), not {config.seed}")
    if config.temperature != 0 and not 1e-3 <= config.temperature <= 1e3:
        raise BadRequest(f"the temperature is 0 (greedy) or within 0.001 .. 1000, not {config.temperature:g}")
    if not 0 < config.top_p <= 1:
        raise BadRequest(f"top-p is a share above 0 and at most 1, not {config.top_p:g}")
    for prompt in config.prompts:
        if prompt.max_new_tokens is not None and prompt.max_new_tokens < 1:
            raise BadRequest(f"the number of new tokens is 1 or more, not {prompt.max_new_tokens}")


def _check_disk(config: WorkerConfig) -> None:
    folder = config.disk_folder
    if config.disk_bytes is None and folder is None:
        return
    if folder is not None and not os.path.isdir(folder):
        raise BadRequest(f'the disk tier has no folder "{folder}" to be in')
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise BadRequest(f'the disk tier may not write to "{folder}"')
    if config.host_memory_bytes is None:
        raise BadRequest("the disk tier takes what a capped host memory has no room for: it needs --host-memory")
