"""A server's column, against a fake that replays a real vLLM's answers."""

from __future__ import annotations

import json
import threading

import pytest
from fake_server import events_of, recorded, serving
from server_course import ANSWER, END, PROMPT_IDS, TEXT, ServerCourse

from engines import events
from engines.commands import Pause, Prompt, Resume, Step
from engines.events import SERVER, UNKNOWN_TOKEN, Memory, Prefill, RunStarted, ServerLoad, Status, Token, Transfer
from kvtui import plausible
from kvtui.panes.vitals import Vitals
from kvtui.state import RunState
from probes.topics import pack


@pytest.fixture
def server():
    with serving() as made:
        yield made


def state_of(course: ServerCourse) -> RunState:
    state = RunState()
    for event in events.decode(events.encode(course.events)):
        state.apply(event)
    return state


def test_tokens_come_as_ids_and_are_compared(server):
    course = ServerCourse(server.address, max_new_tokens=24).finish()
    assert [t.token_id for t in course.tokens()] == ANSWER
    assert [t.index for t in course.tokens()] == list(range(len(ANSWER)))
    assert course.text() == TEXT
    assert course.tokens()[0].logprob == pytest.approx(-1.7714890241622925)
    outcome = course.outcome()
    assert (outcome.outcome, outcome.prompt_tokens, outcome.new_tokens) == ("ok", 13, 12)
    assert outcome.ttft_s > 0
    (asked,) = server.bodies("/v1/completions")
    assert (asked["prompt"], asked["model"]) == (PROMPT_IDS, "smollm2-135m")
    assert (asked["stream"], asked["stream_options"]) == (True, {"include_usage": True})
    assert (asked["return_token_ids"], asked["max_tokens"], asked["temperature"]) == (True, 24, 0.0)
    (tokenized,) = server.bodies("/tokenize")
    assert tokenized["prompt"] == "<user>Name three colours.<end><assistant>"
    request = state_of(course).engines[SERVER].requests[0]
    assert request.differs == [False] * len(ANSWER)
    assert course.load.compares is True


def test_a_token_that_differs_is_marked(server):
    other = [*ANSWER[:4], 999, *ANSWER[5:]]
    state = state_of(ServerCourse(server.address, answer=other).finish())
    assert state.engines[SERVER].requests[0].first_difference == 4


def test_nothing_unknown_is_said_to_be_nothing(server):
    course = ServerCourse(server.address).finish()
    assert not course.of(Memory, engine=SERVER)
    assert not course.of(Transfer, engine=SERVER)
    assert not course.of(Prefill, engine=SERVER)
    assert course.of(RunStarted)[0].link.profile == "pcie4"  # that of the engines here
    knobs = course.of(RunStarted)[0].engines[1].knobs
    assert knobs == {"clock": "its own wall time", "address": server.address}


def test_a_server_alone_has_no_link_to_tell_of(server):
    course = ServerCourse(server.address, engines=(SERVER,)).finish()
    assert course.outcome().outcome == "ok"
    assert course.of(RunStarted)[0].link is None
    (told,) = (json.loads(pack(event, json=True)) for event in course.of(RunStarted))
    assert told["link"] is None  # over MQTT too, where 0 bytes a second would be a figure


def test_a_server_races_on_beside_an_engine_that_does_not_fit(server):
    course = ServerCourse(server.address, unbuildable=["vllm"]).finish()
    assert course.of(RunStarted)[0].link is None
    assert (course.outcome().outcome, course.outcome(engine="vllm").outcome) == ("ok", "device_oom")


