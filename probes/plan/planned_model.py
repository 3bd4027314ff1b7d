"""A model as the arithmetic needs it: its shape, and the bytes of what a step reads."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from engines.aliases import ALIASES, written_config
from engines.errors import BadRequest
from engines.parameters import count_parameters, normalised, parameter_shapes
from engines.shape import Shape, read_shape

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class PlannedModel:
    """`width` is the bytes of one stored number, `wide` of one that is computed with. A step multiplies with
    `layer_parameters` in each layer and with `head_parameters` at its end; of the embedding it reads a row a token."""

    name: str
    shape: Shape
    width: int
    wide: int
    parameters: int
    layer_parameters: int
    head_parameters: int

    @property
    def weights_bytes(self) -> int:
        return self.parameters * self.width

    @property
    def layer_token_bytes(self) -> int:
        """KV of one token in one layer."""
        return 2 * self.shape.kv_heads * self.shape.head_dim * self.width

    @property
    def token_bytes(self) -> int:
        """KV of one token in all layers."""
        return self.shape.layers * self.layer_token_bytes

    @property
    def query_parameters(self) -> int:
        """What forms one layer's queries: InfiniGen reads it once more, to speculate."""
        return self.shape.heads * self.shape.head_dim * self.shape.hidden


def planned_model(name: str, dtype: str = "bfloat16", *, wide: int | None = None) -> PlannedModel:
    """An alias, or the path of a Hugging Face config.json. `wide` is `width` unless given. Raises BadRequest, which
    lists what is known."""
    if dtype not in DTYPE_BYTES:
        raise BadRequest(f"unknown dtype {dtype!r}: choose from {', '.join(DTYPE_BYTES)}")
    if name in ALIASES:
        config = written_config(name)
    elif Path(name).is_file() and name.endswith(".json"):
        try:
            config = json.loads(Path(name).read_text("utf-8"))
        except (OSError, ValueError) as fault:
            raise BadRequest(f"cannot read {name!r} as a model's config.json: {fault}") from None
    else:
        raise BadRequest(f"unknown model {name!r}: known are {', '.join(ALIASES)}, or the path of a config.json")
    try:
        return of_config(name, config, DTYPE_BYTES[dtype], wide)
    except (KeyError, TypeError, AttributeError, ValueError) as fault:
        raise BadRequest(f"{name!r} is no decoder's config.json: {fault!r}") from None


def of_config(name: str, config: dict, width: int, wide: int | None = None) -> PlannedModel:
    """Of a Hugging Face config. Raises KeyError for a size that must be there."""
    config = normalised(config)
    shape = read_shape(config)
    root = "model.decoder.layers.0." if shape.family == "opt" else "model.layers.0."
    shapes = parameter_shapes(config)
    return PlannedModel(
        name=name,
        shape=shape,
        width=width,
        wide=wide or width,
        parameters=count_parameters(config),
        layer_parameters=sum(math.prod(shapes[known]) for known in shapes if known.startswith(root)),
        head_parameters=shape.vocab * shape.hidden,
    )
