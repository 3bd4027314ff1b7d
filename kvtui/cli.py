"""The `kvtui` command. Imports here stay light, so that the first frame does not wait for what it does not need.

Exit codes: 0 when every request has an outcome that is a result (running out of device memory is one), 1 when an
engine's outcome is "error", the worker died or the screen failed, 2 for faults of input or surroundings, 130 after
Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engines.commands import WorkerConfig
from engines.errors import BadRequest, KvtuiError
from kvtui import ascii, broker_options
from kvtui.broker_options import ca_option, mqtt_options, publishing
from kvtui.configuration import configure, in_browser, is_given, is_terminal
from kvtui.literal import brief
from kvtui.options import (
    FILE,
    TEXT,
    look_options,
    looks_wanted,
    playback_options,
    record_options,
    shared_options,
    trace_option,
)

if TYPE_CHECKING:
    from kvtui.app import KvtuiApp
    from kvtui.player import Player
    from kvtui.trace import TraceReader, TraceWriter
    from probes.publisher import Publisher

_GC_EVERY_OBJECTS = 100_000
_NOT_OF_THE_RACE = {"trace", "record", "record_fps", *broker_options.NAMES}


def main() -> None:
    """The console entry."""
    # What a start makes, stays: looking for cycles in it, again and again, took a tenth of the time to the first frame.
    gc.set_threshold(_GC_EVERY_OBJECTS, 10, 10)
    ascii.register()
    if sys.stdout is None:  # closed by who started us (`>&-`): there is nowhere to say anything else
        click.echo("kvtui: stdout is closed", err=True)
        sys.exit(2)
    try:
        code = cli.main(prog_name="kvtui", standalone_mode=False)
    except click.ClickException as fault:
        _say(fault.format_message(), getattr(fault, "ctx", None))
        code = fault.exit_code
    except click.Abort:
        code = 130
    except KvtuiError as fault:
        _say(str(fault))
        code = 2
    except KeyboardInterrupt:
        code = 130
    except (OSError, _ReaderGone) as fault:  # a full disk, a closed output
        _let_go(sys.stdout)
        if isinstance(fault, OSError) and not isinstance(fault, BrokenPipeError):
            _say(f"cannot write the output: {fault.strerror or fault}")
        code = 2
    sys.exit(code)


def _say(what: str, context: click.Context | None = None) -> None:
    """One line: it may quote a file's or a script's escape sequences, and all of it."""
    help_text = f" ({context.command_path} --help tells more)" if context is not None else ""
    click.echo(f"kvtui: {brief(what).removesuffix('.')}{help_text}", err=True)


def _let_go(stream: Any) -> None:
    """What is still buffered cannot be written; the interpreter must not try again on its way out."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _ReaderGone(Exception):
    """Nobody reads the output any more. Not an OSError: click would make that exit code 1 itself."""


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as fault:
            raise _ReaderGone from fault


