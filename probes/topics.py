"""What is said over MQTT, and under which topic: `PREFIX/RUN/ENGINE/KIND`, one event a message.

`RUN` is a publisher's own, 8 hexadecimal digits, from its start to its end; an event's `run` is the race's and changes
with each rerun. `ENGINE` is the engine's id, with "-plus" for "+", which is a wildcard in MQTT; `all` for what concerns
all. Payloads are msgpack, or JSON: `engines.events` either way, the tag in "type". Two more kinds belong to no event:
`presence` (a `Presence`) and `snapshot` (see `probes.snapshot`).
"""

from __future__ import annotations

import re
import typing

import msgspec

from engines import events

LIMIT_BYTES = 4 << 20  # of one message, either way
PRESENCE, SNAPSHOT = "presence", "snapshot"
ALL = "all"
LEAST_LOGPROB = -1e9  # JSON has no infinity
STATES = ("live", "ended", "gone")

_RUN = re.compile(r"[0-9A-Za-z_-]{1,32}")
_OUTSIDE = re.compile(r"[^A-Za-z0-9_.-]")
_EVENT_TYPES = typing.get_args(events.AnyEvent)
_KINDS = {kind: re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in _EVENT_TYPES}
KINDS = tuple(_KINDS.values())

_packer = msgspec.msgpack.Encoder()
_unpackers = {
    True: msgspec.json.Decoder(events.AnyEvent),
    False: msgspec.msgpack.Decoder(events.AnyEvent),
}


class Presence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Retained: who publishes, and whether still. `state` is "live", "ended" (in an orderly way) or "gone" (the broker
    says it in the name of a publisher that broke off). `since` is an ISO 8601 date and time."""

    run: str
    state: str
    host: str = ""
    process_id: int = 0
    since: str = ""
    model: str = ""
    engines: list[str] = []
    schema: int = events.SCHEMA_VERSION


_presences = {
    True: msgspec.json.Decoder(Presence),
    False: msgspec.msgpack.Decoder(Presence),
}


def kind_of(event: events.AnyEvent) -> str:
    return _KINDS[type(event)]


def topic(prefix: str, run: str, engine: str, kind: str) -> str:
    level = _OUTSIDE.sub("_", engine.replace("+", "-plus")) or ALL
    return f"{prefix}/{run}/{level}/{kind}"


def parts(prefix: str, name: str) -> tuple[str, str, str] | None:
    """Run, engine's level and kind of a topic; None for one that is not of this language."""
    if not name.startswith(f"{prefix}/"):
        return None
    levels = name[len(prefix) + 1 :].split("/")
    if len(levels) != 3 or not _RUN.fullmatch(levels[0]):
        return None
    run, engine, kind = levels
    return run, engine, kind


def pack(message: events.AnyEvent | Presence, *, json: bool) -> bytes:
    if not json:
        return _packer.encode(message)
    if isinstance(message, events.Token) and (message.logprob or 0.0) < LEAST_LOGPROB:
        message = msgspec.structs.replace(message, logprob=LEAST_LOGPROB)
    return msgspec.json.encode(message)


def unpack(payload: bytes) -> events.AnyEvent:
    """An event from outside. Raises ValueError, in one line, for what is too large or is none."""
    return _decoded(payload, _unpackers)


def unpack_presence(payload: bytes) -> Presence:
    """Raises ValueError, in one line."""
    presence: Presence = _decoded(payload, _presences)
    if presence.state not in STATES or not _RUN.fullmatch(presence.run) or len(presence.engines) > 32:
        raise ValueError("no presence of a run")
    if presence.schema != events.SCHEMA_VERSION:
        raise ValueError(f"events of schema {presence.schema}; this kvtui reads schema {events.SCHEMA_VERSION}")
    return presence


def _decoded(payload: bytes, decoders: typing.Mapping[bool, typing.Any]) -> typing.Any:
    if len(payload) > LIMIT_BYTES:
        raise ValueError(f"a message of {len(payload):,} bytes")
    try:
        return decoders[payload[:1] == b"{"].decode(payload)  # msgpack's maps begin with another byte
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:  # a ValidationError is a DecodeError
        raise ValueError(str(fault)) from None
