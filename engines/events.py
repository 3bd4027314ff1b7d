"""The one wire language: what engines say, as bytes in a pipe, in a trace file and over MQTT.

Every event is a frozen struct with `run`, `engine` ("" where it concerns all), `clock_s` (the engine's own fair clock)
and `wall_s` (seconds since the run began). Over MQTT, `seq` counts a publisher's messages from 1; elsewhere it is 0.
Sizes are bytes, times seconds, rates bytes a second, and names say so.
Importing this module costs neither torch nor numpy.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from enum import IntEnum

import msgspec

SCHEMA_VERSION = 2

ENGINE_LABELS = {
    "vllm": "Paged (vLLM-style)",
    "h2o": "H2O",
    "h2o+": "H2O+",
    "infinigen": "InfiniGen",
    "infinigen+": "InfiniGen+",
    "hybrid": "Hybrid",
    "vllm-server": "vLLM server",
}
SERVER = "vllm-server"  # the only one that is not in this process
UNKNOWN_TOKEN = -1  # where a server says what its token reads, and not which one it is


class Event(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    run: str = ""
    engine: str = ""
    clock_s: float = 0.0
    wall_s: float = 0.0
    seq: int = 0


class LinkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The host-device link: `measured` is False when its times come from a model."""

    profile: str
    measured: bool
    bytes_per_s: float
    latency_s: float
    description: str


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    label: str
    knobs: dict[str, str | float | int | bool | None] = {}


