"""Requests that arrive by an engine's own clock: what is counted from when, and that every engine takes them."""

from __future__ import annotations

import random
from collections import deque
from statistics import mean, stdev
from types import SimpleNamespace

import pytest

import engines
from engines.events import Outcome, Prefill, Token
from probes.load import Objective, Request, Served, figures, poisson, ran_out, serve
from tests.tiny import prompt, tiny

OBJECTIVE = Objective(ttft_s=5.0, tpot_s=1.5)


class OneAtATime:
    """An engine with a known clock: two slices of 1 s until the first token, then 1 s a token; the next request waits.
    A prompt of 99 tokens exhausts the machine in its first slice."""

    def __init__(self) -> None:
        self.model = SimpleNamespace(context_limit=1024)
        self.clock_s = 100.0  # not where the load begins: nothing may count from zero
        self.waiting: deque[tuple[int, list[int], int]] = deque()
        self.done = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting)

    def start_clock_at(self, moment_s: float) -> None:
        self.clock_s = max(self.clock_s, moment_s)

    def submit(self, request: int, token_ids: list[int], new_tokens: int, *, ignore_eos: bool) -> None:
        assert ignore_eos
        self.waiting.append((request, token_ids, new_tokens))

    def advance(self) -> list:
        number, ids, wanted = self.waiting[0]
        self.clock_s += 1.0
        self.done += 1
        if len(ids) == 99:
            self.waiting.clear()
            self.done = 0
            raise MemoryError
        if self.done == 1:
            at = {"tokens_done": 0, "tokens_total": len(ids), "layers_done": 1, "layers_total": 2}
            return [Prefill(request=number, clock_s=self.clock_s, **at)]
        happened: list = [Token(request=number, clock_s=self.clock_s, index=0, token_id=1, text="", logprob=0.0)]
        if self.done == 1 + wanted:
            self.waiting.popleft()
            self.done = 0
            ended = {"prompt_tokens": len(ids), "new_tokens": wanted}
            happened.append(Outcome(request=number, clock_s=self.clock_s, outcome="ok", **ended))
        return happened


def test_waiting_is_counted_from_arrival() -> None:
    requests = [Request([1] * 8, 3, 1.5), Request([1] * 8, 2, 3.0), Request([1] * 8, 2, 20.0)]
    told: list[int] = []
    first, second, third = serve(OneAtATime(), requests, told.append)
    # The idle clock jumps to 1.5. Two slices of prompt, then tokens at 3.5, 4.5 and 5.5.
    assert (first.queue_s, first.ttft_s, first.tpot_s, first.latency_s) == (0.0, 2.0, 1.0, 4.0)
    # Came at 3.0, in the middle of a slice that ended at 3.5, and waited for the first until 5.5.
    assert (second.queue_s, second.ttft_s, second.tpot_s, second.latency_s) == (2.5, 4.5, 1.0, 5.5)
    # The clock jumps again, from 8.5 to 20.
    assert (third.started_s, third.queue_s, third.latency_s) == (20.0, 0.0, 3.0)
    assert told[-1] == 3


def test_figures_by_hand() -> None:
    def served(arrival_s: float, first_s: float, last_s: float, new_tokens: int) -> Served:
        request = Request([1], new_tokens, arrival_s)
        return Served(request, "ok", started_s=arrival_s, first_s=first_s, last_s=last_s, new_tokens=new_tokens)

    load = [
        served(0.0, 1.0, 5.0, 5),  # TTFT 1, TPOT 1: within
        served(1.0, 7.0, 8.0, 2),  # TTFT 6: too late
        served(2.0, 4.0, 8.0, 3),  # TPOT 2: too slow
        Served(Request([1], 4, 3.0), "device_oom", "full", reached_tokens=5),
    ]
    found = figures(load, OBJECTIVE)
    assert (found["outcome"], found["detail"], found["reached_tokens"]) == ("device_oom", "full", 5)
    assert (found["requests"], found["answered"], found["good"], found["goodput"]) == (4, 3, 1, 0.25)
    assert (found["ttft_s"], found["tpot_s"], found["latency_p50_s"]) == (2.0, 1.0, 6.0)
    assert found["ttft_p95_s"] == pytest.approx(5.6)  # nine tenths of the way from 2 to 6
    assert (found["tok_s"], found["good_per_s"], found["decode_tok_s"]) == (10 / 8, 1 / 8, 1.0)
    assert served(0.0, 5.0, 5.0, 1).meets(OBJECTIVE)  # one token has no TPOT to miss


def test_what_nobody_answered_has_no_figures() -> None:
    found = figures([Served(Request([1], 1), "too_long")], OBJECTIVE)
    assert found["outcome"] == "too_long"
    assert all(found[name] is None for name in ("ttft_s", "tpot_s", "tok_s", "latency_p95_s", "good_per_s"))
    assert found["goodput"] == 0


def test_arrivals_are_seeded_and_poisson() -> None:
    arrivals = poisson(2.0, 4000, random.Random(7))
    assert arrivals == poisson(2.0, 4000, random.Random(7))
    assert arrivals != poisson(2.0, 4000, random.Random(8))
    gaps = [after - before for before, after in zip([0.0, *arrivals], arrivals, strict=False)]
    assert min(gaps) > 0
    # Exponential gaps: the mean is 1 / rate and so is the deviation, and 1 - 1/e of them are shorter than the mean.
    assert mean(gaps) == pytest.approx(0.5, rel=0.06)
    assert stdev(gaps) == pytest.approx(0.5, rel=0.1)
    assert sum(gap < 0.5 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.03)
    assert poisson(4.0, 10, random.Random(7)) == pytest.approx([moment / 2 for moment in arrivals[:10]])


