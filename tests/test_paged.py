"""The paged engine: equal to an un-paged reference, whatever shares, is batched, chunked or preempted."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import engines
from engines import events
from tests.tiny import prompt, tiny


def run(engine, requests: dict[int, list[int]], new_tokens: int = 12) -> dict[int, list[int]]:
    for request, ids in requests.items():
        engine.submit(request, ids, new_tokens, ignore_eos=True)
    tokens: dict[int, list[int]] = {request: [] for request in requests}
    while engine.has_work:
        for event in engine.advance():
            if isinstance(event, events.Token):
                tokens.setdefault(event.request, []).append(event.token_id)
            elif isinstance(event, events.Outcome):
                assert event.outcome == "ok", event.detail
    return tokens


def alone(model, requests: dict[int, list[int]], new_tokens: int = 12) -> dict[int, list[int]]:
    return {
        request: engines.create_engine("vllm", model).generate(ids, new_tokens, ignore_eos=True).tokens
        for request, ids in requests.items()
    }


def test_a_batch_of_ragged_lengths_equals_each_alone() -> None:
    model, _ = tiny("llama")
    requests = {i: prompt(length, seed=i) for i, length in enumerate([1, 15, 16, 17, 70, 128])}
    assert run(engines.create_engine("vllm", model), requests) == alone(model, requests)


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    chunk=st.integers(7, 64),
    shared=st.integers(0, 48),
    blocks=st.integers(8, 30),
)
def test_any_stream_equals_each_alone(lengths: list[int], chunk: int, shared: int, blocks: int) -> None:
    """Chunking, prefix sharing and preemption (a tight arena) change nothing in the tokens."""
    model, _ = tiny("qwen2")
    beginning = prompt(shared, seed=99)
    requests = {i: beginning + prompt(length, seed=i) for i, length in enumerate(lengths)}
    engine = engines.create_engine("vllm", model, chunk_tokens=chunk, arena_tokens=16 * blocks)
    assert run(engine, requests) == alone(model, requests)
    engine.reset()
    assert engine.memory().blocks_used == 0
    assert engine.memory().device_bytes.keys() == {"weights"}


def test_equal_prefixes_share_blocks() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("vllm", model)
    beginning = prompt(64, seed=5)
    requests = {0: beginning + prompt(9, seed=1), 1: beginning + prompt(30, seed=2)}
    expected = alone(model, requests)
    engine.submit(0, requests[0], 12, ignore_eos=True)
    engine.advance()
    while not engine.view(0):
        engine.advance()
    tokens = run(engine, {1: requests[1]})
    assert tokens[1] == expected[1]
    assert engine.memory().prefix_hit_tokens == 64
    engine.submit(2, requests[0], 1)
    engine.submit(3, requests[1], 1)
    shared = 0
    while engine.has_work:
        engine.advance()
        shared = max(shared, engine.memory().blocks_shared)
    assert shared >= 4


def test_preemption_by_recompute_is_counted_and_changes_nothing() -> None:
    model, _ = tiny("llama")
    requests = {i: prompt(40, seed=i) for i in range(3)}
    engine = engines.create_engine("vllm", model, arena_tokens=16 * 9, prefix_sharing=False)
    assert run(engine, requests, 30) == alone(model, requests, 30)
    assert engine.memory().preemptions > 0


def test_waste_stays_in_the_last_block() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("vllm", model)
    engine.submit(0, prompt(500), 40, ignore_eos=True)
    while engine.has_work:
        engine.advance()
        memory = engine.memory()
        assert memory.waste < 0.04 or memory.blocks_used == 0 or engine.view(0) is None
        assert memory.device_bytes.get("kv", 0) == memory.blocks_used * 16 * model.kv_bytes_per_token


def test_out_of_device_memory_is_an_outcome_and_others_go_on() -> None:
    model, _ = tiny("llama")
    cap = model.weights_bytes + 10 * 16 * model.kv_bytes_per_token
    engine = engines.create_engine("vllm", model, device_memory_bytes=cap)
    engine.submit(0, prompt(400), 4)
    engine.submit(1, prompt(20), 4, ignore_eos=True)
    outcomes = {}
    while engine.has_work:
        outcomes |= {e.request: e for e in engine.advance() if isinstance(e, events.Outcome)}
    assert outcomes[0].outcome == "device_oom"
    assert outcomes[0].detail.startswith("out of device memory at 400 tokens: needs ")
    assert outcomes[1].outcome == "ok"


def test_a_follow_up_continues_with_the_last_answer() -> None:
    model, theirs = tiny("llama")
    engine = engines.create_engine("vllm", model)
    first, second = prompt(50), prompt(10, seed=3)
    answer = engine.generate(first, 8, ignore_eos=True).tokens
    follow_up = engine.generate(second, 8, follow_up=True, ignore_eos=True).tokens
    running = first + answer + second
    with torch.no_grad():
        for _ in range(8):
            running.append(int(theirs(torch.tensor([running])).logits[0, -1].argmax()))
    assert follow_up == running[-8:]
