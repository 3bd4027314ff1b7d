"""What improvements do, in a column: hits and savings over the link, the disk below the host, anchors."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from engines import events
from kvtui.headless import _row
from kvtui.panes.heatmap import Heatmap
from kvtui.panes.legend import Legend
from kvtui.panes.lines import Lines, pieces_len
from kvtui.panes.memory import MemoryGraph
from kvtui.panes.transfer import TransferGraph
from kvtui.state import RunState
from kvtui.traffic import Traffic
from tests.synthetic import Race, started

TRANSFER = events.Transfer(
    engine="infinigen+",
    h2d_bytes=100,
    d2h_bytes=0,
    h2d_total_bytes=500,
    d2h_total_bytes=7_000,
    span_s=0.1,
    busy_s=0.08,
    hidden_s=0.06,
    measured=False,
    saved_bytes=900,
    hit_rate=0.95,
)


def improved(event: Any, **memory: Any) -> Any:
    if isinstance(event, events.Memory):
        return replace(event, **memory)
    if isinstance(event, events.Transfer) and event.h2d_bytes:
        return replace(event, saved_bytes=9 * event.h2d_bytes, hit_rate=0.93, hidden_s=0.0891)
    return event


def race(improve: str, **memory: Any) -> RunState:
    """Paged beside one engine with its improvement on."""
    ran = Race(prompt_tokens=512, new_tokens=30)
    state, ids = RunState(), ("vllm", improve)
    infos = [events.EngineInfo(id=id, label=events.ENGINE_LABELS[id]) for id in ids]
    state.apply_all([replace(started(), engines=infos), ran.submitted(), *ran.events_of("vllm")])
    for event in ran.events_of(improve.removesuffix("+")):
        state.apply(replace(improved(event, **memory), engine=improve))
    return state


def drawn(pane: Lines, state: RunState, width: int, height: int) -> list[str]:
    pane.show(state)  # type: ignore[attr-defined]
    lines = pane.draw(width, height)
    assert all(pieces_len(line) <= width for line in lines)
    return ["".join(text for text, _ in line) for line in lines]


def test_an_answers_traffic_is_weighed_by_bytes() -> None:
    traffic = Traffic()
    assert (traffic.hit_rate, traffic.hidden_share) == (None, None)
    traffic.add(TRANSFER)
    traffic.add(replace(TRANSFER, h2d_bytes=3000, saved_bytes=0, hit_rate=0.0, busy_s=0.04, hidden_s=0.0))
    assert traffic.hit_rate == pytest.approx(0.95 * 1000 / 4000)
    assert traffic.hidden_share == pytest.approx(0.5)
    assert (traffic.fetched_bytes, traffic.saved_bytes) == (3100, 900)
    traffic.add(replace(TRANSFER, hit_rate=None))  # an engine without prefetch says nothing of hits
    assert traffic.hit_rate == pytest.approx(0.95 * 1000 / 4000)


def test_what_the_prompt_moved_is_not_the_answers() -> None:
    state, ran = RunState(), Race(prompt_tokens=64, new_tokens=4)
    state.apply_all([started(("infinigen+",)), ran.submitted(), TRANSFER])
    request = state.engines["infinigen+"].requests[0]
    assert request.traffic.busy_s == 0
    state.apply(events.Token(engine="infinigen+", request=0, index=0, token_id=1, text="a", logprob=0.0))
    state.apply(TRANSFER)
    assert request.traffic.busy_s == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("width", "first", "second"),
    [
        (22, "99 % hidden", "93 % hit"),
        (38, "99 % hidden", "of"),
        (76, "99 % of transfer time hidden", "93 % of selected entries on the device already"),
    ],
)
def test_prefetch_says_what_it_saved(width: int, first: str, second: str) -> None:
    state = race("infinigen+")
    lines = drawn(TransferGraph("infinigen+"), state, width, 5)
    assert lines[1].startswith("↑ ")
    assert lines[1].endswith(first)
    assert second in lines[2]
    assert lines[2].endswith(" saved")
    assert len(lines) == 5


def test_graphs_stay_as_tall_in_every_column() -> None:
    state = race("infinigen+")
    beside = drawn(TransferGraph("vllm"), state, 38, 4)
    assert len(beside) == len(drawn(TransferGraph("infinigen+"), state, 38, 4)) == 4
    assert beside[2] == ""  # the line that the other one needs
    assert drawn(TransferGraph("infinigen+"), state, 38, 2)[0].startswith("link modelled")


def test_the_baselines_hidden_time_is_told_too() -> None:
    ran = Race(prompt_tokens=512, new_tokens=30)
    state = RunState()
    state.apply_all([started(), ran.submitted(), *ran.merged()])
    assert drawn(TransferGraph("infinigen"), state, 38, 4)[1].endswith("56 % hidden")
    assert "hidden" not in "".join(drawn(TransferGraph("vllm"), state, 38, 4))


def test_the_disk_is_shown_where_it_is_in_use() -> None:
    state = race("infinigen+", host_bytes={"kv": 8_000_000}, disk_bytes={"kv": 12_000_000})
    pane = MemoryGraph("infinigen+")
    assert drawn(pane, state, 22, 5)[1].endswith("▒ 8.00 MB ≡ 12.0 MB")
    assert drawn(pane, state, 60, 5)[1].endswith("▒ host 8.00 MB  ≡ disk 12.0 MB")
    assert "▒ host 8.00 MB  ≡ disk 12.0 MB" in drawn(pane, state, 80, 3)[0]
    assert "⠒ host 8.00 MB ≡ disk 12.0 MB" in drawn(pane, state, 150, 1)[0]  # zoomed
    assert "≡ on disk" in drawn(Legend(), state, 120, 1)[0]
    assert drawn(pane, state, 92, 1)[0].startswith("KV memory ─")  # where there is less room, with fewer words
    without = race("infinigen+")
    assert "disk" not in "".join(drawn(pane, without, 60, 5) + drawn(Legend(), without, 120, 1))


@pytest.mark.parametrize(
    ("width", "title"),
    [
        (18, "◆ 112 ────── 0–576"),
        (20, "112 anchors ── 0–576"),
        (24, "◆ 112 anchors ──── 0–576"),
        (36, "◆ 112 anchors, 9 left out ──── 0–576"),
        (60, "layers × positions  ◆ 112 anchors, 9 left out ──"),
    ],
)
def test_anchors_are_counted_above_the_picture(width: int, title: str) -> None:
    state = race("h2o+", anchors=112, anchors_left_out=9)
    assert title in drawn(Heatmap("h2o+"), state, width, 5)[0]
    assert "anchors" not in drawn(Heatmap("vllm"), state, width, 5)[0]


def test_no_early_position_left_out_is_not_worth_a_word() -> None:
    assert "◆ 112 anchors ──" in drawn(Heatmap("h2o+"), race("h2o+", anchors=112), 60, 5)[0]
    assert "◆ 0 anchors ──" in drawn(Heatmap("h2o+"), race("h2o+", anchors=0), 60, 5)[0]


def test_a_row_of_the_report_has_what_was_at_work_and_no_more() -> None:
    def row(state: RunState, engine: str) -> dict[str, Any]:
        return _row(state, events.Outcome(engine=engine, request=0, outcome="ok"))

    plain = row(race("h2o"), "vllm").keys()
    state = race("h2o+", anchors=112, anchors_left_out=9)
    assert row(state, "vllm").keys() == plain
    added = {key: value for key, value in row(state, "h2o+").items() if key not in plain}
    assert added == {"anchors": 112, "anchors_left_out": 9}
    state = race("infinigen+", disk_bytes={"kv": 5})
    added = {key: value for key, value in row(state, "infinigen+").items() if key not in plain}
    assert added.pop("saved_bytes") == 9 * state.engines["infinigen+"].transfer.h2d_total_bytes  # type: ignore[union-attr]
    assert added == {"hit_rate": pytest.approx(0.93), "hidden_share": pytest.approx(0.99), "disk_bytes": 5}


def test_older_traces_say_nothing_of_anchors() -> None:
    memory = Race().memory("h2o", 1.0, 100)
    assert memory.anchors is None
    assert b"anchors" not in events.encode([memory])


def test_the_plots_legend_gives_up_words_rather_than_figures() -> None:
    ran, state, ids = Race(prompt_tokens=512, new_tokens=2), RunState(), list(events.ENGINE_LABELS)[:6]
    infos = [events.EngineInfo(id=id, label=events.ENGINE_LABELS[id]) for id in ids]
    state.apply_all([replace(started(), engines=infos), ran.submitted()])
    for id in ids:
        state.apply(replace(ran.memory("infinigen", 1.0, 512), engine=id))
    wide, less, few, least = (drawn(MemoryGraph("h2o"), state, width, 1)[0] for width in (250, 222, 200, 156))
    assert "█ Paged (vLLM-style) 3.18 MB ⠒ host 11.8 MB" in wide
    assert "█ Paged 3.18 MB ⠒ host 11.8 MB" in less
    assert "█ Paged 3.18 MB ⠒ 11.8 MB" in few
    assert all(line.endswith("11.8 MB") for line in (wide, less, few))
    assert least.endswith("█ Hybrid 3.18 MB")
    assert all(line.startswith("KV memory ─") for line in (wide, less, few, least))
