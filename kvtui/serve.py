"""The same app in a browser, by textual-serve: each visitor gets a process of their own."""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Sequence

from engines.errors import BadRequest

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SHOWN = (None, "replay", "play", "watch")  # the commands that have a screen


def serve(arguments: Sequence[str], host: str, port: int) -> None:
    """Serves `kvtui ARGUMENTS` until it is interrupted. Raises BadRequest when the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as fault:
        reason = getattr(fault, "strerror", None) or fault
        raise BadRequest(f"cannot listen on {host}:{port}: {reason}") from None
    try:
        from kvtui.guarded_server import GuardedServer
    except ImportError:
        raise BadRequest("kvtui serve needs the package textual-serve: pip install textual-serve") from None
    if host not in LOOPBACK:
        print(f"kvtui: everyone who reaches {host}:{port} can run prompts on this machine", file=sys.stderr)
    command = shlex.join([sys.executable, "-m", "kvtui.cli", *arguments])
    GuardedServer(command, host=host, port=port, title="kvtui").serve()