@click.group(cls=_Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvtui")
@shared_options
@trace_option
@mqtt_options
@look_options
@record_options
@click.pass_context
def cli(
    context: click.Context, /, trace: Path | None, record: Path | None, record_fps: float | None, **options: Any
) -> int:
    """Three ways of keeping an LLM's KV cache, side by side, on one prompt stream.

    Without a command: the live app, or a plain summary where there is no terminal."""
    if context.invoked_subcommand is not None:
        if any(map(is_given, context.params)):
            raise click.UsageError(f"options come after the command: kvtui {context.invoked_subcommand} --…")
        return 0
    mqtt = broker_options.taken(options)
    config = configure(options)
    if not _has_screen():
        _check_recording(record, record_fps, screen=False)
        if all(map(is_terminal, (sys.stdin, sys.stdout))) and not is_terminal(sys.stderr):
            click.echo("stderr, on which the screen would be, is no terminal: a plain run without it")
        return _run_headless(config, trace, mqtt)
    from kvtui.app import KvtuiApp
    from kvtui.connecting import connecting

    with _tracing(trace) as writer, publishing(**mqtt) as publisher:
        app = KvtuiApp(config, connect=connecting(writer, publisher))
        return _show(app, record, record_fps, publisher)


@cli.command()
@shared_options
@trace_option
@mqtt_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run(as_json: bool, trace: Path | None, **options: Any) -> int:
    """Run the prompts through the engines without a screen and print what came out.

    Exit code: 0 when every request ended with a result (running out of device memory is one), 1 when an engine failed
    or the worker died, 2 when the input or the model is at fault."""
    mqtt = broker_options.taken(options)
    return _run_headless(configure(options), trace, mqtt, as_json=as_json)


def _run_headless(config: WorkerConfig, trace: Path | None, mqtt: dict[str, Any], *, as_json: bool = False) -> int:
    from kvtui.headless import run_headless

    patience_s = broker_options.HEADLESS_PATIENCE_S
    with _tracing(trace) as writer, publishing(**mqtt, patience_s=patience_s) as publisher:
        return run_headless(config, as_json=as_json, trace=writer, publisher=publisher)


@cli.command()
@click.argument("path", required=False, type=FILE)
@playback_options
@look_options
@record_options
def replay(path: Path | None, speed: float, from_s: float | None, record: Path | None, record_fps: float | None) -> int:
    """Play a .kvtrace file that --trace kept: the same screens, without a model. PATH may be the name of a recording
    that comes along, demo or out-of-memory; without it, demo is played.

    Where there is no terminal, it prints what the recorded run came to."""
    reader = _open_recording(path, from_s)
    if not _has_screen():
        _check_recording(record, record_fps, screen=False)
        from kvtui.headless import summarize

        return summarize(reader)
    return _show(_replaying(reader, speed, from_s), record, record_fps)


@cli.command()
@click.argument("script", required=False, type=TEXT)
@click.option("--quit", "leave", is_flag=True, help="Leave when the script has ended.")
@click.option("--replay", "recording", type=FILE, help="On this recording, as of `kvtui replay`, without a model.")
@trace_option
@mqtt_options
@playback_options
@look_options
@record_options
def play(
    script: str | None,
    leave: bool,
    recording: Path | None,
    trace: Path | None,
    speed: float,
    from_s: float | None,
    record: Path | None,
    record_fps: float | None,
    **options: Any,
) -> int:
    """Play a demo: prompts, keys and captions at the moments that a script names.

    SCRIPT is a .toml file, or the name of one that comes along; without it, those are listed."""
    mqtt = broker_options.taken(options)
    _check_playback(recording, trace, mqtt["mqtt"])
    if script is None:
        from kvtui import script as scripts

        for name, known in scripts.shipped():
            click.echo(f"{name:<16} {known.title}")
        return 0
    player = _player(script)
    if recording is not None:
        player.check_replayable()
        reader = _open_recording(recording, from_s)
        if not _has_screen():
            raise BadRequest("a script is played on the screen; here is no terminal")
        return _show(_replaying(reader, speed, from_s, player=player, leave_after_play=leave), record, record_fps)
    config = player.first()
    if not _has_screen():
        raise BadRequest("a script is played on the screen; here is no terminal")
    from kvtui.app import KvtuiApp
    from kvtui.connecting import connecting

    with _tracing(trace) as writer, publishing(**mqtt) as publisher:
        app = KvtuiApp(config, connect=connecting(writer, publisher), player=player, leave_after_play=leave)
        return _show(app, record, record_fps, publisher)


@cli.command()
@click.argument("address", type=TEXT)
@ca_option
@look_options
@record_options
def watch(address: str, mqtt_ca: Path | None, record: Path | None, record_fps: float | None) -> int:
    """Watch a run on another machine, live, which publishes with --mqtt: the same screens, without a model.

    ADDRESS is mqtt(s)://[user@]host[:port]/prefix, with the password in KVTUI_MQTT_PASSWORD or the keyring. Of several
    runs, [ and ] show another one, l lists them.

    Where there is no terminal, it prints a line for each request that ends, until the run ends."""
    broker = broker_options.broker_of(address, mqtt_ca)
    _check_recording(record, record_fps, screen=_has_screen())
    from kvtui.watching import WatchSource
    from probes.subscriber import Subscriber

    if not _has_screen():
        from kvtui.outcomes import print_outcomes

        return print_outcomes(WatchSource(Subscriber(broker), live_only=True))
    from kvtui.watch import WatchApp

    return _show(WatchApp(WatchSource(Subscriber(broker))), record, record_fps)


@cli.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--host", type=TEXT, default="127.0.0.1", show_default=True, help="Address to listen on; others can reach it then."
)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(host: str, port: int, arguments: tuple[str, ...]) -> int:
    """Show the app in a browser. ARGUMENTS are those of kvtui: options of the live app, or a command such as
    `replay`."""
    from kvtui.serve import serve as listen

    _check_served(list(arguments))
    listen(arguments, host, port)
    return 0


def _check_served(arguments: list[str]) -> None:
    """What is wrong with the arguments of `serve` is said at once, not to the first visitor."""
    from kvtui.serve import SHOWN

    _, rest, _ = cli.make_parser(click.get_current_context()).parse_args(list(arguments))
    with cli.make_context("kvtui", list(arguments)) as context:
        name, command, rest = cli.resolve_command(context, rest) if rest else (None, None, rest)
        if name not in SHOWN:
            raise BadRequest(f"kvtui {name} has no screen that could be served")
        if command is None:
            _check_recording(context.params["record"], context.params["record_fps"], screen=True)
            with _tracing(context.params["trace"]):
                broker_options.checked(**broker_options.taken(context.params))
                configure(_race_of(context), piped=False)
            return
        with command.make_context(name, rest, parent=context) as within:
            options = within.params
            _check_recording(options["record"], options["record_fps"], screen=True)
            if name == "replay":
                _open_recording(options["path"], options["from_s"]).close()
            elif name == "watch":
                broker_options.broker_of(options["address"], options["mqtt_ca"])
            else:
                _check_served_script(**options)


