"""A model and an engine without tensors: what the race needs, and no more."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from engines.errors import BadRequest, DeviceOutOfMemory
from engines.events import ENGINE_LABELS, Event, KvState, LinkInfo, Memory, Outcome, Prefill, Token, Transfer, pack_cell

# For child processes, which find the packages also where they are not installed.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}


class LetterTokenizer:
    """A token a character: enough for a worker under test, and loaded at once."""

    chat_template = None
    is_fast = True

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        return {
            "input_ids": [ord(letter) for letter in text],
            "offset_mapping": [(index, index + 1) for index in range(len(text))],
        }

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return "".join(map(chr, token_ids))


class FakeDevice:
    type = "cpu"

    def __str__(self) -> str:
        return self.type


@dataclass
class FakeModel:
    tokenizer: Any = field(default_factory=LetterTokenizer)
    context_limit: int = 512
    eos_ids: set[int] = field(default_factory=set)
    name: str = "fake"
    dtype: str = "torch.float32"
    device: Any = field(default_factory=FakeDevice)
    layers: int = 2
    kv_heads: int = 1
    weights_bytes: int = 1000
    weights: str = ""
    kv_bytes_per_token: int = 16


class FakeEngine:
    """Answers with `answer`'s token ids, `step_s` of its own clock a token, after `layers` slices of prefill."""

    def __init__(self, engine_id: str, model: FakeModel, answer: list[int], step_s: float = 0.01) -> None:
        self.id, self.label, self.model = engine_id, ENGINE_LABELS.get(engine_id, engine_id), model
        self.answer, self.step_s = answer, step_s
        self.clock_s = 5.0  # engines that raced before do not start at 0
        self.link_info = LinkInfo(profile="pcie4", measured=False, bytes_per_s=1e9, latency_s=1e-5, description="")
        self.context: list[int] = []
        self.submitted: list[tuple[list[int], int, bool]] = []
        self.resets = 0
        self.fault: Exception | None = None
        self.oom_at: int | None = None
        self.device_pool = self.host_pool = SimpleNamespace(reset_peaks=lambda: None)
        self._slices: deque[Event] = deque()
        self._request = -1

    def knobs(self) -> dict[str, Any]:
        return {"step_s": self.step_s}

    def start_clock_at(self, seconds: float) -> None:
        assert seconds >= self.clock_s - 1e-9, "a clock never runs backwards"
        self.clock_s = max(self.clock_s, seconds)

    @property
    def has_work(self) -> bool:
        return bool(self._slices)

    def submit(
        self, request: int, token_ids: list[int], max_new_tokens: int, *, follow_up: bool, **sampling: Any
    ) -> None:
        if follow_up and not self.context:
            raise BadRequest("a follow-up needs an earlier conversation")
        self.submitted.append((token_ids, max_new_tokens, follow_up))
        self.context = [*(self.context if follow_up else []), *token_ids]
        self._request = request
        prompt, layers, answer = len(token_ids), self.model.layers, self.answer[:max_new_tokens]
        for layer in range(layers):
            self._slices.append(
                Prefill(request=request, tokens_done=0, tokens_total=prompt, layers_done=layer + 1, layers_total=layers)
            )
        for index, token_id in enumerate(answer):
            self._slices.append(Token(request=request, index=index, token_id=token_id, text="", logprob=-0.5))
        self._slices.append(Outcome(request=request, outcome="ok", prompt_tokens=prompt, new_tokens=len(answer)))

    def advance(self, observe: bool = False) -> list[Event]:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            self._slices.clear()
            raise fault
        if not self._slices:
            return []
        self.clock_s += self.step_s
        event = self._slices.popleft()
        events = [event]
        if isinstance(event, Token):
            self.context.append(event.token_id)
            if isinstance(self._slices[0], Outcome):
                events.append(self._slices.popleft())
            if self.oom_at == event.index:
                self._slices.clear()
                events = [Outcome(request=event.request, outcome="device_oom", detail="out of device memory")]
        return [self._stamp(event) for event in events]

    def cancel(self) -> list[Event]:
        if not self._slices:
            return []
        self._slices.clear()
        self.context.clear()
        return [self._stamp(Outcome(request=self._request, outcome="cancelled"))]

    def reset(self) -> None:
        self.resets += 1
        self._slices.clear()
        self.context.clear()

    def memory(self) -> Memory:
        return Memory(
            device_bytes={"kv": 16 * len(self.context)},
            host_bytes={},
            device_peak_bytes=16 * len(self.context) + 1000,
            host_peak_bytes=0,
            device_kv_peak_bytes=16 * len(self.context),
            host_kv_peak_bytes=0,
        )

    def transfer(self) -> Transfer:
        return Transfer(
            h2d_bytes=0,
            d2h_bytes=0,
            h2d_total_bytes=0,
            d2h_total_bytes=0,
            span_s=0,
            busy_s=0,
            hidden_s=0,
            measured=False,
        )

    def view(self, request: int) -> Any:
        tokens = len(self.context)
        if not tokens:
            return None
        return SimpleNamespace(
            tokens=tokens,
            layers=self.model.layers,
            cells=np.full((self.model.layers, tokens), pack_cell(KvState.DEVICE, 1.0), np.uint8),
            mass=np.full((self.model.layers, tokens), 1 / tokens, np.float32),
            fetched_tokens=0.0,
            evicted_tokens=0.0,
        )

    def heads(self, request: int, layer: int) -> Any:
        states = np.full((self.model.kv_heads, len(self.context)), KvState.DEVICE, np.uint8)
        return SimpleNamespace(states=states, mass=np.full(states.shape, 1 / states.size, np.float32))

    def _stamp(self, event: Event) -> Event:
        return msgspec.structs.replace(event, engine=self.id, clock_s=self.clock_s)


def full_device() -> DeviceOutOfMemory:
    return DeviceOutOfMemory("weights", 2 << 20, 0, 1 << 20)
