"""A race of fake engines against a fake server, for the tests of a server's column."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from fake_server import recorded
from race_fakes import FakeEngine, FakeModel, full_device

from engines.commands import Prompt, WorkerConfig
from engines.events import SERVER, Outcome, ServerLoad, Token
from engines.race import Race
from engines.server import ServerEngine

PROMPT_IDS: list[int] = json.loads(recorded("tokenize.json"))["tokens"]
END = 2


def _said() -> list[tuple[int, str]]:
    """The recorded answer: ids, and what the server made of them."""
    found = []
    for line in recorded("completions.sse").splitlines():
        if '"token_ids"' in line:
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            found.append((choice["token_ids"][0], choice["text"]))
    return found


SAID = _said()
ANSWER = [token for token, _ in SAID]
TEXT = "".join(text for _, text in SAID)


class RecordedTokenizer:
    """Knows the recorded ids, and gives every new conversation's text the recorded prompt's."""

    chat_template = "recorded"
    is_fast = True
    texts: ClassVar = dict(SAID)

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        return "".join(f"<{m['role']}>{m['content']}<end>" for m in messages) + "<assistant>"

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        ids = PROMPT_IDS if text.startswith("<") and not text.startswith("<end>") else [END, 500, 501]
        return {"input_ids": ids, "offset_mapping": [(at, at + 1) for at in range(len(ids))]}

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return "".join(self.texts.get(token, "") for token in token_ids)


@dataclass
class RecordedModel(FakeModel):
    tokenizer: Any = field(default_factory=RecordedTokenizer)
    name: str = "smollm2-135m"
    eos_ids: set[int] = field(default_factory=lambda: {END})
    shape: Any = field(default_factory=lambda: SimpleNamespace(vocab=49152))


class ServerCourse:
    """`answer` is what the fake paged engine says; the knobs are the configuration's. `key` and `silence_s` are the
    server's column's own."""

    def __init__(
        self, address: str, *prompts: Prompt, answer=ANSWER, engines=("vllm", SERVER), key="", silence_s=20.0,
        unbuildable=(), **knobs
    ):  # fmt: skip
        self.events: list[Any] = []
        self.built: dict[str, Any] = {}
        model = RecordedModel()

        def build(engine_id, model, *, server=None, **options):
            if engine_id in unbuildable:
                raise full_device()
            made: Any = FakeEngine(engine_id, model, answer)
            if engine_id == SERVER:
                made = ServerEngine(model, server, key=key, silence_s=silence_s)
            self.built[engine_id] = made
            return made

        prompts = prompts or (Prompt(text="Name three colours."),)
        config = WorkerConfig(engines=list(engines), server=address, prompts=list(prompts), **knobs)
        self.race = Race(model, config, self.events.append, build=build)
        self.race.start()

    def until(self, reached) -> ServerCourse:
        """Each step of a race that only waits lasts a twentieth of a second: half a minute is plenty."""
        for _ in range(600):
            if reached():
                return self
            self.race.advance()
        raise AssertionError("the race does not come so far")

    def finish(self) -> ServerCourse:
        for _ in range(600):
            if not self.race.advance():
                return self
        raise AssertionError("the race does not end")

    def of(self, kind, **fields):
        return [e for e in self.events if isinstance(e, kind) and all(getattr(e, k) == v for k, v in fields.items())]

    def tokens(self, request: int = 0) -> list[Token]:
        return self.of(Token, engine=SERVER, request=request)

    def text(self, request: int = 0) -> str:
        return "".join(token.text for token in self.tokens(request))

    def outcome(self, request: int = 0, engine: str = SERVER) -> Outcome:
        (found,) = self.of(Outcome, engine=engine, request=request)
        return found

    @property
    def load(self) -> ServerLoad:
        return self.of(ServerLoad)[-1]
