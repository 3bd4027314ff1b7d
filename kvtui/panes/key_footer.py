"""The last line: which keys there are, as far as it has room for them."""

from __future__ import annotations

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.keys import REPLACED_KEYS, key_to_character
from textual.widgets import Footer, Input
from textual.widgets._footer import FooterKey

ALWAYS = ("help", "quit")
FIRST_TO_GO = (  # where there is too little room; what is not among them goes last
    *("machine", "span", "next_gpu"),
    *("present", "heat", "budget", "step", "engine", "rerun", "move", "layer", "pan", "log", "rescued", "follow"),
    *("cache", "document", "mask", "mode", "evicted"),
)


class KeyFooter(Footer):
    """Keys in the screen's order, whole or not at all; help and quit at the end, always."""

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)

    def compose(self) -> ComposeResult:
        keys = self._keys()
        if isinstance(self.screen.focused, Input):  # there they are text
            keys = [key for key in keys if not _is_typed(key.key)]
        ordered = [key for key in keys if _name(key) not in ALWAYS]
        ordered += [key for key in keys if _name(key) in ALWAYS]
        room, shown = self.app.size.width, set()
        for key in sorted(ordered, key=_importance):
            cells = cell_len(f"{key.key_display} {key.description} ")
            if cells <= room:
                shown.add(key)
                room -= cells
        yield from (key for key in ordered if key in shown)

    def _keys(self) -> list[FooterKey]:
        """One an action. Not those that Textual's own footer makes: it binds them to itself and never lets go of them,
        so every screen that opens and closes would leave its keys behind."""
        actions: dict[str, FooterKey] = {}
        for _, binding, enabled, tooltip in self.screen.active_bindings.values() if self._bindings_ready else ():
            if binding.show and binding.action not in actions:
                display = self.app.get_key_display(binding)
                actions[binding.action] = FooterKey(
                    binding.key, display, binding.description, binding.action, disabled=not enabled, tooltip=tooltip
                )
        return list(actions.values())

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.recompose)


def _name(key: FooterKey) -> str:
    """Of the action, without where it is and what it is given."""
    return key.action.split("(")[0].split(".")[-1]


def _is_typed(key: str) -> bool:
    """Whether it writes a character."""
    character = key_to_character(key)
    return key in REPLACED_KEYS or (character is not None and character.isprintable())


def _importance(key: FooterKey) -> int:
    name = _name(key)
    if name in ALWAYS:
        return -2
    return len(FIRST_TO_GO) - FIRST_TO_GO.index(name) if name in FIRST_TO_GO else -1
