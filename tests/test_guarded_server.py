"""`kvtui serve` answers its own pages only."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import sys
from collections.abc import AsyncIterator

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

from aiohttp import web  # noqa: E402

from kvtui.guarded_server import GuardedServer  # noqa: E402


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[str]:
    """Its address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        server = GuardedServer(f"{sys.executable} -c pass", host="127.0.0.1", port=port, title="kvtui")
        runner = web.AppRunner(await server._make_app())
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            yield f"127.0.0.1:{port}"
        finally:
            await runner.cleanup()


async def statuses(asked: list[tuple[str, dict[str, str]]]) -> list[int]:
    """What the server answers to GET of these paths with these headers; {port} stands for its own."""
    found = []
    async with server() as address, aiohttp.ClientSession() as session:
        for path, headers in asked:
            sent = {name: value.format(port=address.rpartition(":")[2]) for name, value in headers.items()}
            async with session.get(f"http://{address}{path}", headers=sent) as answer:
                found.append(answer.status)
    return found


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


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_page_asks_nobody_else_for_anything(name: str) -> None:
    async def look() -> None:
        async with server() as address, aiohttp.ClientSession() as session:
            here = address.replace("127.0.0.1", name)
            async with session.get(f"http://{address}/", headers={"Host": here}) as answer:
                page, policy = await answer.text(), answer.headers["Content-Security-Policy"]
            named = set(re.findall(r"(?:https?|wss?)://[^\s\"')]+", page.replace("http://www.w3.org/2000/svg", "")))
            assert named == {f"ws://{here}/ws"}
            assert "default-src 'self'" in policy
            assert f"connect-src 'self' ws://{here};" in policy
            asked = re.findall(r"(?:href|src)=\"([^\"]+)\"|url\(\"([^\"]+)\"\)", page)
            paths = {path or other for path, other in asked}
            assert {path.rpartition(".")[2] for path in paths} == {"css", "js", "png", "ttf"}
            for path in paths:
                async with session.get(f"http://{address}{path}") as answer:
                    assert answer.status == 200, path

    asyncio.run(asyncio.wait_for(look(), 30))
