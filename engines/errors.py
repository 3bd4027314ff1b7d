"""Faults that a person can do something about. Each message is one line that says what is wrong and what to try."""

from __future__ import annotations

from engines.sizes import size


class KvtuiError(Exception):
    """A fault of input or surroundings: shown as one line, exit code 2, never a traceback."""


class ModelUnavailable(KvtuiError):
    """The model cannot be had (unknown name, no network, damaged file, unsupported family, disk full)."""


class BadRequest(KvtuiError):
    """A prompt or a knob that no engine can serve: empty, too long, budget outside (0, 1], unknown engine."""


class PromptTooLong(BadRequest):
    """A prompt of `tokens` that no context of `context_limit` can hold."""

    def __init__(self, tokens: int, context_limit: int) -> None:
        self.tokens = tokens
        super().__init__(
            f"the prompt has {tokens:,} tokens, {tokens - context_limit:,} more than the context of {context_limit:,}; "
            "shorten it, or let it be cut with --truncate start, middle or end"
        )


class OutOfMemory(KvtuiError):
    """A pool's cap would be exceeded. `tier` is "device", "host" or "disk"; sizes are bytes."""

    tier = "device"

    @property
    def what(self) -> str:
        return "disk space" if self.tier == "disk" else f"{self.tier} memory"

    def __init__(self, kind: str, needed_bytes: int, used_bytes: int, cap_bytes: int) -> None:
        self.kind, self.needed_bytes, self.used_bytes, self.cap_bytes = kind, needed_bytes, used_bytes, cap_bytes
        super().__init__(
            f"out of {self.what}: needs {size(needed_bytes)} for {kind} with {size(used_bytes)} in use, "
            f"cap {size(cap_bytes)}"
        )


class DeviceOutOfMemory(OutOfMemory):
    tier = "device"


class HostOutOfMemory(OutOfMemory):
    tier = "host"


class DiskFull(OutOfMemory):
    tier = "disk"
