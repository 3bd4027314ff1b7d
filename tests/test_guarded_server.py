"""`kvtui serve` answers its own pages only."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

from aiohttp import web  # noqa: E402

from kvtui.guarded_server import GuardedServer  # noqa: E402


async def statuses(asked: list[tuple[str, dict[str, str]]]) -> list[int]:
    """What the server answers to GET of these paths with these headers; {port} stands for its own."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        server = GuardedServer(f"{sys.executable} -c pass", host="127.0.0.1", port=port, title="kvtui")
        runner = web.AppRunner(await server._make_app())
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            async with aiohttp.ClientSession() as session:
                found = []
                for path, headers in asked:
                    sent = {name: value.format(port=port) for name, value in headers.items()}
                    async with session.get(f"http://127.0.0.1:{port}{path}", headers=sent) as answer:
                        found.append(answer.status)
                return found
        finally:
            await runner.cleanup()


SOCKET = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
KEY = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}


def test_only_its_own_pages_are_answered() -> None:
    asked = {
        ("/", ()): 200,
        ("/", (("Host", "localhost:{port}"),)): 200,
        ("/", (("Host", "evil.example:{port}"),)): 403,
        ("/", (("Host", "127.0.0.1:1"),)): 403,
        ("/ws", (("Origin", "http://evil.example"),)): 403,
        ("/ws", (("Origin", "http://127.0.0.1:1"),)): 403,
        ("/ws", (("Origin", "null"),)): 403,
        ("/ws", (("Origin", "http://evil.example"), ("Host", "evil.example"))): 403,
        ("/ws", (("Origin", "http://localhost:{port}"),)): 101,
        ("/ws", (("Origin", "http://127.0.0.1:{port}"),)): 101,
    }
    requests = [(path, dict(headers) | (SOCKET | KEY if path == "/ws" else {})) for path, headers in asked]
    assert asyncio.run(asyncio.wait_for(statuses(requests), 30)) == list(asked.values())
