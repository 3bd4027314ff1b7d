"""Which kernel decodes: flash-attn's where it takes our blocks, else Triton's, else torch; with stand-ins for both."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engines import fused_decode, kernels

SCALE = 0.3


class Package:
    """flash-attn's `flash_attn_with_kvcache`, in torch, for pages of `page` slots and their multiples."""

    def __init__(self, page: int, argument: str, off: float = 0.0) -> None:
        self.page, self.argument, self.off = page, argument, off
        self.calls: list[bool] = []  # of each, whether there was a table

    def __call__(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, *, cache_seqlens: Tensor, softmax_scale: float, **more: Any
    ) -> Tensor:
        tables = more.pop(self.argument, None)
        assert not more
        assert cache_seqlens.dtype == torch.int32
        assert k_cache.stride(-1) == v_cache.stride(-1) == 1
        self.calls.append(tables is not None)
        if tables is not None and k_cache.shape[1] % self.page:
            raise RuntimeError(f"Paged KV cache block size must be divisible by {self.page}")
        assert tables is not None or len(q) == len(k_cache)
        outs = []
        for b, length in enumerate(cache_seqlens.tolist()):
            k, v = (
                (t[tables[b].long()].flatten(0, 1) if tables is not None else t[b])[:length] for t in (k_cache, v_cache)
            )
            group = q.shape[2] // k.shape[1]
            k, v = (t.float().repeat_interleave(group, 1) for t in (k, v))
            shares = torch.softmax(torch.einsum("hd,nhd->hn", q[b, 0].float(), k) * softmax_scale, -1)
            outs.append(torch.einsum("hn,nhd->hd", shares, v) + self.off)
        return torch.stack(outs).to(q.dtype).unsqueeze(1)


@pytest.fixture(autouse=True)
def _torch_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "use_native", False)
    found = fused_decode._flash, fused_decode._triton
    for cached in found:
        cached.cache_clear()
    yield
    for cached in found:
        cached.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, **packages: Package) -> None:
    """These modules of flash-attn and no others, and trials on the CPU."""
    for name, _ in fused_decode._PACKAGES:
        module = ModuleType(name)
        if name in packages:
            module.flash_attn_with_kvcache = packages[name]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module if name in packages else None)
    works = fused_decode.works
    monkeypatch.setattr(fused_decode, "works", lambda attend, kind, *given: works(attend, "cpu", *given))


def ask(slots: int = 16, groups: int = 2, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    keys, values = (torch.randn(5, groups, slots, 32).to(dtype) for _ in range(2))
    tables = torch.tensor([[4, 1], [0, 3]], dtype=torch.int32)
    return torch.randn(2, 4, 32).to(dtype), keys, values, tables, torch.tensor([slots + 3, 2])


def test_version_three_takes_our_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    three, two = Package(1, "page_table"), Package(256, "block_table")
    install(monkeypatch, flash_attn_interface=three, flash_attn=two)
    attend = fused_decode._flash("cuda", torch.bfloat16, 16)
    assert attend is not None
    assert (three.calls, two.calls) == ([True], [])
    given = ask()
    torch.testing.assert_close(
        attend(*given, SCALE).float(), kernels.decode_attention(*given, SCALE).float(), rtol=2e-2, atol=2e-2
    )


def test_version_two_does_not_take_them_but_takes_kv_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Package(256, "block_table")
    install(monkeypatch, flash_attn=two)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a known limit is no fault
        assert fused_decode._flash("cuda", torch.bfloat16, 16) is None
    assert fused_decode._flash("cuda", torch.bfloat16, 256) is not None
    attend = fused_decode._flash("cuda", torch.bfloat16, None)
    assert attend is not None
    q, keys, values, tables, _ = ask()
    alone = q[:1], keys[:1], values[:1], tables[:1, :1] * 0, torch.tensor([9])
    found = attend(*alone[:3], None, alone[4], SCALE)
    torch.testing.assert_close(found.float(), kernels.decode_attention(*alone, SCALE).float(), rtol=2e-2, atol=2e-2)


def test_one_that_is_wrong_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flash_attn_interface=Package(1, "page_table", off=0.1))
    assert fused_decode._flash("cuda", torch.bfloat16, 16) is None
    assert fused_decode._flash("cuda", torch.bfloat16, None) is None


def test_neither_on_a_cpu_nor_for_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flash_attn_interface=Package(1, "page_table"))
    assert fused_decode._flash("cpu", torch.bfloat16, 16) is None
    assert fused_decode._flash("cuda", torch.float32, 16) is None
    assert fused_decode._triton("cpu") is None
    assert fused_decode.fused_decode(*ask(), SCALE, None) is None


def test_who_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mass, single entries and other dtypes are Triton's; one block of one sequence goes without a table."""
    asked: list[str] = []

    def flash(kind: str, dtype: torch.dtype, slots: int | None) -> Any:
        def attend(q: Tensor, *given: Any) -> Tensor:
            asked.append(f"flash {slots} {given[2] is not None}")
            return q

        return attend

    def ours(q: Tensor, *given: Any) -> Tensor:
        asked.append("triton")
        return q

    monkeypatch.setattr(fused_decode, "_flash", flash)
    monkeypatch.setattr(fused_decode, "_triton", lambda kind: SimpleNamespace(decode_attention=ours))
    given = ask()
    kernels.decode_attention(*given, SCALE)
    kernels.decode_attention(*given, SCALE, torch.empty(2, 2, 19))
    kernels.decode_attention(*ask(slots=1), SCALE)
    kernels.decode_attention(given[0].float(), *given[1:], SCALE)
    q, keys, values, tables, lengths = given
    kernels.decode_attention(q[:1], keys[:1], values[:1], tables[:1, :1], lengths[1:], SCALE)
    assert asked == ["flash 16 True", "triton", "triton", "triton", "flash None False"]


def test_a_broken_triton_is_told_of_once_and_torch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Tensor:
        raise RuntimeError("ptxas: no such file")

    pytest.importorskip("triton", reason="Triton is not installed (it is made for Linux only)")
    from engines import triton_decode

    monkeypatch.setattr(triton_decode, "decode_attention", broken)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, device=None, **more: zeros(*shape, **more))
    tensor = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda data, device=None, **more: tensor(data, **more))
    with pytest.warns(UserWarning, match="without Triton, more slowly: ptxas") as seen:
        assert [fused_decode._triton("cuda") for _ in range(2)] == [None, None]
    assert len(seen) == 1
