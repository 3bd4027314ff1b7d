"""GGUF files, written here as llama.cpp writes them, against the transformers models they were written from."""

import contextlib
import errno
import math
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from tiny_checkpoints import VOCAB, tiny_model, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from engines import gguf_convert, gguf_file
from engines.errors import ModelUnavailable


def converted(tmp_path: Path, model, **writing) -> Path:
    write_gguf(tmp_path / "tiny.gguf", model, **writing)
    folder = tmp_path / "folder"
    folder.mkdir()
    fractions: list[float] = []
    gguf_convert.convert(gguf_file.read(tmp_path / "tiny.gguf"), folder, fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    return folder


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_transformers_opens_the_folder_and_computes_the_same(family, tmp_path):
    model = tiny_model(family)
    again = AutoModelForCausalLM.from_pretrained(converted(tmp_path, model), dtype=torch.float32)
    assert again.config.rms_norm_eps == model.config.rms_norm_eps
    ids = torch.arange(20)[None]
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_quantised_weights_come_close_in_several_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_convert, "_SHARD_BYTES", 50_000)
    model = tiny_model("llama")
    folder = converted(tmp_path, model, quantised=True)
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, tensor in model.state_dict().items():
        assert (again.state_dict()[name] - tensor).abs().max() < 0.01, name


def test_rows_are_whole_however_they_are_cut(tmp_path, monkeypatch):
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), quantised=True)
    source = gguf_file.read(tmp_path / "tiny.gguf")
    tensor = source.tensors["token_embd.weight"]
    (whole,) = source.rows(tensor)
    monkeypatch.setattr(gguf_file, "_CHUNK_VALUES", 7 * 64)
    parts = list(source.rows(tensor))
    assert len(parts) == math.ceil(VOCAB / 7)
    assert (torch.cat([torch.from_numpy(part) for part in parts]) == torch.from_numpy(whole)).all()


def test_tokenizer_and_template_come_along(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, tiny_model("llama")))
    text = "Straße 1984 🙂 abab"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("abab")) == 2
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<s>hi</s>"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    # SmolLM splits digits off before spaces are joined; GPT-2's rule would leave the second space with the digit.
    spaces, digit = tokenizer.encode("  7")
    assert tokenizer.convert_ids_to_tokens([spaces, digit]) == ["ĠĠ", "7"]


def test_a_file_that_begins_texts_with_bos_keeps_doing_so(tmp_path):
    folder = converted(tmp_path, tiny_model("llama"), extra={"tokenizer.ggml.add_bos_token": 1})
    assert AutoTokenizer.from_pretrained(folder).encode("a")[0] == 1


def test_llama_3_scaling_is_recovered_from_its_divisors(tmp_path):
    divisors = torch.tensor([1.0, 1.5, 4.0, 8.0, 8.0, 8.0, 8.0, 8.0])
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), tensors={"rope_freqs.weight": divisors})
    config = gguf_convert.config_of(gguf_file.read(tmp_path / "tiny.gguf"))
    assert config["rope_scaling"]["rope_type"] == "llama3"
    assert config["rope_scaling"]["factor"] == 8.0


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ({"split.count": 3}, "is one part of several; join them first"),
        ({"llama.expert_count": 8}, "is a mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, "uses RoPE scaling 'yarn'"),
        ({"llama.attention.value_length": 7}, "has heads of different sizes"),
    ],
)
def test_variants_that_are_not_built_are_refused(extra, line, tmp_path):
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), extra=extra)
    with pytest.raises(ModelUnavailable, match=line):
        gguf_convert.config_of(gguf_file.read(tmp_path / "tiny.gguf"))


def test_an_unknown_architecture_is_refused_by_name(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(
        ModelUnavailable, match="holds the GGUF architecture 'mamba'; supported are llama, qwen2, qwen3"
    ):
        gguf_convert.config_of(gguf_file.read(tmp_path / "mamba.gguf"))


def test_every_cut_of_a_file_is_found(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), quantised=True)
    whole = (tmp_path / "tiny.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (0, 3, 10, 30, 500, 3000, len(whole) // 2, len(whole) - 4000):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelUnavailable, match=r"^[^\n]*(cut off|not a GGUF file)[^\n]*$"):
            gguf_file.read(cut)


def test_garbage_is_refused_without_a_traceback(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    whole = bytearray((tmp_path / "tiny.gguf").read_bytes())
    path = tmp_path / "garbled.gguf"
    for at in range(8, 2000, 13):
        garbled = bytearray(whole)
        garbled[at : at + 8] = struct.pack("<Q", 1 << 63)
        path.write_bytes(garbled)
        with contextlib.suppress(ModelUnavailable):  # some places, such as names, may hold anything
            gguf_convert.config_of(gguf_file.read(path))
    path.write_bytes(b"PK\x03\x04 a zip")
    with pytest.raises(ModelUnavailable, match="is not a GGUF file"):
        gguf_file.read(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    with pytest.raises(ModelUnavailable, match="has GGUF version 1"):
        gguf_file.read(path)


def test_a_full_disk_under_safetensors_is_an_os_error(tmp_path, monkeypatch):
    def save_file(*_, **__):  # the words of safetensors 0.8 on a full tmpfs
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", save_file)
    with pytest.raises(OSError) as caught:
        converted(tmp_path, tiny_model("llama"))
    assert caught.value.errno == errno.ENOSPC
