"""A model and an engine without tensors, and small tokenizers built in memory: what the race needs, and no more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from engines.errors import BadRequest, DeviceOutOfMemory
from engines.events import ENGINE_LABELS, Event, KvState, LinkInfo, Memory, Outcome, Prefill, Token, Transfer, pack_cell

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BRACKETS = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system turns here') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ m['content'] | trim + '<|im_end|>' }}{% endif %}{% endfor %}"
)
_CORPUS = ["the keeper of the light wrote the word in the logbook", "a goat on the stairs of the tower", "über naïve €"]


def byte_level_tokenizer(chat_template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2's, Llama 3's and SmolLM2's: a character may be split over tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    made.chat_template = chat_template
    return made


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """BPE with ▁ for spaces and byte fallback, as Llama 2's: a first word's space is dropped when decoding."""
    words = ["▁", "▁the", "▁light", "▁goat", "s", "t", "e"]
    vocab = {"<unk>": 0, "</s>": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    vocab |= {word: len(vocab) + i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


@dataclass
class FakeModel:
    tokenizer: Any = field(default_factory=byte_level_tokenizer)
    context_limit: int = 512
    name: str = "fake"
    dtype: str = "torch.float32"
    device: Any = field(default_factory=lambda: SimpleNamespace(type="cpu", __str__=lambda self: "cpu"))
    layers: int = 2
    kv_heads: int = 1
    weights_bytes: int = 1000
    kv_bytes_per_token: int = 16

    @property
    def eos_ids(self) -> set[int]:
        return {self.tokenizer.convert_tokens_to_ids("<|im_end|>")}


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

    def submit(self, request: int, token_ids: list[int], max_new_tokens: int, *, follow_up: bool, **sampling: Any) -> None:
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
            h2d_bytes=0, d2h_bytes=0, h2d_total_bytes=0, d2h_total_bytes=0, span_s=0, busy_s=0, hidden_s=0, measured=False
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

    def _stamp(self, event: Event) -> Event:
        import msgspec

        return msgspec.structs.replace(event, engine=self.id, clock_s=self.clock_s)


def full_device() -> DeviceOutOfMemory:
    return DeviceOutOfMemory("weights", 2 << 20, 0, 1 << 20)
