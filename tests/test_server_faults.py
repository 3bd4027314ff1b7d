"""What goes wrong with a server, and what its column says of it."""

from __future__ import annotations

import json
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from fake_server import events_of, recorded, serving
from server_course import ANSWER, PROMPT_IDS, TEXT, ServerCourse

from engines import events
from engines.commands import Cancel, Prompt, Rerun
from engines.events import SERVER, UNKNOWN_TOKEN


@pytest.fixture
def server():
    with serving() as made:
        yield made


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
