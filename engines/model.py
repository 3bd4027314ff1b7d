"""`load_model`: a checkpoint's decoder and tokenizer, ready for engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import engines.checkpoint as checkpoint
from engines.decoder import Decoder
from engines.errors import BadRequest
from engines.shape import Shape, read_shape

DTYPES = {"bfloat16": torch.bfloat16, "bf16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass
class Model:
    """Weights and tokenizer. `path` is the Hugging Face folder (None for random weights), `tokenizer` is transformers'
    own, `config` the folder's config.json."""

    name: str
    path: Path | None
    config: dict[str, Any]
    shape: Shape
    decoder: Decoder
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    eos_ids: set[int]

    @property
    def layers(self) -> int:
        return self.shape.layers

    @property
    def kv_heads(self) -> int:
        return self.shape.kv_heads

    @property
    def context_limit(self) -> int:
        return self.shape.context

    @property
    def weights_bytes(self) -> int:
        return self.decoder.weights_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.shape.head_dim * self.dtype.itemsize


def load_model(
    name: str = "smollm2-135m",
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    random_weights: bool = False,
    progress: checkpoint.Progress | None = None,
) -> Model:
    """`name` is an alias, a hub id, a local folder or a .gguf file; `device` "auto" takes CUDA where there is one;
    `dtype` "auto" is bfloat16. `random_weights` needs the architecture's config only.

    Raises ModelUnavailable (one line: why, and what to try) and BadRequest for a device or dtype that is not here.
    """
    where, precision = _device(device), _dtype(dtype)
    found = checkpoint.resolve(name, random_weights=random_weights, progress=progress)
    shape = read_shape(found.config)
    if progress is not None:
        progress("loading weights", None)
    with torch.inference_mode():
        tensors = checkpoint.load_tensors(found, device=where, dtype=precision)
        decoder = Decoder(shape, tensors, where, precision)
    if progress is not None:
        progress("loading tokenizer", None)
    tokenizer = checkpoint.load_tokenizer(found)
    return Model(
        name=found.name,
        path=found.path,
        config=found.config,
        shape=shape,
        decoder=decoder,
        tokenizer=tokenizer,
        device=where,
        dtype=precision,
        eos_ids=checkpoint.eos_ids(found, tokenizer),
    )


def _device(device: str | torch.device) -> torch.device:
    if isinstance(device, torch.device):
        return device
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise BadRequest(f"unknown device {device!r}: use auto, cpu, cuda or cuda:N") from None
    if found.type not in ("cpu", "cuda"):
        raise BadRequest(f"device {device!r} is not supported: use auto, cpu, cuda or cuda:N")
    if found.type == "cuda" and (not torch.cuda.is_available() or (found.index or 0) >= torch.cuda.device_count()):
        raise BadRequest(f"device {device!r} is not here: {torch.cuda.device_count()} CUDA devices found")
    return found


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        name = str(dtype).removeprefix("torch.")
    else:
        name = "bfloat16" if dtype == "auto" else dtype
    if name not in DTYPES:
        raise BadRequest(f"unknown dtype {name!r}: use auto, {', '.join(DTYPES)}")
    return DTYPES[name]
