"""A worker process without engines: speaks the worker's protocol and plays a synthetic race."""

from __future__ import annotations

import os
import sys
import threading

from engines import commands, events, frames
from tests.synthetic_source import SyntheticSource


def main() -> None:
    payload = frames.read_frame(sys.stdin.buffer)
    assert payload is not None
    config = commands.decode_config(payload)
    source = SyntheticSource(config, load_s=0.5, new_tokens=240)
    source.start()
    threading.Thread(target=obey, args=(source,), daemon=True).start()
    while True:
        batch = source.receive(0.05)
        if batch:
            frames.write_frame(sys.stdout.buffer, events.encode(batch))


def obey(source: SyntheticSource) -> None:
    while (payload := frames.read_frame(sys.stdin.buffer)) is not None:
        command = commands.decode(payload)
        if isinstance(command, commands.Shutdown):
            break
        source.send(command)
    os._exit(0)


if __name__ == "__main__":
    main()
