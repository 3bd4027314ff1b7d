"""8-bit weights: how they are stored, the kernels against the weights that they store, and models that run on them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

import engines
from engines import int8, kernels
from engines.commands import WorkerConfig
from engines.decoder import Decoder
from engines.errors import BadRequest
from engines.forward import whole
from engines.int8 import GROUP, Int8Weight, quantise
from engines.knobs import check_knobs
from engines.model import Model
from tests.test_kernels import assert_near, needs_library, normed, threads
from tests.tiny import prompt, tiny


@pytest.fixture(params=[pytest.param("native", marks=needs_library), "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    torch.manual_seed(0)
    monkeypatch.setattr(kernels, "use_native", request.param == "native")
    monkeypatch.setattr(kernels, "bfloat16_units", False)
    with threads(1):
        yield request.param


def widened(weight: Int8Weight) -> Tensor:
    return weight.widen(torch.empty(weight.shape))


def assert_product(got: Tensor, x: Tensor, stored: Int8Weight, beside: Tensor | float = 0.0) -> None:
    """x [T, in] weight [out, in]ᵀ + beside, but for what whole numbers of 14 bits may lose: half a step an element."""
    width, weight = x.shape[1], widened(stored).double()
    padded = torch.nn.functional.pad(x, (0, -width % GROUP))
    steps = padded.view(len(x), -1, GROUP).abs().amax(-1) / 8191
    scaled = (stored.codes * stored.scales[..., 0].float().repeat_interleave(GROUP, 1))[:, :width]
    lost = 0.51 * steps.repeat_interleave(GROUP, 1)[:, :width].double() @ scaled.double().abs().T
    wanted = x.double() @ weight.T + beside
    assert got.shape == wanted.shape
    assert ((got - wanted).abs() <= lost + 2e-5 * wanted.abs().max().clamp_min(1)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("height", "width"), [(7, 576), (3, 50), (1, 1), (2, 32), (5, 65)])
@pytest.mark.parametrize("lopsided", [0.0, 0.1])
def test_every_weight_is_near_what_is_stored(height: int, width: int, dtype: torch.dtype, lopsided: float) -> None:
    """Half a step, and a quarter at most that bfloat16 takes from the scale at its end, and another from the offset."""
    weight = torch.randn(height, width, generator=torch.Generator().manual_seed(0)).mul_(0.05).add_(lopsided).to(dtype)
    stored, groups = quantise(weight), -(-width // GROUP)
    assert stored.shape == (height, width)
    assert stored.codes.shape == (height, groups * GROUP)
    assert stored.nbytes == height * groups * (GROUP + 4)
    off = (widened(stored) - weight.float()).abs()
    for group in range(groups):
        columns = slice(group * GROUP, min((group + 1) * GROUP, width))
        step = weight[:, columns].float().abs().amax(1, keepdim=True) / 127
        assert (off[:, columns] <= 1.01 * step).all()


def test_weights_of_the_common_gguf_blocks_are_kept() -> None:
    """Q8_0: whole multiples of a scale, to 127. Q4_1: sixteen steps from a least value. Steps here are bfloat16's."""
    torch.manual_seed(0)
    q8_0 = torch.randint(-127, 128, (6, 4, GROUP)).float()
    q8_0[..., 0] = 127
    q4_1 = torch.randint(0, 16, (6, 4, GROUP)).float()
    q4_1[..., :2] = torch.tensor([0.0, 15.0])
    q4_1 = q4_1 * 17 - 128
    for blocks in (q8_0, q4_1):
        weight = (blocks * 2.0 ** torch.randint(-14, -6, (6, 4, 1))).flatten(1)
        assert torch.equal(widened(quantise(weight)), weight)
    assert torch.equal(quantise(q8_0.flatten(1)).codes, q8_0.flatten(1).to(torch.int8))


def test_groups_of_one_value_are_kept() -> None:
    weight = torch.zeros(3, 3 * GROUP)
    weight[1], weight[2] = 0.25, -(2.0**-30)
    assert torch.equal(widened(quantise(weight)), weight)


