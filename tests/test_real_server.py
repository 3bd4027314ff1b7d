"""The real vLLM, asked as any server is: its greedy tokens against the paged engine's. Run with -m server.

KVTUI_TEST_SERVER is the address of one that serves SmolLM2-135M-Instruct; without it, KVTUI_TEST_VLLM is a Python that
has vLLM (its CPU build will do), with which one is started. Tokens are held against an engine of KVTUI_TEST_DTYPE,
bfloat16 by default.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

import engines
from engines.chat import Chat
from engines.commands import Prompt
from engines.create import create_racer
from engines.events import SERVER, Outcome, ServerLoad, Token
from tests.agreement_prompts import PROMPTS

TOKENS, AGREEING = 16, 8
STARTS_WITHIN_S = 900.0

pytestmark = [pytest.mark.server, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def model():
    return engines.load_model("smollm2-135m", device="cpu", dtype=os.environ.get("KVTUI_TEST_DTYPE", "bfloat16"))


@pytest.fixture(scope="module")
def address(model, tmp_path_factory) -> Iterator[str]:
    if there := os.environ.get("KVTUI_TEST_SERVER"):
        yield there
        return
    python = os.environ.get("KVTUI_TEST_VLLM")
    if not python:
        pytest.skip("neither KVTUI_TEST_SERVER nor KVTUI_TEST_VLLM is set")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model.path), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--served-model-name", "smollm2-135m", "--enforce-eager", "--max-num-seqs", "2"]
    command += ["--dtype", str(model.dtype).removeprefix("torch."), "--max-model-len", "1024"]
    command += ["--max-num-batched-tokens", "256"]
    log: Path = tmp_path_factory.mktemp("vllm") / "log"
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", **os.environ}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            _wait(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end_s = time.monotonic() + STARTS_WITHIN_S
    while process.poll() is None and time.monotonic() < end_s:
        try:
            if requests.get(f"{address}/health", timeout=5).status_code == 200:
                return
        except requests.RequestException:
            time.sleep(1)
    pytest.fail(f"vLLM did not start:\n{log.read_text(errors='replace')[-3000:]}")


def test_greedy_tokens_agree_with_the_paged_engines(model, address) -> None:
    chat, paged = Chat(model.tokenizer, model.context_limit), engines.create_engine("vllm", model)
    server = create_racer(SERVER, model, server=address)
    alike, told = 0, []
    for number, text in enumerate(PROMPTS):
        rendered = chat.render(Prompt(text=text))
        server.submit(number, rendered.token_ids, TOKENS, rendered=rendered)
        said = []
        while server.has_work:
            said += server.advance()
        (outcome,) = [event for event in said if isinstance(event, Outcome)]
        assert (outcome.outcome, outcome.detail) == ("ok", "")
        assert outcome.prompt_tokens == len(rendered.token_ids)
        tokens = [event.token_id for event in said if isinstance(event, Token)]
        assert outcome.new_tokens == len(tokens)
        loads = [event for event in said if isinstance(event, ServerLoad)]
        assert loads[-1].compares
        assert any(load.kv_usage_peak for load in loads)
        ours = paged.generate(rendered.token_ids, TOKENS).tokens
        same = next((i for i, (a, b) in enumerate(zip(tokens, ours, strict=False)) if a != b), None)
        alike += tokens == ours
        told.append(f"{text[:40]!r}: {'alike' if same is None else f'differs from token {same + 1} on'}")
    print("\n".join(told))
    assert alike >= AGREEING, "\n".join(told)
