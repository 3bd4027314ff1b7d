"""Downloads from a hub that runs on this machine, through the real huggingface_hub."""

import json

import fake_hub
import huggingface_hub
import pytest
from huggingface_hub import constants

from engines import hub
from engines.errors import ModelUnavailable


@pytest.fixture
def served(tmp_path, monkeypatch):
    for repo in ("me/model", "me/torch", "me/ggufs", "gated/model", "busy/model"):
        folder = tmp_path / "served" / repo
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        (folder / "tokenizer.json").write_text("{}")
        (folder / "README.md").write_text("not needed")
        if repo != "me/ggufs":
            (folder / "pytorch_model.bin").write_bytes(b"b" * 1000)
        if repo not in ("me/ggufs", "me/torch"):
            (folder / "model.safetensors").write_bytes(b"s" * 1000)
            (folder / "consolidated.safetensors").write_bytes(b"c" * 1000)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with fake_hub.serving(tmp_path / "served") as (address, asked):
        point_to(monkeypatch, address)
        yield asked


def point_to(monkeypatch, address: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")


def failure(repo: str, ask=hub.download) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        ask(repo, lambda stage, fraction: None) if ask is hub.download else ask(repo)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_what_is_needed_is_fetched_and_then_found_without_a_connection(served):
    stages: list[str] = []
    assert hub.snapshot("me/model") is None
    folder = hub.download("me/model", lambda stage, fraction: stages.append(stage))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert set(stages) == {"downloading me/model"}
    served.clear()
    assert hub.snapshot("me/model") == folder
    assert served == []


def test_pytorch_weights_are_taken_where_there_is_nothing_better(served):
    names = {path.name for path in hub.download("me/torch", lambda stage, fraction: None).iterdir()}
    assert "pytorch_model.bin" in names


def test_a_config_is_fetched_alone(served):
    assert json.loads(hub.config("me/model").read_text()) == {"model_type": "llama"}
    assert [path.name for path in hub.snapshot("me/model").iterdir()] == ["config.json"]


@pytest.mark.parametrize("ask", [hub.download, hub.config])
def test_refusals_say_why_and_what_to_try(ask, served):
    assert "gated/model is gated: accept its terms at https://huggingface.co/gated/model" in failure("gated/model", ask)
    assert "has no model me/nothing, or it is private: check the spelling" in failure("me/nothing", ask)
    assert failure("busy/model", ask).startswith("cannot download busy/model from the Hugging Face hub (HTTP 400): ")


def test_a_repository_of_ggufs_says_how_to_use_them(served):
    assert "if it holds GGUF files, download one and give its path" in failure("me/ggufs")


@pytest.mark.parametrize("ask", [hub.download, hub.config])
def test_a_closed_network_is_one_line(ask, served, monkeypatch):
    point_to(monkeypatch, "http://127.0.0.1:9")
    assert "connect to the network and try again, or give a local folder" in failure("me/other", ask)


def test_offline_mode_is_one_line(served, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert failure("me/other", hub.config).startswith("cannot download me/other from the Hugging Face hub")


def test_a_full_disk_and_a_cache_that_cannot_be_written_are_told_apart(served, monkeypatch):
    import errno
    import os

    def fail_with(number: int) -> None:
        def download(*_, **__):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    fail_with(errno.ENOSPC)
    assert failure("me/model") == (
        "disk full while writing to the Hugging Face cache; make room, or set HF_HOME to a folder on another disk"
    )
    fail_with(errno.EACCES)
    assert failure("me/model").startswith("cannot write the Hugging Face cache (Permission denied); set HF_HOME")
