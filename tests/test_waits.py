"""How often a decode step would wait for a CUDA device: only for what the host has to know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import engines
from engines import kernels
from engines.link import CudaLink
from tests.stand_in import OnDevice, move, stand_in, there, waits
from tests.tiny import prompt, tiny


def waits_of_a_step(monkeypatch: pytest.MonkeyPatch, id: str, **knobs: Any) -> dict[str, int]:
    """By kind, of one decode step in the middle of an answer."""
    model, _ = tiny("llama")
    monkeypatch.setattr(kernels, "use_native", False)
    monkeypatch.setattr(kernels, "_on_host", lambda lengths: False)
    stand_in(monkeypatch)
    move(model.decoder)
    engine = engines.create_engine(id, model, **knobs)
    engine.submit(0, prompt(90), 12, ignore_eos=True)
    decoded = 0
    while decoded < 5:
        decoded += any(type(event).__name__ == "Token" for event in engine.advance())
    waits.clear()
    (token,) = engine.advance()
    assert type(token).__name__ == "Token"
    return dict(waits)


@pytest.mark.parametrize("id", ["vllm", "h2o", "h2o+"])
def test_paged_and_h2o_wait_for_the_token(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    assert waits_of_a_step(monkeypatch, id) == {"tolist": 1}


@pytest.mark.parametrize("id", ["infinigen", "infinigen+"])
def test_infinigen_waits_for_each_selection_too(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    """One reading for every layer but the first, which selects nothing: the host has the entries."""
    assert waits_of_a_step(monkeypatch, id) == {"tolist": 1, "cpu": 2}


def test_the_stand_in_counts() -> None:
    """Or the tests above could not fail."""
    waits.clear()
    computed = torch.ones(3) * there(torch.ones(3))
    assert isinstance(computed.sum(), OnDevice)
    assert float(computed.sum()) == 3
    computed.nonzero()
    assert not isinstance(computed.cpu(), OnDevice)
    if computed[0] > 0:
        computed.tolist()
    assert sum(waits.values()) == 5


class Stream:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        self.log.append(f"{self.name} waits for the copy on {event.stream}")

    def __enter__(self) -> None:
        self.log.append(f"on {self.name}")

    def __exit__(self, *fault: object) -> None:
        self.log.append("off")


class Event:
    def __init__(self, **_: object) -> None:
        self.stream = ""

    def record(self, stream: Stream) -> None:
        self.stream = stream.name


def test_copies_start_behind_the_computing_and_are_waited_for_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of a link's streams, and that a source's memory is kept until its copy is done; with stand-ins."""
    log: list[str] = []
    names = iter(["h2d", "d2h"])
    compute = Stream(log, "compute")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(log, next(names)))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: compute)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *given: pytest.fail("a link never synchronises"))
    link = CudaLink(engines.link.modelled("unscaled:1"), torch.device("cuda"))
    link.wait(link.to_device(8, lambda: log.append("copy in")))
    source = SimpleNamespace(record_stream=lambda stream: log.append(f"kept for {stream.name}"))
    link.to_host(8, lambda: log.append("copy out"), [source])  # type: ignore[list-item]
    assert log == [
        "h2d waits for compute",
        "on h2d",
        "copy in",
        "off",
        "compute waits for the copy on h2d",
        "d2h waits for compute",
        "on d2h",
        "copy out",
        "off",
        "kept for d2h",
    ]
