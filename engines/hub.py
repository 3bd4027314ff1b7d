"""Models from the Hugging Face hub, kept in its own cache. What is cached is found without a connection."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engines import store
from engines.errors import ModelUnavailable
from engines.store import Progress

_TIMEOUT_S = 10
_TABLE_FILES = re.compile(r"[^/]+\.(json|jinja|txt|model)")
_SAFETENSORS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_TORCH_BINS = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")


def snapshot(repo: str, revision: str = "main") -> Path | None:
    """The folder of `repo` in the local Hugging Face cache, whether complete or not. Opens no connection."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or Path(home, "hub")
    place = Path(cache).expanduser() / f"models--{repo.replace('/', '--')}"
    try:
        commit = (place / "refs" / revision).read_text().strip()
    except OSError:
        return None
    snapshot = place / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def config(repo: str) -> Path:
    """The config.json of `repo`, alone, in the Hugging Face cache."""
    from huggingface_hub import hf_hub_download

    with _faults(repo):
        _sizes_bytes(repo)
        return Path(hf_hub_download(repo, "config.json", etag_timeout=_TIMEOUT_S))


def download(repo: str, progress: Progress) -> Path:
    """Weights (safetensors where there are any), tokenizer and config of `repo`, into the Hugging Face cache, from
    where a download that was cut off goes on."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})

    stage = f"downloading {repo}"
    progress(stage, None)
    settings: dict[str, Any] = {"tqdm_class": Silent, "etag_timeout": _TIMEOUT_S, "max_workers": 4}
    with _faults(repo):
        sizes = _sizes_bytes(repo)
        wanted = _wanted(repo, list(sizes))
        folder = Path(snapshot_download(repo, allow_patterns=["config.json"], **settings))
        blobs, total_bytes = folder.parent.parent / "blobs", sum(sizes[name] for name in wanted)
        store.require_space(blobs, total_bytes - store.size_bytes(blobs), repo)
        with store.watched(blobs, total_bytes, lambda done: progress(stage, done)):
            snapshot_download(repo, allow_patterns=wanted, **settings)
    return folder


def _sizes_bytes(repo: str) -> dict[str, int]:
    """The files of `repo`. Asked first of all, since without a network it fails at once, where a download would try
    for half a minute."""
    from huggingface_hub import HfApi

    listed = HfApi().model_info(repo, timeout=_TIMEOUT_S, files_metadata=True).siblings or []
    return {file.rfilename: file.size or 0 for file in listed}


def _wanted(repo: str, names: list[str]) -> list[str]:
    weights = [name for name in names if _SAFETENSORS.fullmatch(name)] or [
        name for name in names if _TORCH_BINS.fullmatch(name)
    ]
    if "config.json" not in names or not weights:
        raise ModelUnavailable(
            f"{repo} has no config.json with safetensors or PyTorch weights; if it holds GGUF files, download one and "
            "give its path with --model"
        )
    return [name for name in names if _TABLE_FILES.fullmatch(name)] + weights


@contextmanager
def _faults(repo: str) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except ModelUnavailable:
        raise
    except errors.GatedRepoError as fault:
        raise ModelUnavailable(
            f"{repo} is gated: accept its terms at https://huggingface.co/{repo}, then log in with `hf auth login` or "
            "set HF_TOKEN; or use --random-weights"
        ) from fault
    except errors.RepositoryNotFoundError as fault:
        raise ModelUnavailable(
            f"the Hugging Face hub has no model {repo}, or it is private: check the spelling, or set HF_TOKEN"
        ) from fault
    except errors.EntryNotFoundError as fault:
        if isinstance(fault, errors.LocalEntryNotFoundError):
            raise _unreachable(repo, fault) from fault
        raise ModelUnavailable(f"{repo} has no config.json: it is not a transformers model") from fault
    except errors.HfHubHTTPError as fault:
        raise _unreachable(repo, fault) from fault
    except OSError as fault:
        if isinstance(fault, ConnectionError | TimeoutError | socket.gaierror) or fault.errno is None:
            raise _unreachable(repo, fault) from fault
        raise store.write_fault(fault, "the Hugging Face cache", "HF_HOME") from fault
    except Exception as fault:  # of httpx, requests or hf_xet, depending on huggingface_hub's version
        raise _unreachable(repo, fault) from fault


def _unreachable(repo: str, fault: Exception) -> ModelUnavailable:
    root = fault.__cause__ or fault  # huggingface_hub wraps the reason in advice of its own
    status = getattr(getattr(root, "response", None), "status_code", None)
    reason = f"HTTP {status}" if status else (str(root).strip() or type(root).__name__).splitlines()[0][:120]
    return ModelUnavailable(
        f"cannot download {repo} from the Hugging Face hub ({reason}): connect to the network and try again, or give a "
        "local folder with --model, or use --random-weights"
    )
