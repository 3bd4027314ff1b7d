"""Seconds from bytes and operations: each part of a step takes as long as the slower of the two, and parts add up.

Williams et al., "Roofline: An Insightful Visual Performance Model", CACM 2009. What overlaps is followed on a timeline:
InfiniGen's fetches take their turns on the link, while the device computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.plan.footprint import BLOCK_TOKENS, BOUNDED_CHUNK, PAGED_CHUNK, Request, h2o_blocks
from probes.plan.planned_model import PlannedModel
from probes.plan.rates import Link, Rates

# Passes over all scores in float32, from engines.kernels: `eager_attention` writes them, scales, masks, subtracts,
# exponentiates and divides (two each), and reads them for maximum, sum, values and mass; `speculated` has no mask.
EAGER_PASSES, SPECULATION_PASSES = 15, 13
# Bytes a score of the published prefills (see footprint.published_scores), each operator's reads and writes.
PUBLISHED_TRAFFIC = {"h2o": 34, "infinigen": 12}
# Of H2O's running mass, a slot: the step's mass added (12), positions compared (9), a copy masked (9), its least (4).
EVICTION_BYTES = 34


@dataclass(frozen=True)
class Times:
    """Seconds to the last sequence's first token, of one decode step, and what that step waits for: for each of
    "bandwidth", "compute", "overhead" and "link", its part of `tpot_s`. `h2d_bytes`: over the link, a step."""

    ttft_s: float
    tpot_s: float
    parts: dict[str, float]
    h2d_bytes: float

    @property
    def bound(self) -> str:
        return max(self.parts, key=self.parts.__getitem__)


class _Step:
    """Adds up what the device does, and remembers what it was bound by."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.parts = {"bandwidth": 0.0, "compute": 0.0, "overhead": 0.0, "link": 0.0}

    def work(self, moved_bytes: float, bytes_per_s: float, operations: float = 0.0, flops: float = 1.0) -> None:
        memory_s, compute_s = moved_bytes / bytes_per_s, operations / flops
        self.add("bandwidth" if memory_s >= compute_s else "compute", max(memory_s, compute_s))

    def add(self, part: str, seconds: float) -> None:
        self.parts[part] += seconds
        self.now_s += seconds

    def wait_until(self, moment_s: float) -> None:
        self.add("link", max(0.0, moment_s - self.now_s))


def times(model: PlannedModel, request: Request, rates: Rates, link: Link) -> Times:
    """A step's context is that of the middle of the answer, so that `tpot_s` is the mean."""
    step = _Step()
    context = request.context + request.new_tokens / 2
    moved = _decode(step, model, request, rates, link, context)
    return Times(prefill_s(model, request, rates, link), step.now_s, step.parts, moved)


def decode_s(model: PlannedModel, request: Request, rates: Rates, link: Link, context: float) -> float:
    """One step of all sequences, each with so many tokens before it."""
    step = _Step()
    _decode(step, model, request, rates, link, context)
    return step.now_s


def _decode(step: _Step, model: PlannedModel, request: Request, rates: Rates, link: Link, context: float) -> float:
    shape, batch, engine = model.shape, request.batch, request.engine
    step.add("overhead", rates.step_s[engine])
    moved = 0.0
    if engine == "infinigen":
        moved = _fetching_layers(step, model, request, rates, link, context)
    else:
        entries, bytes_per_s = context + 1, rates.kv_bytes_per_s
        if engine == "h2o":
            entries, bytes_per_s = h2o_blocks(request) * BLOCK_TOKENS, rates.mass_bytes_per_s
            step.work(batch * EVICTION_BYTES * shape.layers * shape.kv_heads * entries, rates.copy_bytes_per_s)
        for _ in range(shape.layers):
            step.add("overhead", rates.layer_s[engine] + batch * rates.sequence_layer_s[engine])
            _linear(step, model, model.layer_parameters, batch, rates)
            _attend(step, model, batch * entries, bytes_per_s)
    _linear(step, model, model.head_parameters, batch, rates)
    return moved


def scored_bytes(model: PlannedModel, partial_ratio: float) -> int:
    """Of one key that InfiniGen's speculation looks at, in one layer: its columns, and the passes over its scores."""
    shape = model.shape
    width = max(1, round(partial_ratio * shape.head_dim))
    return shape.kv_heads * width * model.width + shape.heads * 4 * SPECULATION_PASSES


def _linear(step: _Step, model: PlannedModel, parameters: int, rows: int, rates: Rates) -> None:
    step.work(parameters * model.width, rates.weights_bytes_per_s, 2 * rows * parameters, rates.linear_flops)


