"""Recordings that come with kvtui, by name."""

from __future__ import annotations

from pathlib import Path

from engines.errors import BadRequest
from kvtui.literal import one_line

_DEFAULT = "demo"
_FOLDER, _SUFFIX = Path(__file__).with_name("data"), ".kvtrace"


def shipped() -> list[str]:
    return sorted(file.stem for file in _FOLDER.glob(f"*{_SUFFIX}"))


def find(given: Path | None) -> Path:
    """A file, or the one that comes along by that name, or by none. Raises BadRequest where it can only have been meant
    as a name, and is none."""
    if given is None:
        return _FOLDER / f"{_DEFAULT}{_SUFFIX}"
    if given.suffix or given.name != str(given) or given.exists():
        return given
    known = shipped()
    if given.name not in known:
        name = one_line(given.name)
        raise BadRequest(f'no recording "{name}"; shipped are {", ".join(known)}, anything else is a {_SUFFIX} file')
    return _FOLDER / f"{given.name}{_SUFFIX}"