def test_large_weights_are_stored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(37, 200)
    at_once = quantise(weight)
    monkeypatch.setattr(int8, "_ROW_ELEMENTS", 5 * 224)
    in_parts = quantise(weight)
    assert torch.equal(in_parts.codes, at_once.codes)
    assert torch.equal(in_parts.scales, at_once.scales)


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 16, 17, 40])
@pytest.mark.parametrize(("width", "height"), [(576, 960), (64, 7), (1536, 101), (48, 8), (2560, 6), (50, 9), (80, 1)])
def test_products(path: str, rows: int, width: int, height: int) -> None:
    x, stored = torch.randn(rows, width), quantise((torch.randn(height, width) + 1).bfloat16())
    x[:, width // 3] *= 40  # real activations have such columns
    bias, norm = torch.randn(height), torch.rand(width)
    assert_product(kernels.linear(x, stored), x, stored)
    assert_product(kernels.linear(x, stored, bias.bfloat16()), x, stored, bias.bfloat16())
    residual = torch.randn(rows, height)
    before = residual.clone()
    assert kernels.add_linear(residual, x, stored, bias) is residual
    assert_product(residual, x, stored, before + bias)
    assert_product(kernels.norm_linear(x, norm, 1e-5, stored, bias), normed(x, norm, 1e-5), stored, bias)


@pytest.mark.parametrize("rows", [1, 3, 16, 40])
@pytest.mark.parametrize(("width", "ffn"), [(576, 1536), (64, 176), (48, 80)])
def test_gated_mlp(path: str, rows: int, width: int, ffn: int) -> None:
    residual, norm = torch.randn(rows, width), torch.rand(width)
    gate_up, down = quantise(torch.randn(2 * ffn, width) * 4 / width**0.5), quantise(torch.randn(width, ffn) / ffn**0.5)
    gate, up = (normed(residual, norm, 1e-5) @ widened(gate_up).T).chunk(2, -1)
    wanted = residual + (silu(gate) * up) @ widened(down).T
    assert kernels.gated_mlp(residual, norm, 1e-5, gate_up, down) is residual
    assert_near(residual, wanted, 1e-3)


@needs_library
@pytest.mark.parametrize("count", [2, 5])
def test_any_number_of_threads_gives_the_same_bits(count: int) -> None:
    torch.manual_seed(1)
    x, norm = torch.randn(3, 576), torch.rand(576)
    up, down = quantise(torch.randn(3072, 576)), quantise(torch.randn(576, 1536))

    def all_of_them() -> list[Tensor]:
        wide = int8.widen(up, torch.empty(up.shape))
        return [kernels.linear(x, up), kernels.gated_mlp(x.clone(), norm, 1e-5, up, down), wide]

    with threads(1):
        alone = all_of_them()
    with threads(count):
        for one, other in zip(alone, all_of_them(), strict=True):
            assert torch.equal(one, other)


@needs_library
def test_the_largest_codes_and_activations_do_not_overflow(path: str) -> None:
    weight = torch.full((5, 4096), -3.0)
    weight[:, ::GROUP] = 0  # so that it is the codes that tell the others' value
    stored, x = quantise(weight), torch.full((1, 4096), 2.0)
    assert stored.codes.min() <= -127
    assert_product(kernels.linear(x, stored), x, stored)
    assert not kernels.linear(torch.zeros(1, 4096), stored).any()


@needs_library
@pytest.mark.parametrize("width", [1, 7, 50, 64, 100, 576])
def test_widening_in_c_is_the_same_as_in_torch(width: int) -> None:
    stored = quantise(torch.randn(67, width))[3:60]
    torch.testing.assert_close(int8.widen(stored, torch.empty(57, width)), widened(stored), rtol=1e-6, atol=1e-7)


def test_rows_and_parts_of_a_weight() -> None:
    stored = quantise(torch.randn(20, 100))
    ids = torch.tensor([3, 19, 3])
    assert torch.equal(kernels.gather_rows(stored, ids), widened(stored)[ids])
    assert torch.equal(widened(stored[5:12]), widened(stored)[5:12])
    assert stored[5:12].codes.data_ptr() == stored.codes.data_ptr() + 5 * 4 * GROUP


def test_bfloat16_units_take_over_the_prefill(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "bfloat16_units", True)
    x, stored, residual = torch.randn(20, 64), quantise(torch.randn(48, 64)), torch.randn(20, 48)
    wanted = x @ widened(stored).T
    assert_near(kernels.linear(x, stored), wanted, 2e-2)
    assert_near(kernels.add_linear(residual.clone(), x, stored), residual + wanted, 2e-2)


def both(family: str) -> tuple[Model, Model]:
    """A tiny model in 8 bits; and one in float32, with the very weights that the first one stores."""
    _, theirs = tiny(family)
    plain, _ = tiny(family)
    tensors = {name: tensor.detach().clone() for name, tensor in theirs.state_dict().items()}
    if plain.config.get("tie_word_embeddings"):
        del tensors["lm_head.weight"]
    rounded = {
        name: widened(quantise(tensor)) if tensor.dim() == 2 and "positions" not in name else tensor.clone()
        for name, tensor in tensors.items()
    }
    made = []
    for weights, in_8_bits in ((tensors, True), (rounded, False)):
        decoder = Decoder(plain.shape, weights, plain.device, torch.float32, in_8_bits)
        made.append(Model(plain.name, None, plain.config, plain.shape, decoder, plain.tokenizer, plain.device,
                          torch.float32, set()))  # fmt: skip
    return made[0], made[1]


@pytest.mark.parametrize("family", ["llama-mha", "smollm2", "qwen3", "opt"])
@pytest.mark.parametrize(("engine_id", "knobs"), [
    ("vllm", {}), ("h2o", {"budget": 0.5}), ("infinigen", {"budget": 0.5}), ("infinigen", {"prefetch": "predictive"})
])  # fmt: skip
def test_every_engine_on_what_the_weights_store(path: str, family: str, engine_id: str, knobs: dict) -> None:
    model, reference = both(family)
    ids, more = prompt(40), prompt(6, seed=1)
    logits = []
    for each in (model, reference):
        engine = engines.create_engine(engine_id, each, **knobs)
        engine.generate(ids, 0)
        logits.append(engine.continue_logits(more, rows=6))
    spread = logits[1].std()
    assert (logits[0] - logits[1]).abs().max() < 0.02 * spread


def test_the_pool_is_charged_what_they_take() -> None:
    model, reference = both("smollm2")
    # Hidden 48 and heads of 8: 2 groups a row; ffn 80: 3 groups. Tied embeddings are there once.
    groups = 2 * 97 + 3 * (2 * (48 + 2 * 16 + 48 + 2 * 80) + 3 * 48)
    norms = 4 * 48 * (3 * 2 + 1)
    assert model.weights_bytes == 36 * groups + norms
    engine = engines.create_engine("vllm", model)
    assert engine.device_pool.bytes_by_kind["weights"] == model.weights_bytes < reference.weights_bytes / 2
    assert (model.weights, reference.weights) == ("int8", "")


def test_they_are_refused_where_they_do_not_apply() -> None:
    with pytest.raises(BadRequest, match="are for a CPU, and the device is cuda:0"):
        engines.load_model(device=torch.device("cuda:0"), weights="int8")
    with pytest.raises(BadRequest, match="not with float16"):
        engines.load_model(device="cpu", dtype="float16", weights="int8")
    with pytest.raises(BadRequest, match="auto or int8, not 'int4'"):
        engines.load_model(device="cpu", weights="int4")
    with pytest.raises(BadRequest, match="auto or int8, not 'int4'"):
        check_knobs(WorkerConfig(weights="int4"))


class Plain:
    """Causal attention over all that came before, with 16-bit keys and values as a cache has them."""

    def __init__(self, model: Model) -> None:
        self.scale, self.held = model.shape.scale, [[] for _ in range(model.layers)]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        self.held[layer].append((k.transpose(0, 1).bfloat16(), v.transpose(0, 1).bfloat16()))
        keys, values = (torch.cat(parts, 1) for parts in zip(*self.held[layer], strict=True))
        out, _ = kernels.flash_attention(q, keys, values, self.scale)
        return out.reshape(len(q), -1)


def perplexity(model: Model, ids: list[int], chunk: int) -> float:
    cache, lost = Plain(model), 0.0
    for start in range(0, len(ids) - 1, chunk):
        part = torch.tensor(ids[start : min(start + chunk, len(ids) - 1)])
        targets = torch.tensor(ids[start + 1 : start + 1 + len(part)])
        hidden = whole(model.decoder.forward(part, torch.arange(start, start + len(part)), cache))
        for rows, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            lost += torch.nn.functional.cross_entropy(model.decoder.logits(rows), wanted, reduction="sum").item()
    return math.exp(lost / (len(ids) - 1))


@pytest.fixture(scope="module")
def smollm2_int8() -> Model:
    return engines.load_model("smollm2-135m", device="cpu", weights="int8")


def document(model: Model, tokens: int) -> list[int]:
    text = Path("probes/data/prose.txt").read_text(encoding="utf-8")
    ids = model.tokenizer.encode(text)
    assert len(ids) >= tokens
    return ids[:tokens]


@pytest.mark.parametrize("chunk", [48, pytest.param(16, marks=needs_library)])
def test_a_real_text_is_as_likely_as_in_16_bits(smollm2_bf16, smollm2_int8, chunk: int) -> None:
    """In chunks of 16 the C kernels compute, in longer ones widened weights."""
    with torch.inference_mode():
        ids = document(smollm2_int8, 97)
        assert perplexity(smollm2_int8, ids, chunk) < 1.01 * perplexity(smollm2_bf16, ids, chunk)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", [512, pytest.param(16, marks=needs_library)])
def test_a_real_document_is_as_likely_as_in_16_bits(smollm2_bf16, smollm2_int8, chunk: int) -> None:
    with torch.inference_mode():
        ids = document(smollm2_int8, 4096)
        ratio = perplexity(smollm2_int8, ids, chunk) / perplexity(smollm2_bf16, ids, chunk)
    print(f"perplexity, 8-bit to 16-bit weights, in chunks of {chunk}: {ratio:.5f}")
    assert ratio < 1.01


def test_nine_sixteenths_of_the_bytes(smollm2_bf16, smollm2_int8) -> None:
    assert 0.56 < smollm2_int8.weights_bytes / smollm2_bf16.weights_bytes < 0.57
    engine = engines.create_engine("vllm", smollm2_int8)
    answer = engine.generate(smollm2_int8.tokenizer.encode("The capital of France is"), 4).tokens
    assert smollm2_int8.tokenizer.decode(answer).strip().startswith("Paris")