def test_metrics_are_shown_with_their_peak_and_counted_from_the_beginning(server):
    more = threading.Event()
    server.answers["/v1/completions"] = [*events_of("completions.sse")[:3], more, *events_of("completions.sse")[3:]]
    course = ServerCourse(server.address)
    course.until(lambda: len(course.tokens()) == 3)
    busy = recorded("metrics.txt")
    for name, value in (("kv_cache_usage_perc", 0.25), ("num_requests_running", 3), ("num_preemptions_total", 2)):
        busy = _with(busy, name, value)
    busy = _with(_with(busy, "prefix_cache_queries_total", 152.0), "prefix_cache_hits_total", 60.0)
    server.answers["/metrics"] = busy
    course.until(lambda: course.load.running == 3)
    assert course.load.prefix_hit_share == pytest.approx(0.6)  # of the 100 tokens since
    server.answers["/metrics"] = recorded("metrics.txt")
    more.set()
    course.finish()
    assert (course.load.kv_usage, course.load.kv_usage_peak, course.load.running) == (0.0, 0.25, 0)


def _with(text: str, name: str, value: float) -> str:
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"vllm:{name}{{"))
    lines[at] = f"{lines[at].rsplit(' ', 1)[0]} {value}"
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("metrics", [(404, "{}"), (500, ""), "no metrics at all {{{", "# nothing\n"])
def test_without_metrics_the_load_is_unknown(server, metrics):
    server.answers["/metrics"] = metrics
    course = ServerCourse(server.address).finish()
    assert course.outcome().outcome == "ok"
    assert (course.load.kv_usage, course.load.running, course.load.preemptions) == (None, None, None)
    assert course.load.model == "smollm2-135m"
    assert len(server.bodies("/metrics")) == 1  # who has none is not asked again and again


@pytest.mark.parametrize("tokenize", ['{"tokens": [1, 2, 3]}', (404, '{"detail":"Not Found"}'), "garbage"])
def test_another_vocabulary_is_shown_as_text(server, tokenize):
    server.answers["/tokenize"] = tokenize
    course = ServerCourse(server.address).finish()
    assert {t.token_id for t in course.tokens()} == {UNKNOWN_TOKEN}
    assert len(course.tokens()) == 16
    assert course.text().startswith("1. Red")
    assert course.text().endswith("🔵")
    (asked,) = server.bodies("/v1/chat/completions")
    assert asked["messages"] == [{"role": "user", "content": "Name three colours."}]
    assert not server.bodies("/v1/completions")
    assert course.load.compares is False
    request = state_of(course).engines[SERVER].requests[0]
    assert request.differs == []
    assert request.first_difference is None
    assert request.counted_tokens == 39  # by the server's tokenizer
    assert request.prompt_tokens == len(PROMPT_IDS)  # by the one here, whose places in the text are known
    assert request.text == course.text()


def test_what_was_received_is_counted_and_the_usage_tells_of_the_prompt(server):
    chunks = [
        'data: {"choices":[{"delta":{"content":"one two "}}]}\n\n',
        'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n',
        'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}}\n\n',
        "data: [DONE]\n\n",
    ]
    server.answers |= {"/tokenize": (404, ""), "/v1/chat/completions": chunks}
    course = ServerCourse(server.address).finish()
    assert [t.text for t in course.tokens()] == ["one two ", "x"]
    assert course.tokens()[0].logprob is None
    assert (course.outcome().prompt_tokens, course.outcome().new_tokens) == (7, 2)


@pytest.mark.parametrize("told", [-7, -(10**20), 2**63 - 1, 10**20, 2**28, 0])
@pytest.mark.parametrize("tokenize", [(404, ""), recorded("tokenize.json")])
def test_counts_that_cannot_be_are_not_believed(server, told, tokenize):
    usage = f'"usage":{{"prompt_tokens":{told},"completion_tokens":{told}}}'
    for path, field in (("/v1/completions", '"text":"x"'), ("/v1/chat/completions", '"delta":{"content":"x"}')):
        end = f'data: {{"choices":[{{{field},"finish_reason":"stop"}}],{usage}}}\n\n'
        server.answers[path] = [f'data: {{"choices":[{{{field}}}]}}\n\n', end, "data: [DONE]\n\n"]
    server.answers["/tokenize"] = tokenize
    course = ServerCourse(server.address).finish()
    for event in events.decode(events.encode(course.events)):
        plausible.check(event)
    outcome = course.outcome()
    ids_were_sent = bool(server.bodies("/v1/completions"))
    assert (outcome.outcome, outcome.new_tokens) == ("ok", 2)
    assert outcome.prompt_tokens == (len(PROMPT_IDS) if ids_were_sent else 0)  # nobody has counted it
    request = state_of(course).engines[SERVER].requests[0]
    assert request.counted_tokens == (len(PROMPT_IDS) if ids_were_sent else None)
    assert outcome.decode_tok_s is None or outcome.decode_tok_s == pytest.approx(1 / outcome.tpot_s)


