"""Models without a download: random weights of any supported shape, and a tokenizer when there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.parameters import parameter_shapes

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

_NOISE_VALUES = (1 << 22) + 3  # odd, so that tensors of round sizes do not begin at the same place
_SPECIAL = ["<unk>", "<s>", "</s>"]


def random_tensors(config: dict[str, Any], device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Parameters of a normalised config: normal(0, 0.02), norms at one; the same for every call.

    All are cut from one tape of noise, laid end to end, since drawing 7 billion numbers would take a minute.
    """
    import torch

    tape = torch.randn(_NOISE_VALUES, generator=torch.Generator().manual_seed(0)).mul_(0.02).to(device, dtype)
    at = 0
    tensors = {}
    for name, shape in parameter_shapes(config).items():
        tensor = tensors[name] = torch.empty(shape, device=device, dtype=dtype)
        if name.endswith("weight") and len(shape) == 1:
            tensor.fill_(1.0)
            continue
        flat = tensor.view(-1)
        done = 0
        while done < len(flat):
            size = min(len(flat) - done, len(tape) - at)
            flat[done : done + size] = tape[at : at + size]
            done += size
            at = (at + size) % len(tape)
    return tensors


def cut_tokenizer(folder: Path, vocab: int) -> PreTrainedTokenizerFast | None:
    """The byte-level BPE tokenizer of `folder` with only its first `vocab` tokens and the merges that make them, or
    None when it would lose a byte by that."""
    from tokenizers import Tokenizer, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    parts = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    model = parts["model"]
    cut = {token for token, number in model["vocab"].items() if number >= vocab}
    if not cut.isdisjoint(pre_tokenizers.ByteLevel.alphabet()):
        return None
    kept = model["vocab"] = {token: number for token, number in model["vocab"].items() if number < vocab}
    pairs = (merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"])
    model["merges"] = [pair for pair in pairs if "".join(pair) in kept]
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["id"] < vocab]
    roles = ("bos_token", "eos_token", "pad_token", "unk_token")
    template = folder / "chat_template.jinja"
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(parts)),
        chat_template=template.read_text() if template.exists() else None,
        **{role: settings[role] for role in roles if settings.get(role) in kept},
    )


def byte_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """One token a byte, all ids below `vocab`; bytes that a tiny vocabulary has no room for become <unk>."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # ASCII first
    names = [*_SPECIAL, *alphabet][:vocab]
    tokenizer = Tokenizer(
        models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[], unk_token=names[0])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [name for name in names if name in _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    roles = zip(("unk_token", "bos_token", "eos_token"), special, strict=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(roles))