class Loading(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Progress before the engines are ready. `fraction` is 0..1, or None when unknown."""

    stage: str
    fraction: float | None = None


class RunStarted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Sent once the weights are loaded, and again when knobs or the set of engines change. `dtype` is that of the KV
    cache, and of the weights if `weights` does not say otherwise ("int8"). `link` is None where nobody tells of one: a
    server alone."""

    model: str
    dtype: str
    device: str
    device_is_stand_in: bool
    link: LinkInfo | None
    engines: list[EngineInfo]
    layers: int
    kv_heads: int
    context_limit: int
    weights_bytes: int
    kv_bytes_per_token: int
    device_cap_bytes: int | None = None
    weights: str = ""
    schema: int = SCHEMA_VERSION

    @property
    def precision(self) -> str:
        """In words."""
        return f"{self.dtype}, {self.weights} weights" if self.weights else self.dtype


class Submitted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A request enters an engine (all engines if `engine` is ""). `text` is what the model reads; `offsets[i]` is the
    end of token i in `text`, in characters. A follow-up's tokens begin at `first_position` of the context. `ticket` is
    the prompt's own."""

    request: int
    title: str
    text: str
    offsets: list[int]
    prompt_tokens: int
    first_position: int = 0
    follow_up: bool = False
    prompts_total: int = 1
    ticket: str = ""


class Prefill(Event, frozen=True, kw_only=True, omit_defaults=True):
    """`tokens_done` of `tokens_total` are through all layers; `step_tokens` more are through `layers_done` of them."""

    request: int
    tokens_done: int
    tokens_total: int
    layers_done: int
    layers_total: int
    step_tokens: int = 0


class Token(Event, frozen=True, kw_only=True, omit_defaults=True):
    """One generated token. `text` holds complete characters only; it may be empty while a character is unfinished.
    `token_id` is `UNKNOWN_TOKEN` where a server does not tell it; then nothing is to be compared. `logprob` is None
    where it is not told."""

    request: int
    index: int
    token_id: int
    text: str
    logprob: float | None


class KvState(IntEnum):
    """Where a position's KV entry is, in one layer."""

    ABSENT = 0
    DEVICE = 1
    HOST = 2
    DISK = 3
    FETCHED = 4
    EVICTED = 5
    ANCHOR = 6


class Cache(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Where every position's KV entry is. `states` is deflated bytes of [layers, tokens] cells, one byte a cell (see
    `pack_cell`); whole when `whole`, else XORed with the cells before (the old ones padded with 0 on the right).
    `mass` is deflated bytes [layers, mass_bins]: the attention mass that a bin of positions received lately, on a
    log scale (0: under 1e-6 of the layer's whole, 255: all of it). `fetched_tokens` is the mean over layers of
    entries fetched in the last step, `evicted_tokens` the mean over layers and KV heads of entries gone for good."""

    request: int
    tokens: int
    layers: int
    whole: bool
    states: bytes
    mass: bytes
    mass_bins: int
    fetched_tokens: float = 0.0
    evicted_tokens: float = 0.0


class Heads(Event, frozen=True, kw_only=True, omit_defaults=True):
    """One layer seen head by head, for inspection: `states` is deflated bytes [kv_heads, tokens], one `KvState` each;
    `mass` is deflated bytes [kv_heads, tokens] on the scale of `Cache.mass` (shares of the layer's whole). Layers
    come in turn, the one in focus more often."""

    request: int
    layer: int
    kv_heads: int
    tokens: int
    states: bytes
    mass: bytes


class Memory(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes in use by tier and kind ("weights", "kv", "partial keys", "staging", "scores", ...), with peaks and caps.
    `disk_bytes` is what lies below the host. `kv_peak_bytes` are the KV entries' own peaks. Blocks are the paged
    arena's; `waste` is the share of allocated KV slots that hold nothing. `anchors` positions are protected from
    eviction (None where none ever is), `anchors_left_out` early ones found no room among them."""

    device_bytes: dict[str, int]
    host_bytes: dict[str, int]
    device_peak_bytes: int
    host_peak_bytes: int
    device_kv_peak_bytes: int
    host_kv_peak_bytes: int
    device_cap_bytes: int | None = None
    host_cap_bytes: int | None = None
    blocks_used: int = 0
    blocks_free: int = 0
    blocks_shared: int = 0
    waste: float = 0.0
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    disk_bytes: dict[str, int] = {}
    disk_cap_bytes: int | None = None
    anchors: int | None = None
    anchors_left_out: int = 0


class Transfer(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes over the link since this engine's last Transfer event, within `clock_s - span_s .. clock_s`.
    `busy_s` is how long the link worked, `hidden_s` the part of it that computation covered. `saved_bytes` did not
    have to move, as the entries were on the device still; `hit_rate` is the share of the selected entries that were
    (None where nothing stays)."""

    h2d_bytes: int
    d2h_bytes: int
    h2d_total_bytes: int
    d2h_total_bytes: int
    span_s: float
    busy_s: float
    hidden_s: float
    measured: bool
    saved_bytes: int = 0
    hit_rate: float | None = None


class ServerLoad(Event, frozen=True, kw_only=True, omit_defaults=True):
    """What a server says of itself, all its clients together; None is not told. `model` is the name that it serves,
    `kv_usage` (0..1) the share of its KV cache in use, with its peak since the conversation began. `running` and
    `waiting` are requests now. `preemptions` and `prefix_hit_share` (0..1 of the tokens that were looked up) count from
    when this column began to watch. `compares` says whether its tokens are those of our tokenizer."""

    model: str = ""
    compares: bool | None = None
    kv_usage: float | None = None
    kv_usage_peak: float | None = None
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    prefix_hit_share: float | None = None


class TooLong(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A submitted prompt has more tokens than the context has room for, and was not taken into the stream. `ticket` is
    the prompt's own; it may be submitted again with `Prompt.cut`."""

    ticket: str
    title: str
    tokens: int
    room_tokens: int


class Decision(Event, frozen=True, kw_only=True, omit_defaults=True):
    request: int
    choice: str
    reason: str


class Outcome(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a request in one engine. `outcome` is "ok", "device_oom", "error" or "cancelled". `prompt_tokens` are
    those of the whole conversation; 0 where a server that was sent text has not counted them."""

    request: int
    outcome: str
    detail: str = ""
    prompt_tokens: int = 0
    new_tokens: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    decode_tok_s: float | None = None
    h2d_bytes: int = 0
    d2h_bytes: int = 0


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU (or MIG slice) as its driver describes it, all processes together. None: the device does not tell.
    `slice_of` is the GPU that a slice is on; its `index` counts those slices.
    `pcie_rx_bytes_per_s` is what it received over the driver's last window of about 20 ms, `nvlink_*` all its links
    together."""

    index: int
    name: str = ""
    mig: bool = False
    slice_of: int | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    busy_percent: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    pcie_rx_bytes_per_s: int | None = None
    pcie_tx_bytes_per_s: int | None = None
    nvlink_rx_bytes_per_s: int | None = None
    nvlink_tx_bytes_per_s: int | None = None


class Sample(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Hardware probes of the machine on which the worker runs; None where it has no such thing or does not tell.
    CPU figures are percent of one core. `driver` says what became of the GPU driver: "" (there is none), "ok", or in a
    few words how it was lost. `memory_limit_bytes` is a container's own. Page faults are major ones, those that a disk
    answered."""

    worker_rss_bytes: int | None = None
    worker_cpu_percent: float | None = None
    worker_page_faults_per_s: float | None = None
    face_rss_bytes: int | None = None
    face_cpu_percent: float | None = None
    host_used_bytes: int | None = None
    host_total_bytes: int | None = None
    host_cpu_percent: float | None = None
    memory_limit_bytes: int | None = None
    memory_limit_used_bytes: int | None = None
    pinned_bytes: int | None = None
    gpus: list[Gpu] = []
    driver: str = ""


class Status(Event, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine is doing: "queued", "prefill", "decode", "idle", "failed"; for engine "": "racing", "paused",
    "idle", "ended" (the worker has; `detail` says why). `stream` are the titles of all prompts, by request, where that
    has changed."""

    state: str
    request: int = -1
    stream: list[str] | None = None
    detail: str = ""


class Notice(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A line for the person: `level` is "info", "warning" or "error". With a `ticket`, it answers what
    came with it: why that prompt was not taken into the stream, or that the cancelling is done."""

    level: str
    text: str
    ticket: str = ""


AnyEvent = (
    Loading
    | RunStarted
    | Submitted
    | Prefill
    | Token
    | Cache
    | Heads
    | Memory
    | Transfer
    | ServerLoad
    | TooLong
    | Decision
    | Outcome
    | Sample
    | Status
    | Notice
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyEvent])


def encode(batch: Iterable[Event]) -> bytes:
    """A frame's payload: a msgpack list of events."""
    return _encoder.encode(list(batch))


def decode(payload: bytes) -> list[AnyEvent]:
    """The events of one frame. Raises `msgspec.DecodeError` or `msgspec.ValidationError` on anything else."""
    return _decoder.decode(payload)


def pack_cell(state: KvState, share: float) -> int:
    """One byte a cell: the state in the low three bits, the share of KV heads on the device (0..31 of 31) above."""
    return int(state) | round(share * 31) << 3


def cell_state(cell: int) -> KvState:
    return KvState(cell & 7)


def cell_share(cell: int) -> float:
    """Share (0..1) of the layer's KV heads whose entry is on the device."""
    return (cell >> 3) / 31


def deflate(cells: bytes) -> bytes:
    return zlib.compress(cells, 1)


def inflate(packed: bytes, limit_bytes: int = 1 << 28) -> bytes:
    """Inverse of `deflate`; raises ValueError for garbage and for more than `limit_bytes`."""
    engine = zlib.decompressobj()
    try:
        cells = engine.decompress(packed, limit_bytes + 1)  # it stops there; without one more, it may not see the end
    except zlib.error as fault:
        raise ValueError(f"damaged cache cells: {fault}") from None
    if not engine.eof or len(cells) > limit_bytes:
        raise ValueError("cache cells are cut off or larger than allowed")
    return cells


def apply_cells(before: bytes, tokens_before: int, event: Cache) -> bytes:
    """The cells [layers, event.tokens] after `event`, given those before ([layers, tokens_before])."""
    cells = inflate(event.states, event.layers * event.tokens)
    if len(cells) != event.layers * event.tokens:
        raise ValueError("cache cells do not match their shape")
    if event.whole:
        return cells
    if tokens_before != event.tokens:
        rows = (before[i * tokens_before : (i + 1) * tokens_before] for i in range(event.layers))
        before = b"".join(row[: event.tokens].ljust(event.tokens, b"\0") for row in rows)
    size = len(cells)
    return (int.from_bytes(cells, "little") ^ int.from_bytes(before, "little")).to_bytes(size, "little")
