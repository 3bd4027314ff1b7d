"""A server among the engines: its address, and what is unknown of it wherever there are figures."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from fake_server import recorded
from msgspec.structs import replace

from engines import events, server_metrics
from engines.commands import WorkerConfig
from engines.errors import BadRequest
from engines.events import SERVER, UNKNOWN_TOKEN
from engines.knobs import check_knobs
from engines.server_address import checked_address
from engines.server_stream import chunk, messages
from kvtui import captions, headless, plausible, verdict
from kvtui.app import KvtuiApp
from kvtui.cli import cli
from kvtui.configuration import _apart
from kvtui.inspection import NOT_TOLD, Place, facts
from kvtui.names import served
from kvtui.panes import borders, server_load
from kvtui.panes.column import Column
from kvtui.panes.comparison import Comparison
from kvtui.panes.header import Header
from kvtui.panes.heatmap import Heatmap
from kvtui.panes.memory import MemoryGraph
from kvtui.panes.podium import Podium
from kvtui.panes.transfer import TransferGraph
from kvtui.panes.vitals import Vitals
from kvtui.state import RunState
from tests.scripted_source import ScriptedSource
from tests.synthetic import Race, started
from tests.test_app import screen_text, shows, until

LOAD = events.ServerLoad(
    run="synthetic", engine=SERVER, clock_s=2.3, model="smollm2-135m", compares=True, kv_usage=0.028,
    kv_usage_peak=0.031, running=1, waiting=2, preemptions=3, prefix_hit_share=0.431,
)  # fmt: skip


def race(load: events.ServerLoad | None = LOAD, *, ids: bool = True) -> list[events.AnyEvent]:
    """A paged engine beside a server, which says the same without anything of its memory."""
    ran = Race(prompt_tokens=512, new_tokens=30)
    infos = [events.EngineInfo(id=id, label=events.ENGINE_LABELS[id]) for id in ("vllm", SERVER)]
    said: list[events.AnyEvent] = [replace(started(), engines=infos), ran.submitted(), *ran.events_of("vllm")]
    said.append(events.Status(run="synthetic", engine=SERVER, clock_s=2.0, state="prefill", request=0))
    if load is not None:
        said.append(load)
    for event in ran.events_of("vllm"):
        if isinstance(event, (events.Token, events.Outcome)):
            if isinstance(event, events.Token) and not ids:
                event = replace(event, token_id=UNKNOWN_TOKEN)
            said.append(replace(event, engine=SERVER))
    return said


def state_of(*arguments, **options) -> RunState:
    state = RunState()
    for event in events.decode(events.encode(race(*arguments, **options))):
        plausible.check(event)
        state.apply(event)
    return state


def drawn(pane, state: RunState, width: int = 44, height: int = 5) -> str:
    pane.show(state)
    return "\n".join("".join(text for text, _ in line) for line in pane.draw(width, height))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://host:8000", "http://host:8000"),
        (" https://host/v1/ ", "https://host"),
        ("http://127.0.0.1:80/some/folder/", "http://127.0.0.1:80/some/folder"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert checked_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "host:8000", "ftp://host", "http://", "http://host:99999", "http://host:x", "http://ho st",
             "http://host?key=1", "http://host#x", "http://[::1", "file:///etc/passwd", "http://hößt", "http://a\x1bb"]
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(BadRequest) as told:
        checked_address(text)
    assert "vllm-server=http://host:8000" in str(told.value)


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    result = CliRunner().invoke(cli, ["run", "--engines", "vllm-server=http://me:hunter2@host:8000", "--prompt", "x"])
    assert isinstance(result.exception, (BadRequest, SystemExit))
    told = str(result.exception) + result.output
    assert "hunter2" not in told
    assert "KVTUI_SERVER_API_KEY" in told


def test_engines_and_addresses_come_apart() -> None:
    assert _apart(["vllm", "vllm-server=http://h:1/a=b"]) == (["vllm", SERVER], "http://h:1/a=b")
    assert _apart(["vllm-server"]) == ([SERVER], None)
    assert _apart(["h2o=3"]) == (["h2o=3"], None)
    for engines, server in ((["vllm", SERVER], None), ([SERVER, SERVER], "http://h"), ([SERVER], "h")):
        with pytest.raises(BadRequest):
            check_knobs(WorkerConfig(engines=engines, server=server))
    check_knobs(WorkerConfig(engines=["vllm", SERVER], server="http://h:8000"))


def test_metrics_of_today_and_of_before() -> None:
    today = server_metrics.read(recorded("metrics.txt"))
    assert today == server_metrics.Reading(0.0, 0, 0, 0, 0, 52)
    old = "vllm:gpu_cache_usage_perc{} 0.5\nvllm:gpu_prefix_cache_hits_total 3.0\nvllm:num_requests_running 2.0\n"
    assert server_metrics.read(old) == server_metrics.Reading(0.5, 2, None, None, 3, None)
    two = "".join(
        f'vllm:kv_cache_usage_perc{{engine="{n}"}} {usage}\nvllm:num_requests_running{{engine="{n}"}} {running}\n'
        for n, (usage, running) in enumerate([(0.2, 1), (0.4, 4)])
    )
    assert server_metrics.read(two) == server_metrics.Reading(pytest.approx(0.3), 5)
    assert server_metrics.read("process_cpu_seconds_total 3\n") is None
    assert server_metrics.read("vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running -1\n") is None
    with pytest.raises(ValueError):
        server_metrics.read("vllm:kv_cache_usage_perc {{{ oh\n")


@pytest.mark.parametrize("value", ["-5", "NaN", "+Inf", "9e15", "1e300", "4503599627370496"])
def test_metrics_that_cannot_be_are_unknown(value: str) -> None:
    names = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting", "num_preemptions_total")
    told = "".join(f"vllm:{name} 1\nvllm:{name} {value}\n" for name in names)
    assert server_metrics.read(told) is None
    assert server_metrics.read(told + "vllm:prefix_cache_hits_total 4e9\n").prefix_hits == 4_000_000_000


def test_ids_of_older_releases_are_checked_too() -> None:
    for digits in ("9" * 5000, "-1", "10", "x"):
        told = {"choices": [{"text": "?", "logprobs": {"tokens": [f"token_id:{digits}"]}}]}
        assert [t.token_id for t in chunk(json.dumps(told), 10).tokens] == [UNKNOWN_TOKEN]


def test_streams_in_any_pieces_say_the_same() -> None:
    whole = recorded("chat.sse").encode()
    said = list(messages([whole]))
    assert said[-1] == "[DONE]"
    assert len(said) == 19
    for size in (1, 7, 1000):
        assert list(messages(whole[at : at + size] for at in range(0, len(whole), size))) == said
    crlf = whole.replace(b"\n", b"\r\n")
    assert list(messages([b": comment\r\n", crlf])) == said


def test_a_chunk_of_several_tokens_is_as_many() -> None:
    told = {"choices": [{"text": " a b", "token_ids": [3, 4], "logprobs": {"token_logprobs": [-1.0, None]}}]}
    one, two = chunk(json.dumps(told), 10).tokens
    assert ((one.token_id, one.logprob), (two.token_id, two.logprob)) == ((3, -1.0), (4, None))
    older = {"choices": [{"text": " a", "logprobs": {"tokens": ["token_id:3"], "token_logprobs": [-1.0]}}]}
    assert [t.token_id for t in chunk(json.dumps(older), 10).tokens] == [3]
    assert [t.token_id for t in chunk(json.dumps(told), 0).tokens] == [UNKNOWN_TOKEN] * 2
    thinking = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    assert (chunk(json.dumps(thinking), 0).tokens[0].text, chunk(json.dumps(thinking), 0).content) == ("hm", "")


def test_the_wire_carries_what_a_server_says() -> None:
    assert events.decode(events.encode([LOAD])) == [LOAD]
    plausible.check(events.Token(request=0, index=0, token_id=UNKNOWN_TOKEN, text="x", logprob=None))
    with pytest.raises(ValueError):
        plausible.check(replace(LOAD, kv_usage=float("nan")))


def test_ids_are_compared_and_texts_are_not() -> None:
    state = state_of()
    assert state.engines[SERVER].requests[0].differs == [False] * 30
    assert any(f.engine == SERVER and f.what == "=" for f in verdict.findings(state))
    state = state_of(replace(LOAD, compares=False), ids=False)
    assert state.engines[SERVER].requests[0].differs == []
    assert not any(f.engine == SERVER and f.what in "=≠" for f in verdict.findings(state))
    assert "text only" in drawn(Vitals(SERVER), state)


def test_unknown_memory_is_no_small_memory() -> None:
    state = state_of()
    assert verdict.paged_bytes(state, SERVER) == 0
    assert not any(f.what == "smallest" for f in verdict.findings(state))
    assert not any("Smallest" in c.text for c in captions.captions(state))
    fastest = [f.fact for f in verdict.findings(state) if f.what == "fastest"]
    assert all("on clocks of their own" in fact for fact in fastest)
    told = drawn(MemoryGraph(SERVER), state)
    assert "2.80 % in use" in told
    assert "1 ran, 2 waited" in told
    assert "unknown" in drawn(MemoryGraph(SERVER), state_of(None), 120, 1)  # not everybody else's figures
    legend = drawn(MemoryGraph("vllm"), state, 120, 1)
    assert "vLLM server –" in legend
    for pane in (MemoryGraph(SERVER), Podium(SERVER), TransferGraph(SERVER), Heatmap(SERVER)):
        for width, height in ((20, 3), (44, 5), (100, 1), (100, 8)):
            said = drawn(pane, state, width, height)
            assert "−100" not in said
            assert " 0 B" not in said
            assert all(len(line) <= width for line in said.split("\n")[1:])


def test_what_is_not_told_says_so() -> None:
    for state in (state_of(None), state_of(events.ServerLoad(engine=SERVER, model="m"))):
        assert "unknown" in drawn(MemoryGraph(SERVER), state)
        assert "unknown" in drawn(Podium(SERVER), state, 60, 8)
        assert "not told by the server" in drawn(TransferGraph(SERVER), state)
    assert server_load.NOT_TOLD in " ".join(drawn(Heatmap(SERVER), state).split())
    (one,) = [fact for fact in facts(state, Place(3)) if fact.engine == SERVER]
    assert one.missing == NOT_TOLD


def test_json_and_table_tell_null_rather_than_nought() -> None:
    state = state_of(ids=False)
    rows = [headless._row(state, engine.requests[0].outcome) for engine in state.engines.values()]
    paged, server = json.loads(json.dumps(rows))
    assert paged["device_kv_peak_bytes"] > 0
    assert "server" not in paged
    for name in ("device_kv_peak_bytes", "device_peak_bytes", "host_kv_peak_bytes", "h2d_bytes", "d2h_bytes"):
        assert server[name] is None
        assert isinstance(paged[name], int)
    assert server["tokens"] == [None] * 30
    assert server["server"] == {
        "model": "smollm2-135m", "compares": True, "kv_usage_peak": 0.031, "preemptions": 3, "prefix_hit_share": 0.431,
    }  # fmt: skip
    assert headless._cells(state, server)[-4:] == ("–", "–", "–", "–")


def test_a_server_alone_has_no_link_and_nothing_is_modelled() -> None:
    state = RunState()
    state.apply_all([replace(event, link=None) if isinstance(event, events.RunStarted) else event for event in race()])
    told = json.loads(json.dumps(headless._report(state, [])))
    assert told["link"] == {"profile": None, "measured": None, "bytes_per_s": None}
    header = Header(WorkerConfig())
    header._state = state
    for said in (headless._heading(state), "".join(text for text, _ in header.draw(160, 1)[0])):
        assert "smollm2-135m" in said
        assert "link" not in said
        assert "modelled" not in said


@pytest.mark.parametrize(
    ("model", "other"),
    [("smollm2-135m", False), ("HuggingFaceTB/SmolLM2-135M-Instruct", False), ("Qwen/Qwen2.5-0.5B-Instruct", True)],
)
def test_the_model_is_named_and_another_one_is_marked(model: str, other: bool) -> None:
    state = state_of(replace(LOAD, model=model))
    assert served(state, state.engines[SERVER]) == ("≠ " if other else "") + model
    assert served(state, state.engines["vllm"]) == ""
    rows = [headless._row(state, engine.requests[0].outcome) for engine in state.engines.values()]
    table = headless._describe(state, rows, first=False)
    assert f"vLLM server ({'≠ ' if other else ''}{model})" in table
    assert ("≠ another model than smollm2-135m" in table) == other


def test_figures_that_nobody_reads_any_more_say_when_they_were_read() -> None:
    running = [e for e in race() if not isinstance(e, events.Outcome) or e.engine != SERVER]
    state = RunState()
    state.apply_all(running)
    told = drawn(MemoryGraph(SERVER), state)
    assert "2.80 % in use\n1 running, 2 waiting, 3 preempted" in told
    assert "2.80 % in use" in drawn(Podium(SERVER), state, 60, 8)
    state = state_of()
    told = drawn(MemoryGraph(SERVER), state, 48)
    assert "2.80 % in use at 00:02.3\n1 ran, 2 waited, 3 preempted" in told
    assert "in use at 00:02.3" in drawn(Podium(SERVER), state, 60, 8)


def test_before_the_next_request_is_sent_the_figures_are_the_last_ones() -> None:
    state = state_of()
    state.apply(events.Submitted(request=1, title="", text="x", offsets=[1], prompt_tokens=1, clock_s=3.0))
    assert "in use at 00:02.3" in drawn(MemoryGraph(SERVER), state)


async def test_the_column_zoomed_shows_more_of_the_memory_not_less() -> None:
    config = WorkerConfig(engines=["vllm", SERVER], server="http://host:8000")
    for size in ((120, 36), (80, 24)):
        app = KvtuiApp(config, ScriptedSource(race(replace(LOAD, model="Qwen/Qwen2.5-0.5B-Instruct"))))
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda app=app: len(app.race._columns) == 2)
            await pilot.press("right")
            await shows(pilot, "2 vLLM server  ≠ Qwen/Qwen2.5-0.5B-Instruct ")
            before = app.race._columns[1]._memory.size.height
            await pilot.press("enter")
            await shows(pilot, "KV memory 0–100 %")
            await shows(pilot, "1 ran, 2 waited, 3 preempted")
            assert "2.80 % in use at 00:02.3" in screen_text(app)
            assert app.race._columns[1]._memory.size.height > before
            assert app.race._columns[1]._stream.size.height >= 4
            assert not app.race.query(Comparison)


async def test_where_the_server_is_stands_in_its_lower_border() -> None:
    said = race()
    address = "http://gpu-17.cluster.example.org:8000/v2"
    knobs = {"clock": "its own wall time", "address": address}
    infos = [replace(info, knobs=knobs if info.id == SERVER else {}) for info in said[0].engines]
    infos.append(replace(infos[0], id="h2o"))
    app = KvtuiApp(WorkerConfig(), ScriptedSource([replace(said[0], engines=infos), *said[1:]]))
    async with app.run_test(size=(120, 36)) as pilot:  # three columns of 40
        await shows(pilot, " gpu-17.cluster.example.org:8000 ─")
        await pilot.resize_terminal(240, 36)
        await shows(pilot, f" {address}, clock its own wall time ─")


@pytest.mark.parametrize("room", range(4, 60))
def test_borders_hold_whole_words(room: int) -> None:
    eager = {"heavy_share": 0.5, "alpha": 9.0, "budget": 0.3, "prefill": "eager", "anchors": 0.6, "victim": "x"}
    whole = ["anchors 0.6", "eager prefill", "budget 0.3", "α 9", "heavy 0.5"]
    told = borders.knobs_told(eager, room)
    fits = [", ".join(whole[:n]) for n in range(1, 6) if len(", ".join(whole[:n])) <= room]
    assert told == (fits[-1] if fits else "anchors 0.6"[: room - 1].rstrip() + "…")
    name = borders.model_told("≠ Qwen/Qwen2.5-0.5B-Instruct", room)
    assert len(name) <= room
    assert name.startswith("≠ Q")
    assert name == "≠ Qwen2.5-0.5B-Instruct" or not 23 <= room < 28
    address = borders.knobs_told({"address": "http://[::1]:8000/a", "clock": "its own wall time"}, room)
    assert len(address) <= room
    assert "[::1]:8000" in address or room < 10


async def test_the_column_among_others() -> None:
    config = WorkerConfig(engines=["vllm", SERVER], server="http://host:8000")
    app = KvtuiApp(config, ScriptedSource(race()))
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "2 vLLM server")
        await shows(pilot, "✓ done")
        await shows(pilot, "a server does not tell")
        assert "in use" in screen_text(app)
        assert [c.engine for c in app.race.query(Column)] == ["vllm", SERVER]
        assert app.catalogue[:2] == ["vllm", SERVER]


def test_without_an_address_there_is_no_key_for_a_server() -> None:
    app = KvtuiApp(WorkerConfig(engines=["vllm"]), ScriptedSource([]))
    assert SERVER not in app.catalogue
