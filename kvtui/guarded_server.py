"""The web server of `kvtui serve`, for its own pages only: somebody else's page, open in the same browser, must not
start a process here and type into it. Nor do its pages ask anybody else for anything."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from html import escape
from typing import cast
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

from kvtui.serve import LOOPBACK

_FOREIGN_LINK = re.compile(r"<link\b[^>]*https?://[^>]*>")
# textual-serve brings the font along, but its page asks another host for it.
_FONT = """<link rel="preload" as="font" type="font/ttf" crossorigin href="{url}" />
    <style>@font-face { font-family: "Roboto Mono"; font-weight: 100 700; src: url("{url}"); }</style>"""
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self' ws://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

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

    async def handle_index(self, request: web.Request) -> web.Response:
        """textual-serve's page, with all that it asks for on this server, by the name that the browser has for it."""
        page = cast(web.Response, await super().handle_index(request))
        text = (page.text or "").replace(self.public_url.replace("http", "ws", 1), f"ws://{escape(request.host)}")
        text = text.replace(f"{self.public_url}/", "/")
        font = _FONT.replace("{url}", "/static/fonts/RobotoMono-VariableFont_wght.ttf")
        page.text = _FOREIGN_LINK.sub("", text).replace("</head>", f"{font}\n  </head>", 1)
        page.headers["Content-Security-Policy"] = _POLICY.format(host=request.host)
        return page

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