def _attend(step: _Step, model: PlannedModel, entries: float, bytes_per_s: float) -> None:
    """One query of each sequence over so many entries of all of them. Nobody shares what a sequence reads, and H / G
    operations a byte are few: memory is the bound."""
    step.work(entries * model.layer_token_bytes, bytes_per_s)


def _fetching_layers(
    step: _Step, model: PlannedModel, request: Request, rates: Rates, link: Link, context: float
) -> float:
    """InfiniGen's layers: the first fetches everything; while one computes, the next one's selection is on its way.
    Sequences come one after the other, and so do their transfers; the published code takes all of a batch together.
    Returns the bytes that were moved."""
    shape, engine = model.shape, request.engine
    turns, together = (1, request.batch) if request.prefill == "published" else (request.batch, 1)
    batch = turns * together
    selected = max(1.0, request.budget * context)
    scored = context * scored_bytes(model, request.partial_ratio)
    before_attention = model.query_parameters + 2 * shape.kv_heads * shape.head_dim * shape.hidden
    link_free_s = moved = 0.0

    def fetch(entries: float) -> float:
        nonlocal link_free_s, moved
        size = together * entries * model.layer_token_bytes
        moved += size
        link_free_s = max(step.now_s, link_free_s) + link.seconds(size)
        return link_free_s

    arrivals = [fetch(context) for _ in range(turns)]
    for layer in range(shape.layers):
        step.add("overhead", rates.layer_s[engine])
        _linear(step, model, before_attention, batch, rates)
        coming, arrivals = arrivals, []
        for arrival in coming:
            step.add("overhead", rates.sequence_layer_s[engine])
            if layer + 1 < shape.layers:
                _linear(step, model, model.query_parameters, together, rates)
                step.work(together * scored, rates.speculation_bytes_per_s)
                arrivals.append(fetch(selected))
            step.wait_until(arrival)
            entries = (selected if layer else context) + 1
            _attend(step, model, together * entries, rates.kv_bytes_per_s)
        _linear(step, model, model.layer_parameters - before_attention, batch, rates)
    return moved


def prefill_s(model: PlannedModel, request: Request, rates: Rates, link: Link) -> float:
    """Until every sequence has its first token. Prompts go one after the other."""
    n = request.context
    chunk = {"vllm": PAGED_CHUNK, "h2o": BOUNDED_CHUNK if request.prefill == "chunked" else n}.get(request.engine, n)
    step = _Step()
    for start in range(0, n, chunk):
        _piece(step, model, request, rates, min(chunk, n - start), start)
    if request.engine == "infinigen":  # its entries leave while later layers compute
        step.wait_until(model.shape.layers * link.seconds(n * model.layer_token_bytes))
    return step.now_s * request.batch


def _piece(step: _Step, model: PlannedModel, request: Request, rates: Rates, rows: int, before: int) -> None:
    """`rows` of a prompt, behind `before` others."""
    shape, engine, way = model.shape, request.engine, request.prefill
    if engine == "h2o" and way == "chunked":
        before = min(before, h2o_blocks(request) * BLOCK_TOKENS)
    keys = before + rows
    heads = shape.heads * shape.head_dim
    step.add("overhead", rates.step_s[engine] + shape.layers * (rates.layer_s[engine] + rates.sequence_layer_s[engine]))
    _linear(step, model, model.layer_parameters * shape.layers, rows, rates)
    _linear(step, model, model.head_parameters, 1, rates)
    causal = shape.layers * heads * rows * (before + (rows + 1) / 2)
    square = shape.layers * heads * rows * keys
    read = shape.layers * keys * model.layer_token_bytes
    if way == "eager":
        scores = shape.layers * shape.heads * rows * keys
        step.work(EAGER_PASSES * 4 * scores, rates.copy_bytes_per_s)
        step.work(read, rates.kv_bytes_per_s, 4 * square, rates.float32_flops)
    elif way == "published":
        scores = shape.layers * shape.heads * rows * keys
        step.work(PUBLISHED_TRAFFIC[engine] * scores, rates.copy_bytes_per_s)
        step.work(read, rates.kv_bytes_per_s, 4 * square, rates.linear_flops)
    else:
        step.work(read, rates.kv_bytes_per_s, 4 * causal, rates.attention_flops)
        if engine == "h2o":  # every score once more, from the log-sum-exps
            step.work(read / 2, rates.kv_bytes_per_s, 2 * causal, rates.attention_flops)
