"""The command line's own types and the options that the live app and `kvtui run` share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from engines import sizes
from engines.errors import BadRequest
from engines.events import ENGINE_LABELS
from engines.knobs import ANCHORS


class Filled(click.ParamType):
    """A text that says something."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        _check_filled(value, param)
        return str(value)


class File(click.Path):
    """A path; "" would be the folder that one is in."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        _check_filled(str(value), param)
        return super().convert(value, param, ctx)


def _check_filled(value: str, param: click.Parameter | None) -> None:
    if not value.strip():
        name = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name if param else "a value"
        raise BadRequest(f"{name} is empty")


class Size(click.ParamType):
    """Bytes: "512MiB", "2GB", "1.5GiB" or a plain number."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        size_bytes = sizes.parsed(value)
        if size_bytes is None:
            option = param.opts[0] if param else "a size"
            raise BadRequest(f'{option} is a size such as 512MiB, 2GB, 1.5GiB or a number of bytes, not "{value}"')
        return size_bytes


class FiniteRange(click.FloatRange):
    """As click's, which takes "nan" for a number in any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class Engines(click.ParamType):
    """Engine ids, separated by commas; that of a server with its address, as in "vllm-server=http://host:8000"."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        if isinstance(value, list):
            return value
        return [part.strip() for part in value.split(",") if part.strip()]


class Moment(click.ParamType):
    """Seconds from the beginning: "12s", "1m30s", "90", or as clocks show it, "1:30"."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = value.strip()
        found = re.fullmatch(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s?)?", text)
        found = found or re.fullmatch(r"(?:(\d{1,6}):)??(?:(\d{1,6}):)(\d{1,2}(?:\.\d{1,9})?)", text)
        if not text or found is None:
            option = param.opts[0] if param else "a moment"
            raise BadRequest(f'{option} is a time such as 12s, 1m30s, 1:30 or 90, not "{value}"')
        hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return hours * 3600 + minutes * 60 + seconds


FILE, TEXT = File(), Filled()

_SHARED = [
    click.option(
        "--model", type=TEXT, default="smollm2-135m", show_default=True, help="Alias, hub id, folder or .gguf file."
    ),
    click.option("--random-weights", is_flag=True, help="Build the model's shape with random weights; no download."),
    click.option("--device", type=TEXT, default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
    click.option("--dtype", type=TEXT, default="auto", show_default=True, help="auto, bfloat16, float16 or float32."),
    click.option(
        "--engines",
        type=Engines(),
        default="vllm,h2o,infinigen",
        show_default=True,
        help=f"In column order; of {', '.join(ENGINE_LABELS)}=http://HOST:PORT.",
    ),
    click.option(
        "--budget", type=float, default=0.3, show_default=True, help="Share of KV entries kept (H2O) or fetched."
    ),
    click.option("--alpha", type=float, help="InfiniGen: how far below the best score a key is still fetched."),
    click.option("--link", type=TEXT, help="Host-device link profile: pcie3, pcie4, pcie5, nvlink-c2c, unscaled:GB/S."),
    click.option("--device-memory", type=Size(), help="Cap of each engine's device pool, such as 512MiB."),
    click.option("--host-memory", type=Size(), help="Cap of each engine's host pool."),
    click.option("--disk", type=Size(), help="InfiniGen: room on disk for what --host-memory has no room for."),
    click.option(
        "--disk-folder", type=TEXT, metavar="PATH", help="Where on disk, by default the system's temporary folder."
    ),
    click.option(
        "--prefill",
        type=click.Choice(["eager", "flash", "chunked", "chunked-exact"]),
        help="How a prompt's attention is computed; chunked is H2O's, with importance carried from chunk to chunk.",
    ),
    click.option(
        "--scoring",
        type=click.Choice(["eager", "flash", "sampled"]),
        help="Where H2O takes importance from: all scores at once, FlashAttention's log-sum-exps, a sample of rows.",
    ),
    click.option(
        "--anchors",
        is_flag=False,
        flag_value=str(ANCHORS),
        type=float,
        metavar="[SHARE]",
        help="Protect anchor tokens in H2O: sinks, system prompt, early turns, what surprised the model.",
    ),
    click.option(
        "--prefetch",
        type=click.Choice(["off", "predictive"]),
        help="InfiniGen: keep what the last steps fetched on the device, and move only the difference.",
    ),
    click.option(
        "--resident",
        type=float,
        metavar="SHARE",
        help="With predictive prefetch: share of the context that stays on the device; 1.5 budgets if not given.",
    ),
    click.option("--max-new-tokens", type=int, default=128, show_default=True, help="Tokens to generate a prompt."),
    click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy."),
    click.option("--top-p", type=float, default=1.0, show_default=True),
    click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True),
    click.option("--prompt-file", type=FILE, help="Text (one prompt) or .jsonl (one prompt a line); - is stdin."),
    click.option("--prompt", "prompts", multiple=True, help="A prompt; may be given several times."),
    click.option("--document", type=FILE, help="A text that the first --prompt is about; - is stdin."),
    click.option(
        "--truncate",
        is_flag=False,
        flag_value="middle",
        default="",
        type=click.Choice(["", "start", "middle", "end"]),
        metavar="[start|middle|end]",
        help="Cut prompts that are longer than the context; without a place, out of their middle.",
    ),
]


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds every option that shapes a race."""
    for option in reversed(_SHARED):
        command = option(command)
    return command