def _check_served_script(
    script: str | None, recording: Path | None, trace: Path | None, from_s: float | None, **options: Any
) -> None:
    mqtt = broker_options.taken(options)
    broker_options.checked(**mqtt)
    _check_playback(recording, trace, mqtt["mqtt"])
    if script is None:
        raise BadRequest("kvtui serve play needs a script; `kvtui play` lists those that come along")
    player = _player(script)
    if recording is None:
        with _tracing(trace):
            player.first()
    else:
        player.check_replayable()
        _open_recording(recording, from_s).close()


def _player(script: str) -> Player:
    """Of a file or a shipped script. Raises BadRequest."""
    from kvtui.player import Player
    from kvtui.script import find

    return Player(find(script), _configure_race)


def _check_playback(recording: Path | None, trace: Path | None, mqtt: str | None) -> None:
    if recording is None and (is_given("speed") or is_given("from_s")):
        raise click.UsageError("--speed and --from go with --replay")
    if recording is not None and trace is not None:
        raise click.UsageError("--trace keeps what a model does; --replay has none")
    if recording is not None and mqtt is not None:
        raise click.UsageError("--mqtt publishes what a model does; --replay has none")


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def study(arguments: tuple[str, ...]) -> int:
    """Measure with a study, such as performance, retention or plan; `kvtui study --help` lists them."""
    import subprocess

    return subprocess.run([sys.executable, "-m", "probes.study", *arguments], check=False).returncode


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--fetch", type=TEXT, metavar="NAME", help="Fetch and convert a model, so that later starts are quick.")
def models(as_json: bool, fetch: str | None) -> int:
    """List the models that have short names."""
    from kvtui import catalogue

    return catalogue.fetch(fetch) if fetch is not None else catalogue.show(as_json=as_json)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> int:
    """Tell what is here (device, driver, torch, link, terminal, models), what it means, and what to do about it.

    Exit code: 0 when kvtui can run here, 1 when something is broken that it needs."""
    from kvtui import doctor

    return doctor.run(as_json=as_json)


def _show(app: KvtuiApp, record: Path | None, record_fps: float | None, publisher: Publisher | None = None) -> int:
    """The app on the terminal, recorded if so wished, until it ends. Returns its exit code."""
    from kvtui import looks

    if publisher is not None:
        from kvtui.publishing import worded

        app.race.header.published = functools.partial(worded, publisher)

    _check_recording(record, record_fps, screen=True)
    app.dress(looks.detect(**looks_wanted()))
    with _recording(app, record, record_fps):
        app.run()
    if app.fault:
        click.echo(f"kvtui: {app.fault}", err=True)
    return app.exit_code


@contextlib.contextmanager
def _recording(app: KvtuiApp, record: Path | None, record_fps: float | None) -> Iterator[None]:
    if record is None:
        yield
        return
    from kvtui.cast import CastWriter
    from kvtui.driver import recording

    with contextlib.closing(CastWriter(record, record_fps)) as cast:
        app.driver_class = recording(app.driver_class, cast)
        yield


def _replaying(reader: TraceReader, speed: float, from_s: float | None, **options: Any) -> KvtuiApp:
    """The app on a recording; `options` are the app's own."""
    from kvtui.replay import TraceSource
    from kvtui.transport import ReplayApp

    return ReplayApp(TraceSource(reader, speed, from_s), **options)


def _open_recording(path: Path | None, from_s: float | None) -> TraceReader:
    """The trace, or one that comes along. Raises BadRequest, also when it ends before `from_s`."""
    from kvtui import recordings
    from kvtui.trace import TraceReader

    reader = TraceReader(recordings.find(path))
    if from_s is not None and from_s > reader.duration_s:
        raise BadRequest(f"the recording ends after {reader.duration_s:.1f} s; --from is beyond that")
    return reader


def _check_recording(record: Path | None, record_fps: float | None, *, screen: bool) -> None:
    if record_fps is not None and record is None:
        raise click.UsageError("--record-fps goes with --record")
    if record is not None and not screen:
        raise BadRequest("--record keeps what the screen shows; here is no terminal")


@contextlib.contextmanager
def _tracing(path: Path | None) -> Iterator[TraceWriter | None]:
    if path is None:
        yield None
        return
    from kvtui.trace import TraceWriter

    with contextlib.closing(TraceWriter(path)) as writer:
        yield writer


def _configure_race(options: dict[str, str | float | int | bool]) -> WorkerConfig:
    """The configuration that a script's options stand for, checked like a command line."""
    from kvtui.script import arguments

    given = arguments(options)
    try:
        with cli.make_context("kvtui", given) as context:
            return configure(_race_of(context), piped=False)
    except click.ClickException as fault:
        raise BadRequest(fault.format_message()) from None


def _race_of(context: click.Context) -> dict[str, Any]:
    """What of the live app's options shapes the race."""
    return {name: value for name, value in context.params.items() if name not in _NOT_OF_THE_RACE}


def _has_screen() -> bool:
    if os.environ.get("TERM", "").lower() in ("dumb", "unknown"):  # it cannot place text
        return in_browser()
    return in_browser() or all(map(is_terminal, (sys.stdin, sys.stdout, sys.stderr)))  # Textual draws on stderr


if __name__ == "__main__":
    main()
