"""Where an MQTT broker is and how it is spoken to: `mqtt(s)://[user[:password]@]host[:port]/prefix`, checked."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from engines.errors import BadRequest

PASSWORD_VARIABLE = "KVTUI_MQTT_PASSWORD"
KEYRING_SERVICE = "kvtui"
DEFAULT_PREFIX = "kvtui"
PORTS = {"mqtt": 1883, "mqtts": 8883}
LONGEST_PREFIX = 200  # bytes; what comes after it is short
LONGEST_HOST, LONGEST_LABEL = 253, 63  # characters, as the name service has it
LONGEST_SECRET = 65_535  # bytes of a user or a password, as MQTT has it
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?")
_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1")


@dataclass(frozen=True)
class Broker:
    """`prefix` has no slash at either end. `warnings` are a line each, for the person who gave the address."""

    host: str
    port: int
    prefix: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Host and port, as in an address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(url: str, ca_file: Path | None = None, environment: Mapping[str, str] = os.environ) -> Broker:
    """The broker of a URL. Its password is the URL's, else that of `KVTUI_MQTT_PASSWORD`, else the keyring's for
    service "kvtui" and that user. `ca_file` has the certificates to trust in place of the system's. Raises BadRequest,
    in one line that never quotes a password."""
    url = url.strip()
    if not url.isprintable():  # before urlsplit, which drops some of them
        raise _fault("it holds a character that cannot be shown, or bytes that are no UTF-8")
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
    except ValueError:
        raise _fault(
            "a port is a number up to 65,535, and an IPv6 address stands in brackets: mqtt://[::1]/prefix"
        ) from None
    if scheme not in PORTS:
        raise _fault("it begins with mqtt:// or mqtts://")
    if not host:
        raise _fault("it names no host")
    if port == 0:
        raise _fault("port 0 is none")
    host = _decoded("host", host)  # the zone of fe80::1%25eth0
    _check_host(host)
    if "?" in url or "#" in url:  # also an empty query or fragment
        raise _fault("nothing comes after the prefix: a ? or # in it is written %3F, %23")
    user = _decoded("user", parts.username) if parts.username else None
    password, warnings = _password(parts, user, environment)
    if password is not None and not _is_sendable(password):
        raise _fault(f"the password is UTF-8, of at most {LONGEST_SECRET:,} bytes")
    if password is not None and user is None:
        raise _fault("a password needs a user: mqtt://user@host/prefix")
    if password is not None and scheme == "mqtt" and not _LOOPBACK.fullmatch(host):
        warnings.append(f"the password for {host} goes over the network in the clear; mqtts:// would encrypt it")
    if ca_file is not None and scheme != "mqtts":
        raise BadRequest("--mqtt-ca goes with an mqtts:// address")
    return Broker(
        host=host,
        port=port or PORTS[scheme],
        prefix=_prefix(_decoded("prefix", parts.path)),
        user=user,
        password=password,
        tls=_tls(ca_file) if scheme == "mqtts" else None,
        warnings=tuple(warnings),
    )


def _fault(what: str) -> BadRequest:
    return BadRequest(f"the MQTT address is mqtt(s)://[user@]host[:port]/prefix: {what}")


def _check_host(host: str) -> None:
    """What no name service would be asked for is refused here, where waiting for it would never end."""
    try:
        if ":" in host:
            ipaddress.IPv6Address(host)
            return
        holds = _NAME.fullmatch(host) is not None
        holds = holds and max(len(label) for label in host.encode("idna").split(b".")) <= LONGEST_LABEL
    except ValueError:  # a UnicodeError is one
        holds = False
    if not holds or len(host) > LONGEST_HOST:
        raise _fault("the host is a name of letters, digits, hyphens and dots, or an IP address")


def _decoded(what: str, quoted: str) -> str:
    """A part of the address as it is meant. It stands in MQTT's messages, and is shown."""
    try:
        plain = unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise _fault(f"the {what} is no UTF-8") from None
    if not plain.isprintable():
        raise _fault(f"the {what} holds a character that cannot be shown")
    if len(plain.encode()) > LONGEST_SECRET:
        raise _fault(f"the {what} has at most {LONGEST_SECRET:,} bytes")
    return plain


def _prefix(path: str) -> str:
    prefix = path.strip("/") or DEFAULT_PREFIX
    if any(character in prefix for character in "+#") or "//" in prefix or prefix.startswith("$"):
        raise _fault("a prefix has no +, # or empty level, and no $ at its beginning")
    if len(prefix.encode()) > LONGEST_PREFIX:
        raise _fault(f"a prefix has at most {LONGEST_PREFIX} bytes")
    return prefix


def _password(parts: SplitResult, user: str | None, environment: Mapping[str, str]) -> tuple[str | None, list[str]]:
    if parts.password is not None:
        how = f"put it into {PASSWORD_VARIABLE} or the keyring (keyring set {KEYRING_SERVICE} USER) instead"
        seen = f"the MQTT password stands in the process list, where everyone on this machine can read it: {how}"
        return _decoded("password", parts.password), [seen]
    if user is None:
        return None, []
    return environment.get(PASSWORD_VARIABLE) or _of_keyring(user), []


def _is_sendable(password: str) -> bool:
    try:
        return len(password.encode()) <= LONGEST_SECRET
    except UnicodeEncodeError:  # bytes of the environment that are no UTF-8
        return False


def _of_keyring(user: str) -> str | None:
    """None where there is no keyring, it is locked, or it knows nothing of that user."""
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return None
    try:
        return keyring.get_password(KEYRING_SERVICE, user)
    except (keyring.errors.KeyringError, OSError):
        return None


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ValueError) as fault:  # an SSLError is an OSError
        missing = isinstance(fault, FileNotFoundError)
        reason = "there is no such file" if missing else "it holds no certificates that could be read"
        raise BadRequest(f"--mqtt-ca {ca_file}: {reason}") from None