@pytest.mark.parametrize(
    ("logprob", "said"), [("1e308", None), ("99999", None), ("-1e300", None), ("-0.25", -0.25), ("0", 0.0)]
)
def test_logprobs_that_cannot_be_are_not_believed(server, logprob, said):
    chunk = f'data: {{"choices":[{{"text":"?","token_ids":[{10**18}],"logprobs":{{"token_logprobs":[{logprob}]}},'
    server.answers["/v1/completions"] = [chunk + '"finish_reason":"stop"}]}\n\n', "data: [DONE]\n\n"]
    (token,) = ServerCourse(server.address).finish().tokens()
    assert (token.token_id, token.logprob) == (UNKNOWN_TOKEN, said)


@pytest.mark.parametrize(("limit", "asked"), [(-5, 24), (0, 24), (2**40, 24), (15, 2)])
def test_a_context_that_cannot_be_is_not_believed(server, limit, asked):
    models = json.loads(recorded("models.json"))
    models["data"][0]["max_model_len"] = limit
    server.answers["/v1/models"] = json.dumps(models)
    ServerCourse(server.address, max_new_tokens=24).finish()
    assert server.bodies("/v1/completions")[0]["max_tokens"] == asked


def test_sampling_is_passed_on(server):
    prompt = Prompt(text="x", max_new_tokens=20)
    ServerCourse(
        server.address, prompt, temperature=0.7, top_p=0.9, seed=11, ignore_eos=True, max_new_tokens=99
    ).finish()
    (asked,) = server.bodies("/v1/completions")
    told = {name: asked[name] for name in ("temperature", "top_p", "seed", "ignore_eos", "max_tokens")}
    assert told == {"temperature": 0.7, "top_p": 0.9, "seed": 11, "ignore_eos": True, "max_tokens": 20}
    # What the model's folder suggests to a vLLM is not what the engines here do.
    assert (asked["top_k"], asked["repetition_penalty"], asked["min_p"]) == (0, 1.0, 0.0)


def test_a_follow_up_sends_the_whole_conversation(server):
    course = ServerCourse(server.address, Prompt(text="one"), Prompt(text="two", follow_up=True)).finish()
    _, second = server.bodies("/v1/completions")
    assert second["prompt"] == [*PROMPT_IDS, *ANSWER, 500, 501]  # the model closed its turn itself
    assert ANSWER[-1] == END
    assert course.outcome(1).outcome == "ok"
    assert len(server.bodies("/tokenize")) == 1


def test_a_follow_up_in_messages(server):
    server.answers["/tokenize"] = (404, "")
    ServerCourse(server.address, Prompt(text="one"), Prompt(text="two", follow_up=True)).finish()
    _, second = server.bodies("/v1/chat/completions")
    said = second["messages"][1].pop("content")
    assert said.startswith("1. Red")
    assert second["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant"},
        {"role": "user", "content": "two"},
    ]


