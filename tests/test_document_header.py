"""Above the document: shares of all entries, in as many words as there is room for."""

from __future__ import annotations

import numpy as np
import pytest

from engines.events import ENGINE_LABELS, KvState, pack_cell
from kvtui.cache_state import CacheState
from kvtui.panes.document_header import DocumentHeader
from kvtui.reading import ALL, Reading
from kvtui.state import EngineState, RunState

ENGINES = list(ENGINE_LABELS)


def header(width: int, engine: str, engines: list[str], unknown: str = "") -> str:
    """Of engines each of which has a quarter of its entries on the device, half on the host, an eighth on the disk."""
    state = RunState()
    row = [KvState.DEVICE] * 2 + [KvState.HOST] * 4 + [KvState.DISK, KvState.EVICTED]
    cells = np.array([[pack_cell(s, float(s == KvState.DEVICE)) for s in row]], np.uint8)
    for id in engines:
        state.engines[id] = one = EngineState(id, ENGINE_LABELS[id])
        if id != unknown:
            one.cache = CacheState(cells, np.zeros((1, 0), np.uint8), np.zeros(cells.shape, np.int32), 0.0, 1.0, 1)
    reading = Reading(engine)
    reading.take(state)
    line = "".join(text for text, _ in DocumentHeader(reading, ENGINES).draw(width, 2)[1])
    assert len(line) <= width
    return line


def test_one_engine() -> None:
    told = "H2O 25 % on device · 50 % on host · 13 % on disk · 12 % evicted"
    assert header(132, "h2o", ENGINES) == f" of all KV entries (layers × heads × 8 tokens)   {told}"
    assert header(90, "h2o", ENGINES) == f" of all entries   {told}"
    assert header(80, "h2o", ENGINES) == " of all entries   H2O ▀ 25 % ░ 50 % ≡ 13 % · 12 %"


@pytest.mark.parametrize("engine", [ALL, "h2o", "infinigen+"])
@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_it_fits(width: int, engine: str) -> None:
    assert "25" in header(width, engine, ENGINES)


def test_six_engines_in_a_narrow_terminal_are_told_by_what_is_on_the_device() -> None:
    told = " on device Paged 25% H2O 25% H2O+ 25% InfiniGen 25% InfiniGen+ 25% Hybrid 25%"
    assert header(80, ALL, ENGINES) == told


def test_what_is_not_known_yet() -> None:
    assert "H2O not known yet" in header(200, ALL, ENGINES[:3], unknown="h2o")
    assert "H2O –" in header(80, ALL, ENGINES[:3], unknown="h2o")
    assert header(80, "h2o", ENGINES, unknown="h2o") == " what is left of the words is not known yet"
