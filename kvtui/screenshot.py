"""Pictures of the screen: SVG that any program can show or turn into PNG, without fetching a font."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from platformdirs import user_pictures_path
from textual.app import App

_WEB_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_FONTS = "'DejaVu Sans Mono', Menlo, 'Liberation Mono', 'Cascadia Mono', Consolas, monospace"
# Rich lays the picture out for Fira Code, whose characters are 0.61 of the size wide; those above have 0.602.
_FONT_SIZE = f"font-size: {20 * 0.61 / 0.602:.2f}px"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def take(app: App[Any]) -> None:
    """Saves the screen, or sends it to the browser that shows it, and tells the person where it went."""
    if app.is_web:
        app.deliver_text(io.StringIO(to_svg(app)), save_filename=next(_names()), mime_type="image/svg+xml")
        return
    try:
        path = save(app)
    except OSError as fault:
        app.notify(f"The picture was not saved: {fault.strerror or fault}", severity="warning", markup=False)
    else:
        app.notify(f"Saved {path}", markup=False)


def to_svg(app: App[Any]) -> str:
    """The screen as it is now."""
    svg = _WEB_FONTS.sub("", app.export_screenshot(title=app.title))
    svg = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)  # some programs drop spaces at the edges else
    svg = svg.replace("Fira Code, monospace", _FONTS).replace("font-size: 20px", _FONT_SIZE)
    return _NOT_XML.sub("�", svg)


def save(app: App[Any]) -> Path:
    """Writes the screen into the current folder, or where that cannot be, into the person's folder for pictures; never
    over another file. Raises OSError when neither takes it."""
    svg, fault = to_svg(app), OSError("there is no folder to write to")
    for folder in (Path(), user_pictures_path()):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _write(svg, folder.absolute())
        except OSError as refused:
            fault = refused
    raise fault


def _write(svg: str, folder: Path) -> Path:
    for name in _names():
        path = folder / name
        try:
            file = path.open("x", encoding="utf-8")
        except FileExistsError:
            continue
        try:
            with file:
                file.write(svg)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path
    raise FileExistsError("no name is left")


def _names() -> Iterator[str]:
    moment = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    yield f"kvtui-{moment}.svg"
    for number in range(2, 1000):
        yield f"kvtui-{moment}-{number}.svg"
