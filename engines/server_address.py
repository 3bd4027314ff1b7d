"""Where a server is: an http address without secrets in it. Light to import."""

from __future__ import annotations

from urllib.parse import urlsplit

from engines.errors import BadRequest
from engines.events import SERVER

KEY_VARIABLE = "KVTUI_SERVER_API_KEY"
EXAMPLE = f"{SERVER}=http://host:8000"


def checked_address(text: str) -> str:
    """The address without a slash, or a "/v1", at its end. Raises BadRequest for what is none, and for one that holds a
    user or a password: command lines and recordings are seen by others."""
    text = text.strip()
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError:
        host = port = None
        parts = urlsplit("")
    if "@" in text.removeprefix("http://").removeprefix("https://").split("/")[0]:
        raise BadRequest(f"a server's address holds no user or password; set {KEY_VARIABLE} in the environment")
    written = text.isascii() and text.isprintable() and not any(c in text for c in ' ,"<>\\^`{|}')
    if parts.scheme not in ("http", "https") or not host or port == 0 or not written:
        raise BadRequest(f'a server has an address such as {EXAMPLE}, not "{text}"')
    if parts.query or parts.fragment:
        raise BadRequest(f'a server\'s address ends with its host, port and folder, as in {EXAMPLE}, not "{text}"')
    return text.rstrip("/").removesuffix("/v1").rstrip("/")
