"""An address is a broker, or one line that says what is wrong with it and quotes no password."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from engines.errors import BadRequest
from probes.broker import PASSWORD_VARIABLE, parse


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "user"),
    [
        ("mqtt://broker", "broker", 1883, "kvtui", None),
        ("mqtt://broker/", "broker", 1883, "kvtui", None),
        ("MQTT://ann@broker:1884/lab/kv/", "broker", 1884, "lab/kv", "ann"),
        ("mqtts://[::1]/a%20b", "::1", 8883, "a b", None),
        ("mqtt://an%40n@127.0.0.1/x", "127.0.0.1", 1883, "x", "an@n"),
        ("mqtt://b\u00fccher.example./k%C3%BCche", "b\u00fccher.example.", 1883, "k\u00fcche", None),
        ("mqtt://[fe80::1%eth0]/x", "fe80::1%eth0", 1883, "x", None),
        ("mqtt://my_broker-1/x", "my_broker-1", 1883, "x", None),
    ],
)
def test_what_an_address_says(url: str, host: str, port: int, prefix: str, user: str | None) -> None:
    broker = parse(url, environment={})
    assert (broker.host, broker.port, broker.prefix, broker.user) == (host, port, prefix, user)
    assert (broker.tls is not None) == url.startswith("mqtts")
    assert broker.password is None
    assert not broker.warnings


@pytest.mark.parametrize(
    "url",
    [
        "http://broker/x",
        "broker/x",
        "mqtt:///x",
        "mqtt://broker:99999/x",
        "mqtt://broker:0/x",
        "mqtt://broker:port/x",
        "mqtt://broker/a/+/b",
        "mqtt://broker/a/%23",
        "mqtt://broker/a//b",
        "mqtt://broker/$SYS",
        "mqtt://broker/" + "x" * 300,
        "mqtt://broker/x?y=1",
        "mqtt://[::1/x",
        "mqtt://:hunter2@broker/x",
        "mqtt://ann:hunter2@broker:99999/x",
        "mqtt://ann:hunter2@broker/+",
        "mqtt://broker/a#",
        "mqtt://broker/a?",
        "mqtt://broker/a\nb",
        "mqtt://broker/a%0Ab",
        "mqtt://broker/a%00",
        "mqtt://broker/a%7f",
        "mqtt://broker/a%c2%9b",
        "mqtt://broker/\udcff",
        "mqtt://broker/%ff",
        "mqtt://broker/a%e2%80%ae",
        "mqtt://an\udcffn@broker/a",
        "mqtt://an%00n@broker/a",
        "mqtt://an%ffn@broker/a",
        "mqtt://" + "n" * 70_000 + "@broker/a",
        "mqtt://ann:hunter2%00@broker/a",
        "mqtt://h..h/a",
        "mqtt://.h/a",
        "mqtt://h%20h/a",
        "mqtt://h h/a",
        "mqtt://b\udcffr/a",
        "mqtt://b\x1br/a",
        "mqtt://br\toker/a",
        "mqtt://" + "h" * 300 + "/a",
        "mqtt://" + "h" * 64 + ".example/a",
        "mqtt://" + "h." * 150 + "h/a",
        "mqtt://[::zz]/a",
    ],
)
def test_a_bad_address_is_one_line(url: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(url, environment={})
    said = str(refused.value)
    assert "\n" not in said
    assert "hunter2" not in said


def test_the_password_of_the_environment_needs_no_warning() -> None:
    broker = parse("mqtt://ann@localhost/x", environment={PASSWORD_VARIABLE: "hunter2"})
    assert broker.password == "hunter2"
    assert not broker.warnings
    assert "hunter2" not in repr(broker)


@pytest.mark.parametrize("password", ["hunter2\udcff", "hunter2" * 10_000])
def test_a_password_that_no_message_can_hold_is_refused(password: str) -> None:
    with pytest.raises(BadRequest, match="the password is UTF-8") as refused:
        parse("mqtt://ann@localhost/x", environment={PASSWORD_VARIABLE: password})
    assert "hunter2" not in str(refused.value)


def test_a_password_in_the_address_is_said_to_be_visible() -> None:
    broker = parse("mqtt://ann:hunter%322@localhost/x", environment={PASSWORD_VARIABLE: "other"})
    assert broker.password == "hunter22"
    (warning,) = broker.warnings
    assert "process list" in warning
    assert PASSWORD_VARIABLE in warning
    assert "hunter" not in warning


def test_a_password_in_the_clear_is_said_to_be_so() -> None:
    (warning,) = parse("mqtt://ann@far.example/x", environment={PASSWORD_VARIABLE: "hunter2"}).warnings
    assert "in the clear" in warning
    assert not parse("mqtts://ann@far.example/x", environment={PASSWORD_VARIABLE: "hunter2"}).warnings


@pytest.mark.parametrize("locked", [False, True])
def test_the_keyring_is_asked_last(monkeypatch: pytest.MonkeyPatch, locked: bool) -> None:
    errors = types.ModuleType("keyring.errors")
    errors.KeyringError = type("KeyringError", (Exception,), {})  # type: ignore[attr-defined]

    def get_password(service: str, user: str) -> str:
        if locked:
            raise errors.KeyringError("no backend")
        return f"{service} of {user}"

    keyring = types.ModuleType("keyring")
    keyring.errors, keyring.get_password = errors, get_password  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    broker = parse("mqtt://ann@localhost/x", environment={})
    assert broker.password == (None if locked else "kvtui of ann")


def test_a_ca_file_has_to_be_one(tmp_path: Path) -> None:
    nothing = tmp_path / "ca.pem"
    with pytest.raises(BadRequest, match="no such file"):
        parse("mqtts://broker/x", nothing, {})
    nothing.write_text("not a certificate", "utf-8")
    with pytest.raises(BadRequest, match="no certificates"):
        parse("mqtts://broker/x", nothing, {})
    with pytest.raises(BadRequest, match="goes with an mqtts"):
        parse("mqtt://broker/x", nothing, {})
