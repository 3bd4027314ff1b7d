"""`load_model`: a checkpoint's decoder and tokenizer, ready for engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import engines.checkpoint as checkpoint
from engines.decoder import Decoder
from engines.errors import BadRequest
from engines.knobs import WEIGHTS
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
    def weights(self) -> str:
        """How the weights are stored, if not in the dtype: "int8" or ""."""
        return "int8" if self.decoder.int8 else ""

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.shape.head_dim * self.dtype.itemsize


def load_model(
    name: str = "smollm2-135m",
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    weights: str = "auto",
    random_weights: bool = False,
    progress: checkpoint.Progress | None = None,
) -> Model:
    """`name` is an alias, a hub id, a local folder or a .gguf file; `device` "auto" takes CUDA where there is one;
    `dtype` "auto" is bfloat16. `weights` "int8" stores them in 8 bits (see engines.int8), on a CPU, where activations
    are float32; the KV cache keeps the dtype. `random_weights` needs the architecture's config only.

    Raises ModelUnavailable (one line: why, and what to try) and BadRequest for a device, dtype or storage of weights
    that is not here.
    """
    where, precision = _device(device), _dtype(dtype)
    int8 = _int8(weights, where, precision)
    found = checkpoint.resolve(name, random_weights=random_weights, progress=progress)
    shape = read_shape(found.config)
    if progress is not None:
        progress("loading weights", None)
    with torch.inference_mode():
        tensors = checkpoint.load_tensors(found, device=where, dtype=precision)
        decoder = Decoder(shape, tensors, where, precision, int8)
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


def _int8(weights: str, device: torch.device, dtype: torch.dtype) -> bool:
    if weights not in WEIGHTS:
        raise BadRequest(f"weights are {' or '.join(WEIGHTS)}, not {weights!r}")
    if weights == "int8" and device.type != "cpu":
        raise BadRequest(f"int8 weights are for a CPU, and the device is {device}: use --device cpu or --weights auto")
    if weights == "int8" and dtype == torch.float16:
        raise BadRequest("int8 weights go with bfloat16 or float32, not with float16")
    return weights == "int8"