def race_options() -> frozenset[str]:
    """The names of all options that shape a race, without dashes before them."""
    race = click.command()(shared_options(lambda: None))
    return frozenset(name.removeprefix("--") for option in race.params for name in option.opts)


trace_option = click.option(
    "--trace", type=FILE, help="Keep everything that happens in this .kvtrace file, for `kvtui replay`."
)


def playback_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How a recording is played: `speed`, and `from_s` in seconds or None."""
    for option in (
        click.option(
            "--from",
            "from_s",
            type=Moment(),
            help="Where the recording begins, such as 12s, 1m30s or 1:30; else when its engines are ready.",
        ),
        click.option(
            "--speed", type=FiniteRange(1 / 8, 64), default=1.0, show_default=True, help="Times the recorded pace."
        ),
    ):
        command = option(command)
    return command


def record_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """For what is shown on the screen."""
    for option in (
        click.option(
            "--record-fps",
            type=FiniteRange(0.1, 1000),
            metavar="N",
            help="With --record: each repaint lasts 1/N s, whatever time it took.",
        ),
        click.option("--record", type=FILE, help="Record the screen to this .cast file, for `asciinema play`."),
    ):
        command = option(command)
    return command


def look_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How the screen looks; what was chosen is in `looks_wanted`."""
    for option in (
        click.option("--present", is_flag=True, default=None, callback=_want, expose_value=False, help=_PRESENT),
        click.option("--ascii/--no-ascii", "ascii_only", default=None, callback=_want, expose_value=False, help=_ASCII),
        click.option("--theme", type=click.Choice(_THEMES), callback=_want, expose_value=False, help=_THEME),
    ):
        command = option(command)
    return command


_THEMES = ("auto", "dark", "light")
_THEME = "Dark or light; auto asks the terminal's environment (COLORFGBG). Key: t."
_ASCII = "ASCII only, or all characters; else as the locale and the terminal have it."
_PRESENT = "Presenter mode: large, with captions, for an audience. Key: p."
_WANTED = "kvtui.looks"


def _want(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        context.meta.setdefault(_WANTED, {})[parameter.name] = value


def looks_wanted() -> dict[str, Any]:
    """The options of this command line that a look depends on, by the names of `looks.detect`'s parameters."""
    return dict(click.get_current_context().meta.get(_WANTED, {}))
