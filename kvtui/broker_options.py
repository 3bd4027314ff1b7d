"""The options that say where a run is published, and the publisher that they stand for. Light, as all of the command
line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtui.literal import brief
from kvtui.options import FILE, TEXT

if TYPE_CHECKING:
    from probes.broker import Broker
    from probes.publisher import Publisher

ADDRESS = "mqtt(s)://[user@]host[:port]/prefix; the password is taken from KVTUI_MQTT_PASSWORD or the keyring."
NAMES = ("mqtt", "mqtt_ca", "mqtt_format")
SCREEN_PATIENCE_S, HEADLESS_PATIENCE_S = 1.0, 5.0

ca_option = click.option("--mqtt-ca", type=FILE, metavar="FILE", help="Certificates to trust an mqtts:// broker by.")


def mqtt_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`mqtt`, `mqtt_ca` and `mqtt_format`, as `publishing` takes them."""
    for option in (
        click.option(
            "--mqtt-format",
            type=click.Choice(["msgpack", "json"]),
            default="msgpack",
            show_default=True,
            help="json is for Grafana, Home Assistant, Node-RED.",
        ),
        ca_option,
        click.option("--mqtt", type=TEXT, metavar="URL", help=f"Publish everything that happens: {ADDRESS}"),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def publishing(
    mqtt: str | None, mqtt_ca: Path | None, mqtt_format: str, *, patience_s: float = SCREEN_PATIENCE_S
) -> Iterator[Publisher | None]:
    """The publisher, started; at the end, what has not arrived is said. Raises BadRequest."""
    broker = checked(mqtt, mqtt_ca, mqtt_format)
    if broker is None:
        yield None
        return
    from probes.publisher import Publisher

    publisher = Publisher(broker, json=mqtt_format == "json")
    publisher.start()
    try:
        yield publisher
    finally:
        left = publisher.close(patience_s) + publisher.lost
        if left:
            state = publisher.standing
            why = f" ({brief(state.detail)})" if state.detail and state.state != "connected" else ""
            click.echo(f"kvtui: {left:,} messages were not sent to {broker.place}{why}", err=True)


def taken(options: dict[str, Any]) -> dict[str, Any]:
    """What of a command's options `publishing` takes, out of them."""
    return {name: options.pop(name) for name in NAMES}


def checked(mqtt: str | None, mqtt_ca: Path | None, mqtt_format: str) -> Broker | None:
    """The broker of the options, whose warnings are said; None without one. Raises BadRequest."""
    if mqtt is not None:
        return broker_of(mqtt, mqtt_ca)
    if mqtt_ca is not None or mqtt_format != "msgpack":
        raise click.UsageError("--mqtt-ca and --mqtt-format go with --mqtt")
    return None


def broker_of(address: str, ca_file: Path | None) -> Broker:
    """Its warnings are said. Raises BadRequest."""
    from probes.broker import parse

    broker = parse(address, ca_file)
    for warning in broker.warnings:
        click.echo(f"kvtui: {brief(warning)}", err=True)
    return broker
