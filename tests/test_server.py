"""A server's column, against a fake that replays a real vLLM's answers."""

from __future__ import annotations

import json
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from fake_server import events_of, recorded, serving
from server_course import ANSWER, END, PROMPT_IDS, TEXT, ServerCourse

from engines import events
from engines.commands import Cancel, Pause, Prompt, Rerun, Resume, Step
from engines.events import SERVER, UNKNOWN_TOKEN, Memory, Prefill, RunStarted, ServerLoad, Status, Token, Transfer
from kvtui import plausible
from kvtui.state import RunState


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
    assert course.of(RunStarted)[0].link.description == "not told by the server"


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
    assert request.prompt_tokens == 39  # counted by the server's tokenizer
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
    assert (outcome.outcome, outcome.prompt_tokens, outcome.new_tokens) == ("ok", len(PROMPT_IDS), 2)
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


def error_of(course: ServerCourse) -> str:
    course.finish()
    assert course.outcome().outcome == "error"
    assert course.outcome(engine="vllm").outcome == "ok"  # the others go on
    assert "\n" not in course.outcome().detail
    return course.outcome().detail


def test_nobody_there():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert error_of(ServerCourse(address)) == f"no server at {address} (connection refused)"


def test_a_server_that_comes_back_is_asked_again(server):
    models = server.answers.pop("/v1/models")
    course = ServerCourse(server.address, Prompt(text="one"), Prompt(text="again", follow_up=True), Prompt(text="new"))
    course.until(lambda: course.of(events.Outcome, engine=SERVER, request=1))
    server.answers["/v1/models"] = models
    course.finish()
    assert [course.outcome(i).outcome for i in range(3)] == ["error", "error", "ok"]
    assert "ended early" in course.outcome(1).detail


def test_a_slow_server(server):
    server.answers["/v1/completions"] = [*events_of("completions.sse")[:2], threading.Event()]
    course = ServerCourse(server.address, silence_s=0.3)
    assert error_of(course) == "the server sent nothing for 0.3 s"
    assert len(course.tokens()) == 2


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n"


def slowly(begin: bytes, piece: bytes):
    """Bytes for ten seconds, far more often than any single read would give up."""
    yield begin
    for _ in range(500):
        time.sleep(0.02)
        yield piece


@pytest.mark.parametrize("begin", [HEAD + b"\r\n", HEAD])
@pytest.mark.parametrize("path", ["/v1/models", "/tokenize"])
def test_an_answer_drop_by_drop_has_a_deadline(server, monkeypatch, path, begin):
    monkeypatch.setattr("engines.server_client.QUESTION_S", 0.3)
    server.answers[path] = slowly(begin, b"{")
    assert error_of(ServerCourse(server.address)) == f"the server has not answered {path} within 0.3 s"
    assert server.left.wait(20)


@pytest.mark.parametrize(
    "piece", [b":\n", b"\n", b"data: {}\n\n", b'data: {"choices":[{"text":""}],"usage":{"prompt_tokens":1}}\n\n']
)
def test_what_holds_no_token_ends_no_silence(server, piece):
    begin = b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(e.encode() for e in events_of("completions.sse")[:2])
    server.answers["/v1/completions"] = slowly(begin, piece)
    course = ServerCourse(server.address, silence_s=0.3)
    assert error_of(course) == "the server sent nothing for 0.3 s"
    assert len(course.tokens()) == 2


def test_tokens_drop_by_drop_are_no_silence(server):
    said = [event.encode() for event in events_of("completions.sse")]

    def answer():
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        for event in said:
            time.sleep(0.1)
            yield event

    server.answers["/v1/completions"] = answer()
    course = ServerCourse(server.address, silence_s=0.8).finish()  # of more than a second in all
    assert [t.token_id for t in course.tokens()] == ANSWER


def test_metrics_drop_by_drop_are_given_up(server, monkeypatch):
    monkeypatch.setattr("engines.server_client.METRICS_S", 0.1)
    server.answers["/metrics"] = slowly(HEAD + b"\r\n", b"#")
    course = ServerCourse(server.address).finish()
    assert (course.text(), course.load.running) == (TEXT, None)
    assert len(server.bodies("/metrics")) == 1


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
@pytest.mark.parametrize("code", [401, 403])
def test_a_key_that_is_wanted(server, path, code):
    server.answers[path] = (code, '{"error":"Unauthorized"}')
    told = error_of(ServerCourse(server.address))
    assert told == f"the server wants a key, which goes into KVTUI_SERVER_API_KEY ({code}): Unauthorized"


