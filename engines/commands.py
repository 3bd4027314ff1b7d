"""What the face asks of the worker: frames of msgpack, like the events that come back."""

from __future__ import annotations

import msgspec


class Command(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    pass


class Prompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One item of the prompt stream: plain `text`, after a `document` that it is about, if there is one; or chat
    `messages` ({"role", "content"}). A `follow_up` continues the conversation that each engine's cache holds. `title`
    is what the list of prompts shows. `cut` ("start", "middle" or "end") is where a prompt that is too long may be cut
    (its document, if it has one, and else its longest message); without it, such a prompt is refused by a `TooLong`
    event with its `ticket`. The ticket also comes back when the prompt is taken in or refused for another reason."""

    text: str = ""
    document: str = ""
    messages: list[dict[str, str]] | None = None
    follow_up: bool = False
    title: str = ""
    max_new_tokens: int | None = None
    cut: str = ""
    ticket: str = ""


class Submit(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Adds prompts to the end of the stream."""

    prompts: list[Prompt]


class Pause(Command, frozen=True):
    pass


class Resume(Command, frozen=True):
    pass


class Step(Command, frozen=True):
    """While paused: each engine advances by one token (or one slice of prefill)."""


class Rerun(Command, frozen=True):
    """The running conversation, and what was submitted together with it, from the beginning, with fresh caches and
    without what was cancelled. It is a new run: requests are counted from 0 again."""


class Cancel(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Ends the running requests (outcome "cancelled") and drops the queued ones. A notice with the `ticket` says when
    that is done."""

    ticket: str = ""


class SetBudget(Command, frozen=True, kw_only=True):
    """Share (0, 1] of KV entries kept or fetched; takes effect with the next conversation (rerun or new prompt)."""

    budget: float


class SetEngines(Command, frozen=True, kw_only=True):
    """The engine ids to run, in column order; takes effect like SetBudget."""

    engines: list[str]


class SetImprovements(Command, frozen=True, kw_only=True, omit_defaults=True):
    """Improvements of the baseline engines, on or off (None: as it was); takes effect like SetBudget. `anchors` is a
    share of H2O's budget, 0 for none; `scoring`, `prefill` and `prefetch` are among those of engines.knobs, and ""
    stands for what the engine does by itself."""

    anchors: float | None = None
    scoring: str | None = None
    prefill: str | None = None
    prefetch: str | None = None


class Focus(Command, frozen=True, kw_only=True, omit_defaults=True):
    """The layer that a person looks at (None: none in particular), see `events.Heads`."""

    layer: int | None = None


class Shutdown(Command, frozen=True):
    pass


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first frame that a worker reads. `None` means the default of the engines. `server` is the address of the
    engine "vllm-server"."""

    model: str = "smollm2-135m"
    random_weights: bool = False
    device: str = "auto"
    dtype: str = "auto"
    weights: str = "auto"
    engines: list[str] = msgspec.field(default_factory=lambda: ["vllm", "h2o", "infinigen"])
    budget: float = 0.3
    alpha: float | None = None
    link: str | None = None
    device_memory_bytes: int | None = None
    host_memory_bytes: int | None = None
    prefill: str | None = None
    scoring: str | None = None
    anchors: float | None = None
    prefetch: str | None = None
    resident: float | None = None
    disk_bytes: int | None = None
    disk_folder: str | None = None
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    truncate: str = ""  # where prompts that are too long are cut: start, middle, end; empty: they are refused
    observe: bool = True
    server: str | None = None
    prompts: list[Prompt] = []


AnyCommand = (
    Submit | Pause | Resume | Step | Rerun | Cancel | SetBudget | SetEngines | SetImprovements | Focus | Shutdown
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyCommand)
_config_decoder = msgspec.msgpack.Decoder(WorkerConfig)


def encode(command: Command | WorkerConfig) -> bytes:
    return _encoder.encode(command)


def decode(payload: bytes) -> AnyCommand:
    """Raises `msgspec.DecodeError` or `msgspec.ValidationError`."""
    return _decoder.decode(payload)


def decode_config(payload: bytes) -> WorkerConfig:
    return _config_decoder.decode(payload)
