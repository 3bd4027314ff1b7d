"""An engine's accounts, as events: the memory that it has in use, and what its link has moved since the last time."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from engines import events
from engines.caches.base import Cache, Surroundings
from engines.memory import BLOCK_TOKENS, Pool
from engines.sequence import Sequence


def memory(id: str, cache: Cache, sequences: Collection[Sequence], preemptions: int) -> events.Memory:
    """What is in use now, and the peaks. `sequences` are all that hold any of it."""
    around, blocks = cache.around, getattr(cache, "blocks", None)
    device, host, disk = around.device, around.host, around.disk.pool if around.disk else None
    slots, filled = 0, 0
    for sequence in sequences:
        slots += len(sequence.table) * BLOCK_TOKENS
        filled += getattr(sequence.held, "count", sequence.computed) if sequence.table else 0
    anchors = [s.held.anchors for s in sequences if cache.learns and s.held is not None]
    return events.Memory(
        engine=id,
        clock_s=around.clock.now_s,
        device_bytes=_in_use(device),
        host_bytes=_in_use(host),
        device_peak_bytes=device.peak_bytes,
        host_peak_bytes=host.peak_bytes,
        device_kv_peak_bytes=sum(device.peak_by_kind.get(kind, 0) for kind in cache.kv_kinds()),
        host_kv_peak_bytes=host.peak_by_kind.get("kv", 0),
        device_cap_bytes=device.cap_bytes,
        host_cap_bytes=host.cap_bytes,
        blocks_used=blocks.used_blocks if blocks else 0,
        blocks_free=blocks.free_blocks if blocks else 0,
        blocks_shared=blocks.shared_blocks if blocks else 0,
        waste=1 - filled / slots if slots else 0.0,
        preemptions=preemptions,
        prefix_hit_tokens=cache.prefix_hit_tokens,
        disk_bytes=_in_use(disk) if disk else {},
        disk_cap_bytes=disk.cap_bytes if disk else None,
        anchors=sum(int(a.pinned.sum()) for a in anchors) if cache.learns else None,
        anchors_left_out=sum(a.left_out for a in anchors),
    )


def _in_use(pool: Pool) -> dict[str, int]:
    return {kind: size_bytes for kind, size_bytes in pool.bytes_by_kind.items() if size_bytes}


class Transfers:
    """The link's traffic, piece by piece, and what it comes to."""

    def __init__(self, around: Surroundings) -> None:
        self._clock, self._link = around.clock, around.link
        self._before = self._origin = dataclasses.replace(self._link.traffic)
        self._before_s = 0.0

    def begin(self) -> None:
        """Nothing has moved yet."""
        self._before = self._origin = dataclasses.replace(self._link.traffic)
        self._before_s = self._clock.now_s

    def take(self, id: str) -> events.Transfer:
        """What the link did since the last call."""
        now, before, now_s, before_s = self._link.traffic, self._before, self._clock.now_s, self._before_s
        self._before, self._before_s = dataclasses.replace(now), now_s
        wanted = now.wanted - before.wanted
        return events.Transfer(
            engine=id,
            clock_s=now_s,
            h2d_bytes=now.h2d_bytes - before.h2d_bytes,
            d2h_bytes=now.d2h_bytes - before.d2h_bytes,
            h2d_total_bytes=now.h2d_bytes - self._origin.h2d_bytes,
            d2h_total_bytes=now.d2h_bytes - self._origin.d2h_bytes,
            span_s=now_s - before_s,
            busy_s=now.busy_s - before.busy_s,
            hidden_s=max(0.0, now.hidden_s - before.hidden_s),
            measured=self._link.info.measured,
            saved_bytes=now.saved_bytes - before.saved_bytes,
            hit_rate=(now.found - before.found) / wanted if wanted else None,
        )