def test_what_a_server_has_counted_is_not_counted_again(server):
    """Its count of a follow-up's prompt is of the whole conversation, by a tokenizer of its own."""
    go = threading.Event()
    chunks = [
        'data: {"choices":[{"delta":{"content":"one "}}]}\n\n',
        'data: {"choices":[{"delta":{"content":"two"},"finish_reason":"stop"}]}\n\n',
        'data: {"choices":[],"usage":{"prompt_tokens":900}}\n\ndata: [DONE]\n\n',
    ]
    server.answers |= {"/tokenize": (404, ""), "/v1/chat/completions": chunks}
    course = ServerCourse(server.address, Prompt(text="one"), Prompt(text="two", follow_up=True))
    course.until(lambda: course.of(events.Outcome, engine=SERVER, request=0))
    server.answers["/v1/chat/completions"] = [chunks[0], go, *chunks[1:]]
    course.until(lambda: len(course.tokens(1)) == 1)
    assert "– + 1 tokens" in counted(course, SERVER)
    go.set()
    course.finish()
    assert "900 + 2 tokens" in counted(course, SERVER)
    assert "before" not in counted(course, SERVER)
    assert f"{len(PROMPT_IDS) + len(ANSWER)} before + 2 + " in counted(course, "vllm")


def counted(course, engine):
    vitals = Vitals(engine)
    vitals.show(state_of(course))
    return "".join(text for text, _ in vitals.draw(60, 4)[3])


def test_a_model_without_a_chat_template_is_sent_text(server, monkeypatch):
    monkeypatch.setattr("server_course.RecordedTokenizer.chat_template", None)
    server.answers |= {"/tokenize": (404, "")}
    course = ServerCourse(server.address, Prompt(text="Once upon")).finish()
    (asked,) = server.bodies("/v1/completions")
    assert asked["prompt"] == "Once upon"
    assert course.text() == TEXT


def test_the_others_do_not_wait_for_a_server_that_says_nothing(server):
    go = threading.Event()
    server.answers["/v1/completions"] = [go, *events_of("completions.sse")]
    course = ServerCourse(server.address)
    steps = 0
    while not course.of(events.Outcome, engine="vllm"):
        course.race.advance()
        steps += 1
    slices = len(course.of((Token, Prefill), engine="vllm"))
    assert steps <= slices + len(course.of((Status, ServerLoad), engine=SERVER)) + 2
    assert not course.tokens()
    go.set()
    course.finish()
    assert [t.token_id for t in course.tokens()] == ANSWER


def test_what_has_come_is_taken_in_the_order_of_the_race(server):
    """All of the answer is there long before the fake engine's slow clock is: it still comes bit by bit."""
    course = ServerCourse(server.address)
    course.built["vllm"].step_s = 1e-9
    course.race.advance()
    course.until(lambda: course.built[SERVER]._request is None or course.built[SERVER]._request.arrived.qsize() > 14)
    course.finish()
    clocks = [e.clock_s for e in course.events if e.engine == SERVER]
    assert clocks == sorted(clocks)
    taken = [e for e in course.events if isinstance(e, Token)]
    paged_end = max(i for i, e in enumerate(taken) if e.engine == "vllm")
    assert all(e.engine == "vllm" for e in taken[:paged_end])  # a microsecond, as against milliseconds


def test_clocks_of_later_rounds_begin_together(server):
    course = ServerCourse(server.address, Prompt(text="one"), Prompt(text="two")).finish()
    begun = course.of(events.Submitted, request=1)[0].clock_s
    assert begun == pytest.approx(max(course.outcome(0, e).clock_s for e in ("vllm", SERVER)))
    assert course.tokens(1)[0].clock_s > begun


def test_a_paused_race_goes_on_where_it_was(server):
    course = ServerCourse(server.address)
    course.until(lambda: course.of(Status, engine=SERVER, state="prefill"))
    course.race.handle(Pause())
    before = len(course.tokens())
    assert course.race.advance() is False
    for _ in range(200):
        course.race.handle(Step())
        if len(course.tokens()) == before + 1:
            break
    assert len(course.tokens()) == before + 1
    course.race.handle(Resume())
    course.finish()
    assert course.text() == TEXT
