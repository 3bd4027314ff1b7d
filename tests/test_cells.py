from types import SimpleNamespace

import numpy as np
import pytest

from engines.cells import CellsEncoder, bin_mass
from engines.events import KvState, apply_cells, inflate, pack_cell


def view(cells, mass=None):
    layers, tokens = cells.shape
    if mass is None:
        mass = np.full(cells.shape, 1 / max(1, tokens), np.float32)
    return SimpleNamespace(
        tokens=tokens, layers=layers, cells=cells, mass=mass, fetched_tokens=1.5, evicted_tokens=np.float32(2)
    )


def random_cells(rng, layers, tokens):
    return rng.integers(0, 256, (layers, tokens), dtype=np.uint8)


def test_a_reader_gets_every_picture_back():
    rng, encoder = np.random.default_rng(1), CellsEncoder()
    before, tokens_before = b"", 0
    for step, tokens in enumerate([5, 5, 6, 9, 40]):
        cells = random_cells(rng, 3, tokens)
        event = encoder.encode(0, view(cells))
        assert event.whole == (step == 0)
        before, tokens_before = apply_cells(before, tokens_before, event), event.tokens
        assert before == cells.tobytes()


def test_an_engine_may_reuse_its_array():
    encoder, cells = CellsEncoder(), np.zeros((1, 4), np.uint8)
    first = encoder.encode(0, view(cells))
    cells[0, 2] = 7
    second = encoder.encode(0, view(cells))
    assert apply_cells(inflate(first.states), 4, second) == bytes([0, 0, 7, 0])


@pytest.mark.parametrize(("request_id", "shape"), [(1, (2, 8)), (0, (3, 8)), (0, (2, 7))])
def test_what_is_not_the_same_picture_grown_is_sent_whole(request_id, shape):
    encoder = CellsEncoder()
    encoder.encode(0, view(np.ones((2, 8), np.uint8)))
    event = encoder.encode(request_id, view(np.full(shape, 9, np.uint8)))
    assert event.whole
    assert inflate(event.states) == b"\x09" * (shape[0] * shape[1])


def test_unchanged_cells_cost_next_to_nothing():
    encoder = CellsEncoder()
    cells = random_cells(np.random.default_rng(2), 30, 4096)
    whole = encoder.encode(0, view(cells))
    grown = np.pad(cells, ((0, 0), (0, 1)), constant_values=pack_cell(KvState.DEVICE, 1.0))
    assert len(encoder.encode(0, view(grown)).states) < len(whole.states) / 50


def test_mass_on_a_log_scale():
    mass = np.array([[1.0, 1e-2, 2e-6, 9e-7, 0.0]], np.float32)
    assert bin_mass(mass).tolist() == [[255, 170, 13, 0, 0]]


def test_a_bin_holds_the_sum_of_its_positions():
    rng = np.random.default_rng(3)
    mass = rng.random((2, 1000)).astype(np.float32)
    mass /= mass.sum(axis=1, keepdims=True)
    binned = bin_mass(mass, 256)
    assert binned.shape == (2, 256)
    expected = np.zeros((2, 256))
    for position in range(1000):
        expected[:, position * 256 // 1000] += mass[:, position]
    np.testing.assert_allclose(binned, 255 * (1 + np.log10(expected) / 6), atol=0.51)


def test_short_and_empty_contexts():
    assert bin_mass(np.zeros((2, 3), np.float32)).shape == (2, 3)
    assert bin_mass(np.zeros((2, 0), np.float32)).shape == (2, 0)
    event = CellsEncoder().encode(0, view(np.zeros((2, 0), np.uint8)))
    assert (event.tokens, event.mass_bins) == (0, 0)