def test_a_key_goes_with_every_request_and_is_told_to_nobody(server):
    course = ServerCourse(server.address, key="s3cret").finish()
    assert {headers["Authorization"] for _, headers, _ in server.asked} == {"Bearer s3cret"}
    assert b"s3cret" not in events.encode(course.events)
    server.answers["/v1/completions"] = (401, "")
    told = error_of(ServerCourse(server.address, key="s3cret"))
    assert told == "the server refuses the key in KVTUI_SERVER_API_KEY (401)"


def test_a_key_that_no_header_can_hold(server):
    assert error_of(ServerCourse(server.address, key="a\nb")) == "KVTUI_SERVER_API_KEY holds what no header can"
    assert error_of(ServerCourse(server.address, key="☃")) == "KVTUI_SERVER_API_KEY holds what no header can"


def test_nobody_is_followed_elsewhere(server):
    with serving() as elsewhere:
        server.answers["/v1/models"] = (307, f"{elsewhere.address}/v1/models")
        told = error_of(ServerCourse(server.address, key="s3cret"))
        assert told == f"the server is elsewhere (307): {elsewhere.address}/v1/models"
        assert not elsewhere.asked


@pytest.mark.parametrize(
    "where", ["http://\x1b[31mevil/[bold]", "http://[::1", "//", "http://a:99999/" + "x" * 5000, ""]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
def test_a_place_that_is_none_is_the_servers_fault(server, path, where):
    server.answers[path] = (302, where)
    told = error_of(ServerCourse(server.address))
    assert told.startswith(f"the server is elsewhere (302): {where[:80] or 'it does not say'}")
    assert len(told) < 300


def test_two_lengths_are_the_servers_fault(server):
    server.answers["/v1/models"] = iter([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\n"])
    assert error_of(ServerCourse(server.address)) == f"the connection to {server.address} was lost"


def test_what_the_server_says_of_a_bad_request(server):
    errors = json.loads(recorded("errors.json"))
    server.answers["/v1/completions"] = (404, json.dumps(errors["404"]))
    assert error_of(ServerCourse(server.address)).endswith(
        "has no such model or no /v1/completions (404): The model `nope` does not exist. Valid aliases: smollm2-135m."
    )
    server.answers["/v1/completions"] = (400, json.dumps(errors["400"]))
    assert error_of(ServerCourse(server.address)).startswith(
        "the server refuses this (400): max_tokens=5000 cannot be greater than max_model_len=1024."
    )
    server.answers["/v1/completions"] = (422, '{"detail":[{"msg":"field required"}]}')
    assert error_of(ServerCourse(server.address)) == 'the server refuses this (422): [{"msg":"field required"}]'
    server.answers["/v1/completions"] = (500, "Internal Server Error\n\x1b[31m" + "x" * 5000)
    told = error_of(ServerCourse(server.address))
    assert told.startswith("the server failed (500): Internal Server Error")
    assert len(told) < 300


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ("<html>hello</html>", '/v1/models is no list of models: "<html>hello</html>"'),
        ('{"data":[]}', "has no model"),
        ("[" * 100_000, "/v1/models is no list of models"),
        ((404, ""), "has no such model or no /v1/models (404)"),
    ],
)
def test_no_such_server(server, models, told):
    server.answers["/v1/models"] = models
    assert told in error_of(ServerCourse(server.address))


@pytest.mark.parametrize("end", [ConnectionError(), None])
def test_a_stream_that_is_cut(server, end):
    pieces = events_of("completions.sse")[:5]
    server.answers["/v1/completions"] = pieces if end is None else [*pieces, end]
    course = ServerCourse(server.address)
    assert error_of(course) == "the server cut the stream after 5 tokens"
    assert [t.token_id for t in course.tokens()] == ANSWER[:5]
    assert course.outcome().new_tokens == 5


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("data: {broken\n\n", 'the server sent what is no part of an answer: "{broken"'),
        ("data: [1, 2]\n\n", "the server sent what is no part of an answer"),
        ('data: {"choices":[{"token_ids":["a"]}]}\n\n', "the server sent what is no part of an answer"),
        ('data: {"choices":[{"logprobs":{"token_logprobs":[NaN]}}]}\n\n', "the server sent what is no part"),
        ("data: " + "[" * 5000 + "\n\n", "the server sent what is no part of an answer"),
        ("<html><body>502 Bad Gateway</body></html>\n", "the server sent no stream of tokens"),
        (b"data: \xff\xfe\x00\n\n", "the server sent what is no part of an answer"),
        ("data: " + "x" * 1_200_000, "the server sent a line of more than 1 MB"),
        ('data: {"error":{"message":"EngineCore died","code":500}}\n\n', "the server failed: EngineCore died"),
        ('data: {"choices":[{"text":"","token_ids":[],"finish_reason":"abort"}]}\n\n', "gave up after 1 token"),
    ],
)
def test_a_stream_of_something_else(server, sent, told):
    server.answers["/v1/completions"] = [events_of("completions.sse")[0], sent, "data: [DONE]\n\n"]
    assert told in error_of(ServerCourse(server.address))


