"""The web server of `kvtui serve`, for its own pages only: somebody else's page, open in the same browser, must not
start a process here and type into it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

from kvtui.serve import LOOPBACK

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class GuardedServer(Server):
    async def _make_app(self) -> web.Application:
        app = await super()._make_app()

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            if not self._welcome(request.headers.get("Host", ""), request.headers.get("Origin")):
                raise web.HTTPForbidden(text="kvtui: this address is not the one that is served\n")
            return await handler(request)

        app.middlewares.append(guard)
        return app

    def _welcome(self, host: str, origin: str | None) -> bool:
        """`host` is what the browser takes this server for: on the loopback, no other name may lead here. `origin` is
        whose page asks; programs that are no browsers send none."""
        ours = {self._address(f"//{name}") for name in self._names()}
        here = self._address(f"//{host}")
        if self.host in LOOPBACK and here not in ours:
            return False
        return origin is None or (origin.startswith("http") and self._address(origin) in {*ours, here})

    def _names(self) -> list[str]:
        hosts = {self.host, *LOOPBACK} if self.host in LOOPBACK else {self.host}
        return [f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}" for host in hosts]

    @staticmethod
    def _address(url: str) -> tuple[str, int] | None:
        try:
            parts = urlsplit(url)
            return (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)) if parts.hostname else None
        except ValueError:
            return None
