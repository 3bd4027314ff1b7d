"""Planned bytes against what real engines charge to their pools, and against figures worked out by hand."""

from __future__ import annotations

import pytest
import torch

import engines
from engines.decoder import Decoder
from engines.importance import TILE_COLUMNS, TILE_ROWS, tile_bytes
from engines.memory import BLOCK_TOKENS
from engines.parameters import normalised
from engines.random_weights import random_tensors
from engines.shape import read_shape
from probes.plan import footprint as plan
from probes.plan.footprint import Request, footprint
from probes.plan.planned_model import of_config, planned_model
from tests.tiny import CONFIGS, prompt, tiny

FAMILIES = ("llama", "opt")
NEW = 40
WAYS = [
    ("vllm", "flash"),
    ("h2o", "eager"),
    ("h2o", "flash"),
    ("h2o", "chunked"),
    ("infinigen", "eager"),
    ("infinigen", "flash"),
]


def charged(engine_id: str, model: engines.Model, way: str, request: Request) -> tuple[dict[str, int], int, int]:
    """The device pool's peaks by kind, its peak, and the host pool's."""
    engine = engines.create_engine(
        engine_id, model, budget=request.budget, prefill=way, partial_ratio=request.partial_ratio, arena_tokens=1 << 11
    )
    for sequence in range(request.batch):
        ids = prompt(request.context, seed=sequence)
        engine.submit(sequence, ids, request.new_tokens, ignore_eos=True)
    while engine.has_work:
        engine.advance()
    return dict(engine.device_pool.peak_by_kind), engine.device_pool.peak_bytes, engine.host_pool.peak_bytes


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("engine_id", "way"), WAYS)
@pytest.mark.parametrize(("context", "batch", "budget"), [(700, 1, 0.3), (100, 3, 0.5)])
def test_the_plan_is_what_the_engine_charges(family, engine_id, way, context, batch, budget) -> None:
    if way == "chunked":
        batch = 1  # prompts that come together share pieces; one at a time is what is planned
    model = tiny(family)[0]
    request = Request(engine_id, context, NEW, batch, budget, way)
    planned = footprint(of_config(family, model.config, 4), request, fused=False)
    peaks, device_bytes, host_bytes = charged(engine_id, model, way, request)
    for kind in ("kv", "importance", "scores", "layer KV", "score tiles", "staging", "partial keys", "skew matrices"):
        if kind in planned.device:
            assert planned.device[kind] == peaks[kind], kind
    assert planned.charged_bytes - planned.device["weights"] == device_bytes - model.weights_bytes
    assert planned.host_bytes == host_bytes
    assert set(peaks) - set(planned.device) <= {"speculation"}  # smaller than what prefill took


@pytest.mark.parametrize("family", CONFIGS)
def test_weights_of_every_family(family) -> None:
    """Within a per cent: OPT's last bias is not counted by the engines."""
    device = torch.device("cpu")
    config = normalised(CONFIGS[family])
    decoder = Decoder(read_shape(config), random_tensors(config, device, torch.float32), device, torch.float32)
    assert of_config(family, config, 4).weights_bytes == pytest.approx(decoder.weights_bytes, rel=0.01)


def test_bfloat16_weights_on_a_cpu() -> None:
    """Stored in 16 bits and computed in 32: partial weights are wide."""
    model = tiny("llama", dtype=torch.bfloat16)[0]
    for engine_id, way in WAYS:
        request = Request(engine_id, 300, NEW, 1, 0.3, way)
        planned = footprint(of_config("llama", CONFIGS["llama"], 2, wide=4), request, fused=False)
        assert planned.charged_bytes == pytest.approx(charged(engine_id, model, way, request)[1], rel=0.01), engine_id


def test_constants_are_the_engines() -> None:
    assert plan.BLOCK_TOKENS == BLOCK_TOKENS
    assert (TILE_ROWS, TILE_COLUMNS) == (256, 2048)
    model = of_config("llama", CONFIGS["llama"], 4)
    for rows, length in ((100, 300), (3000, 5000)):
        cpu = torch.device("cpu")
        assert plan._tile_bytes(model, rows, length, False) == tile_bytes(6, 2, rows, length, cpu)


def test_llama_2_7b_by_hand() -> None:
    """32 layers, 32 heads of 128, 16 bits: 2·32·32·128·2 B of KV a token."""
    model = planned_model("llama-2-7b")
    assert model.token_bytes == 524_288
    assert model.parameters == 6_738_415_616
    assert model.layer_parameters == 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert model.head_parameters == 32000 * 4096
    # 4,096 tokens and 17 more, of which the last is never stored: 4,112 slots in 257 blocks.
    paged = footprint(model, Request("vllm", 4096, 17))
    assert paged.device["kv"] == 4112 * 524_288
    assert paged.device["weights"] == 2 * 6_738_415_616
    # 0.3 · 4096 / 16 = 76.8 blocks, the nearest number is 77: 1,232 slots.
    h2o = footprint(model, Request("h2o", 4096, 17, prefill="eager"))
    assert h2o.device["kv"] == 1232 * 524_288
    assert h2o.device["importance"] == 32 * 32 * 1232 * 12
    assert h2o.device["scores"] == 4 * 32 * 4096**2 == 2_147_483_648
    infinigen = footprint(model, Request("infinigen", 4096, 17))
    assert infinigen.host["kv"] == 4160 * 524_288  # rounded up to 64
    assert infinigen.device["partial keys"] == 32 * 32 * 38 * 4160 * 2  # 0.3 · 128 = 38.4 columns
    assert infinigen.device["staging"] == (4161 + 1248 + 1) * 16_384


def test_grouped_queries_count_kv_heads_once() -> None:
    assert planned_model("llama-3-8b").token_bytes == 2 * 32 * 8 * 128 * 2
    assert planned_model("llama-3.1-70b").token_bytes == 2 * 80 * 8 * 128 * 2
    assert planned_model("llama-3.1-70b").parameters == 70_553_706_496
    assert planned_model("llama-2-70b").parameters == 68_976_648_192


def test_published_scores_by_hand() -> None:
    """Of Llama 2 7B at 10,000 tokens: 8 B for each of 32 heads' scores and 2 B for the mask; 4 B a score."""
    model = planned_model("llama-2-7b", "float16")
    assert plan.published_scores(model, Request("h2o", 10_000, 1)) == (8 * 32 + 2) * 10**8
    assert plan.published_scores(model, Request("infinigen", 10_000, 1, batch=4)) == 4 * 4 * 32 * 10**8
