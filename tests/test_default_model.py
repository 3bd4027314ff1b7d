"""The real default model, if `kvtui models --fetch smollm2-135m` has put it into the cache; nothing is fetched here."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engines import checkpoint
from engines.aliases import DEFAULT, written_config

pytestmark = pytest.mark.skipif(
    not any(info.cached for info in checkpoint.aliases() if info.name == DEFAULT),
    reason="the default model is not cached",
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def found() -> checkpoint.Checkpoint:
    return checkpoint.resolve(DEFAULT)


def test_its_config_is_the_one_written_into_the_project(found):
    written = written_config(DEFAULT)
    ignored = {"initializer_range", "mlp_bias"}
    assert {key: found.config[key] for key in written if key not in ignored} == {
        key: value for key, value in written.items() if key not in ignored
    }


def test_its_tokenizer_chats_and_splits_digits(found):
    tokenizer = checkpoint.load_tokenizer(found)
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    ) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.tokenize("  1984") == ["ĠĠ", "1", "9", "8", "4"]
    assert checkpoint.eos_ids(found, tokenizer) == {tokenizer.convert_tokens_to_ids("<|im_end|>")} == {2}
    auto = AutoTokenizer.from_pretrained(found.path)
    text = "Naïve café — 東京 🙂\n\tdef f(x): return x+10"
    assert tokenizer.encode(text) == auto.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_transformers_opens_it_and_it_knows_a_capital(found):
    model = AutoModelForCausalLM.from_pretrained(found.path, dtype=torch.bfloat16)
    tensors = checkpoint.load_tensors(found, device=CPU, dtype=torch.bfloat16)
    assert all(torch.equal(tensors[name], parameter) for name, parameter in model.named_parameters())
    tokenizer = checkpoint.load_tokenizer(found)
    ids = tokenizer("The capital of France is", return_tensors="pt")
    answer = model.generate(**ids, max_new_tokens=4, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])


@pytest.mark.slow
def test_a_fresh_process_is_ready_in_under_five_seconds():
    """Of CPU time, which is nearly all of it, so that other work on the machine does not count."""
    script = """
import json, time
from engines import checkpoint
found = checkpoint.resolve("smollm2-135m")
import torch
tensors = checkpoint.load_tensors(found, device=torch.device("cpu"), dtype=torch.bfloat16)
checkpoint.load_tokenizer(found)
print(json.dumps(time.process_time()))
"""
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    assert min(json.loads(run.stdout) for run in runs) < 5