def test_a_full_machine_ends_what_is_under_way_and_nothing_else() -> None:
    engine = OneAtATime()
    requests = [Request([1] * 99, 2, 0.0), Request([1] * 8, 2, 0.0), Request([1] * 8, 2, 9.0)]
    lost, beside, later = serve(engine, requests)
    assert (lost.outcome, lost.detail, lost.reached_tokens) == ("host_oom", "MemoryError", 99)
    assert beside.outcome == "host_oom"
    assert (later.outcome, later.queue_s) == ("ok", 0.0)


def test_what_else_goes_wrong_is_no_outcome() -> None:
    engine = OneAtATime()

    def broken() -> list:
        raise RuntimeError("a fault of ours")

    engine.advance = broken
    with pytest.raises(RuntimeError, match="of ours"):
        serve(engine, [Request([1], 1)])
    assert ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")) == "host_oom"
    assert ran_out(RuntimeError("shapes do not match")) is None


@pytest.mark.parametrize("engine_id", ["vllm", "h2o", "h2o+", "infinigen", "infinigen+", "hybrid"])
def test_every_engine_takes_a_request_while_another_is_under_way(engine_id: str) -> None:
    """Later ones change nothing of an answer: it is the same as when asked alone."""
    model = tiny("llama")[0]
    model.tokenizer.decode = lambda ids, **options: "Tell me a story"
    # What H2O+ keeps hangs on where its pieces end, so here they are not cut short by what runs beside them.
    chunk_tokens = 512 if engine_id == "h2o+" else 64
    engine = engines.create_engine(engine_id, model, budget=0.5, link="pcie4", chunk_tokens=chunk_tokens)
    prompts = [prompt(150, seed) for seed in (1, 2, 3)]
    alone = []
    for ids in prompts:
        engine.reset()
        alone.append(engine.generate(ids, 6, ignore_eos=True).tokens)
    engine.reset()
    said: dict[int, list[int]] = {0: [], 1: [], 2: []}
    took = engine.advance

    def listening(observe: bool = False) -> list:
        happened = took(observe)
        for event in happened:
            if isinstance(event, Token):
                said[event.request].append(event.token_id)
        return happened

    engine.advance = listening
    load = serve(engine, [Request(ids, 6, 1e-6 * place) for place, ids in enumerate(prompts)])
    assert [served.outcome for served in load] == ["ok"] * 3
    assert [said[number] for number in range(3)] == alone
    assert all(0 <= served.queue_s < served.ttft_s < served.latency_s for served in load)
    assert load[0].started_s < load[1].started_s < load[2].started_s or engine_id in ("vllm", "h2o+")


def test_a_prompt_longer_than_the_context_is_an_outcome() -> None:
    engine = engines.create_engine("vllm", tiny("llama")[0])
    long, short = serve(engine, [Request(prompt(1020), 5), Request(prompt(20), 5)])
    assert (long.outcome, short.outcome) == ("too_long", "ok")
    assert "1,025 tokens" in long.detail


@pytest.mark.parametrize("engine_id", ["vllm", "h2o", "h2o+", "infinigen", "infinigen+"])
def test_what_fits_alone_is_served_however_many_come(engine_id: str) -> None:
    """What a step needs beside the KV is not reserved: when it is missing, some wait, and nobody is lost."""
    model = tiny("llama")[0]
    asked = [Request(prompt(300, seed), 12, 1e-4 * seed) for seed in range(5)]
    roomy = engines.create_engine(engine_id, model, budget=0.5, link="pcie4")
    serve(roomy, asked[:1])
    beside_weights = roomy.memory().device_peak_bytes - model.weights_bytes
    cap_bytes = model.weights_bytes + int(1.3 * beside_weights)
    engine = engines.create_engine(engine_id, model, budget=0.5, link="pcie4", device_memory_bytes=cap_bytes)
    assert [served.outcome for served in serve(engine, asked)] == ["ok"] * 5
    assert engine.memory().device_peak_bytes <= cap_bytes
    engine.reset()
    left = engine.memory().device_bytes
    assert {kind: left[kind] for kind in left if kind not in ("weights", "skew matrices")} == {}


def test_waiting_for_room_is_no_preemption() -> None:
    """Two prompts of which one fits, and its answer too: the second is never begun before the first has ended."""
    model = tiny("llama")[0]
    cap_bytes = model.weights_bytes + 10 * 16 * model.kv_bytes_per_token
    engine = engines.create_engine("vllm", model, device_memory_bytes=cap_bytes)
    first, second = serve(engine, [Request(prompt(120, seed), 30) for seed in (1, 2)])
    assert second.started_s >= first.last_s
    assert engine.memory().preemptions == 0


def test_one_that_fits_nowhere_ends_and_the_others_go_on() -> None:
    model = tiny("llama")[0]
    cap_bytes = model.weights_bytes + 200_000
    engine = engines.create_engine("h2o+", model, budget=0.5, device_memory_bytes=cap_bytes)
    asked = [Request(prompt(length, length), 4) for length in (120, 900, 120)]
    assert [served.outcome for served in serve(engine, asked)] == ["ok", "device_oom", "ok"]
