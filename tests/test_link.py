"""The clock and the modelled link: what counts, what is left out, what overlaps."""

from __future__ import annotations

import time

import pytest

from engines import link
from engines.clock import Clock
from engines.errors import BadRequest
from engines.link import LATENCY_S, PROFILES, ModelledLink, memory_bytes_per_s, modelled


def nothing() -> None:
    pass


def test_the_clock_counts_running_time_and_leaves_out_what_is_excluded() -> None:
    clock = Clock()
    time.sleep(0.02)
    assert clock.now_s == 0
    with clock.running():
        time.sleep(0.02)
        with clock.excluded():
            time.sleep(0.2)
    assert 0.02 <= clock.now_s < 0.15


def test_waiting_moves_the_clock_forward_without_sleeping() -> None:
    clock = Clock()
    start = time.perf_counter()
    assert clock.wait_until(100.0) == pytest.approx(100.0)
    assert clock.wait_until(50.0) == 0
    assert clock.now_s == pytest.approx(100.0)
    assert time.perf_counter() - start < 1


def test_a_transfer_takes_latency_plus_bytes_over_bandwidth() -> None:
    clock = Clock()
    link = ModelledLink(modelled("unscaled:0.001"), clock)  # 1 MB/s
    arrival = link.to_device(500_000, nothing)
    assert arrival == pytest.approx(0.5 + LATENCY_S)
    link.wait(arrival)
    assert clock.now_s == pytest.approx(arrival)
    assert link.traffic.hidden_s == pytest.approx(0)


def test_what_computation_covers_is_hidden() -> None:
    clock = Clock()
    link = ModelledLink(modelled("unscaled:0.001"), clock)
    arrival = link.to_device(500_000, nothing)
    clock.wait_until(0.4)  # stands for 0.4 s of computing
    link.wait(arrival)
    assert clock.now_s == pytest.approx(arrival)
    assert link.traffic.hidden_s == pytest.approx(0.4, abs=0.01)


def test_one_direction_is_serial_and_the_two_are_independent() -> None:
    link = ModelledLink(modelled("unscaled:0.001"), Clock())
    first, second = link.to_device(100_000, nothing), link.to_device(100_000, nothing)
    assert second == pytest.approx(2 * first)
    assert link.to_host(100_000, nothing) == pytest.approx(first)
    assert (link.traffic.h2d_bytes, link.traffic.d2h_bytes) == (200_000, 100_000)


def test_the_real_copy_is_not_charged() -> None:
    clock = Clock()
    link = ModelledLink(modelled("unscaled:1000"), clock)
    with clock.running():
        link.to_device(8, lambda: time.sleep(0.1))
    assert clock.now_s < 0.05


def test_profiles_keep_the_ratio_of_link_to_memory() -> None:
    for name, profile in PROFILES.items():
        info = modelled(name)
        assert not info.measured
        expected = profile.link_bytes_per_s / profile.device_bytes_per_s
        assert info.bytes_per_s / memory_bytes_per_s() == pytest.approx(expected)
    assert modelled(None).profile == "pcie4"
    assert modelled("nvlink-c2c").bytes_per_s > 5 * modelled("pcie5").bytes_per_s


@pytest.mark.parametrize("name", ["usb", "unscaled:", "unscaled:-1", "unscaled:nan", "unscaled:inf", "unscaled:x"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="unscaled:<GB/s>"):
        modelled(name)


def test_a_link_that_was_modelled_on_a_busy_machine_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_seen_bytes_per_s", [1e6])
    slow, given = (ModelledLink(modelled(name), Clock()) for name in ("pcie4", "unscaled:2"))
    before = slow.info.bytes_per_s
    link.renew([slow, given])
    assert slow.info.bytes_per_s > 10 * before
    assert slow.info.bytes_per_s / memory_bytes_per_s() == pytest.approx(25 / 2039)
    assert given.info.bytes_per_s == 2e9
    monkeypatch.setattr(link, "_seen_bytes_per_s", [1e15])
    link.renew([slow])
    assert memory_bytes_per_s() == 1e15  # what was seen once is possible
