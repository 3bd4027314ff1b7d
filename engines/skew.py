"""InfiniGen's offline step: an orthogonal matrix a KV head that gathers queries' energy in few columns.

Lee et al., "InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache Management",
OSDI 2024, 4.2. There the query and key weights are multiplied by it; with rotary embeddings the rotation stands between
weight and dot product, so here it is taken from queries after RoPE and applied after RoPE. Every dot product stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from importlib import resources
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engines import kernels, store
from engines.model import Model

CALIBRATION_TOKENS = 256


def skew(model: Model) -> Tensor:
    """float32 [layers, kv_heads, head_dim, head_dim], columns by falling energy; kept per model in the cache folder."""
    file = store.root() / "skew" / f"{_key(model)}.safetensors"
    try:
        return load_file(file)["skew"].to(model.device)
    except Exception:  # absent, damaged by an interrupted write elsewhere, unreadable: calibrate anew
        matrix = calibrate(model)
    _save(file, matrix.cpu())
    return matrix


def calibrate(model: Model) -> Tensor:
    """One prefill of the calibration text; per KV head the right singular vectors of its group's stacked queries."""
    text = resources.files("engines").joinpath("data/calibration.txt").read_text(encoding="utf-8")
    ids = model.tokenizer.encode(text, add_special_tokens=False)[: min(CALIBRATION_TOKENS, model.context_limit)]
    recorder = _Recorder(model)
    with torch.inference_mode():
        rows = torch.tensor(ids, device=model.device)
        for _ in model.decoder.forward(rows, torch.arange(len(ids), device=model.device), recorder):
            pass
        return torch.stack(recorder.rotations)


class _Recorder:
    """Plain causal attention that decomposes the queries on the way."""

    def __init__(self, model: Model) -> None:
        self.shape = model.shape
        self.rotations: list[Tensor] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        groups = self.shape.kv_heads
        stacked = q.float().view(len(q), groups, -1, self.shape.head_dim).transpose(0, 1).flatten(1, 2)
        # The right singular vectors are the eigenvectors of the d x d Gram matrix, small however long the text.
        self.rotations.append(torch.linalg.eigh(stacked.mT @ stacked).eigenvectors.flip(-1))
        out, _ = kernels.flash_attention(q, k.transpose(0, 1), v.transpose(0, 1), self.shape.scale)
        return out.reshape(len(q), -1)


def _key(model: Model) -> str:
    """The model's identity: where it came from, its config and a few of its weights."""
    digest = hashlib.sha256(json.dumps([model.name, str(model.dtype), model.config], sort_keys=True).encode())
    for layer, row in ((0, 0), (-1, -1)):
        weights = kernels.gather_rows(model.decoder.layers[layer].qkv, torch.tensor([row], device=model.device))
        digest.update(weights[0, :64].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:24]


def _save(file: Path, matrix: Tensor) -> None:
    """Aside, then renamed. A cache that cannot be written only costs the next run its second of calibration."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=file.parent)
        os.close(handle)
        save_file({"skew": matrix.contiguous()}, aside)
        os.replace(aside, file)
    except OSError:
        pass