def test_a_stream_without_end_is_ended(server):
    server.answers["/v1/completions"] = events_of("completions.sse")[:1] * 500
    course = ServerCourse(server.address, max_new_tokens=8)
    assert error_of(course) == "the server said more than the 8 tokens that were asked for"
    assert len(course.tokens()) == 8


def test_ids_beyond_the_vocabulary_are_unknown_tokens(server):
    chunk = 'data: {"choices":[{"text":"?","token_ids":[49152],"finish_reason":"stop"}]}\n\n'
    server.answers["/v1/completions"] = [chunk, "data: [DONE]\n\n"]
    course = ServerCourse(server.address).finish()
    assert [(t.token_id, t.text) for t in course.tokens()] == [(UNKNOWN_TOKEN, "?")]


def test_cancelling_closes_the_connection(server):
    first, endless = events_of("completions.sse")[:1], threading.Event()
    # What nobody reads any more fills the socket's buffers, or is answered with a reset.
    server.answers["/v1/completions"] = [*first, endless, *[": waiting\n\n" * 10_000] * 200]
    course = ServerCourse(server.address)
    course.until(lambda: course.tokens())
    course.race.handle(Cancel())
    assert course.outcome().outcome == "cancelled"
    assert course.outcome().new_tokens == 1
    endless.set()
    assert server.left.wait(20)
    server.answers["/v1/completions"] = events_of("completions.sse")
    course.race.handle(Rerun())
    course.finish()
    assert [t.token_id for t in course.tokens()][-len(ANSWER) :] == ANSWER


@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/v1/completions"])
def test_cancelling_before_the_server_has_answered_closes_the_connection(server, path):
    asked = threading.Event()

    def silence():
        asked.set()
        yield b"HTTP/1.1 200 "
        while True:  # a first line without end, until the other end is closed
            time.sleep(0.02)
            yield b"O"

    server.answers[path] = silence()
    course = ServerCourse(server.address)
    course.until(asked.is_set)
    course.race.handle(Cancel())
    assert course.outcome().outcome == "cancelled"
    assert server.left.wait(20)


def test_a_server_with_a_smaller_context_answers_as_long_as_it_has_room(server):
    models = json.loads(recorded("models.json"))
    models["data"][0]["max_model_len"] = 40
    server.answers["/v1/models"] = json.dumps(models)
    ServerCourse(server.address, max_new_tokens=400).finish()
    assert server.bodies("/v1/completions")[0]["max_tokens"] == 40 - len(PROMPT_IDS)


def test_the_model_that_is_here_is_asked_for_among_several(server):
    models = {"data": [{"id": "other"}, {"id": "smollm2-135m"}]}
    server.answers["/v1/models"] = json.dumps(models)
    ServerCourse(server.address).finish()
    assert server.bodies("/v1/completions")[0]["model"] == "smollm2-135m"
    server.answers["/v1/models"] = json.dumps({"data": [{"id": "other"}]})
    course = ServerCourse(server.address).finish()
    assert server.bodies("/v1/completions")[1]["model"] == "other"
    assert course.load.model == "other"


def test_a_request_for_a_stopped_engine_is_refused():
    from engines.errors import BadRequest
    from engines.server import ServerEngine

    model = SimpleNamespace(tokenizer=None, shape=SimpleNamespace(vocab=8), name="m")
    engine = ServerEngine(model, "http://127.0.0.1:9")
    with pytest.raises(BadRequest, match="follow-up"):
        engine.submit(0, [1], 4, follow_up=True, rendered=SimpleNamespace(messages=[], text=""))
    assert engine.advance() == []
    assert engine.cancel() == []
