"""Prompts on their way: kept until the worker has taken them into its stream, so that nothing that a person wrote is
lost. One that is too long is offered for cutting; one that is refused comes back to the input line."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engines.commands import Cancel, Prompt, Submit, WorkerConfig
from engines.events import AnyEvent, Notice, Submitted, TooLong
from kvtui.documents import PASTED
from kvtui.literal import one_line
from kvtui.messages import Asked
from kvtui.too_long_screen import TooLongScreen, too_long

if TYPE_CHECKING:
    from kvtui.app import KvtuiApp

TITLE_CHARACTERS = 60
LONG_CHARACTERS = 200_000  # tokenising takes a moment that is felt


def ticketed(config: WorkerConfig) -> WorkerConfig:
    """With a ticket for a single prompt, so that a person is asked when it is too long. Of several, a faulty one is
    named by its place and ends the start: later ones may follow it."""
    if len(config.prompts) != 1 or config.prompts[0].ticket:
        return config
    return replace(config, prompts=[replace(config.prompts[0], ticket=uuid.uuid4().hex)])


class Outbox:
    def __init__(self, app: KvtuiApp) -> None:
        self._app = app
        self._sent: dict[str, tuple[Prompt, str]] = {}  # by ticket, with the document's name
        self._too_long: dict[str, TooLong] = {}  # by ticket; a person is asked about the first one
        self._cancel = ""  # the ticket of what the worker has still to cancel

    def watch(self, config: WorkerConfig) -> WorkerConfig:
        """What the worker starts with is watched like what is sent. Gives it back with tickets, see `ticketed`."""
        self._cancel = ""
        config = ticketed(config)
        for prompt in config.prompts:
            if prompt.ticket:
                self._sent[prompt.ticket] = prompt, prompt.title
        return config

    def send(self, asked: Asked, *, follow_up: bool) -> None:
        name = asked.name if asked.name != PASTED else ""
        title = one_line((asked.question or name or asked.document.strip())[:TITLE_CHARACTERS])
        prompt = Prompt(
            document=asked.document, text=asked.question, follow_up=follow_up, title=title, ticket=uuid.uuid4().hex
        )
        self._submit(prompt, asked.name)

    def heard(self, event: AnyEvent) -> None:
        """Whatever the worker says."""
        match event:
            case Submitted(ticket=ticket):
                self._sent.pop(ticket, None)
            case TooLong():
                self._ask_where_to_cut(event)
            case Notice(ticket=ticket) if ticket and ticket == self._cancel:
                self._cancel = ""
            case Notice(ticket=ticket) if ticket in self._sent:
                self._put_back(ticket)
                self._app.race.action_ask()

    @property
    def cancelling(self) -> bool:
        """Whether the worker has not come to it yet: it may be counting a long document's tokens."""
        return bool(self._cancel)

    def cancel(self) -> None:
        """What runs and what waits."""
        self._sent.clear()
        self._cancel = uuid.uuid4().hex
        self._app.source.send(Cancel(ticket=self._cancel))

    def put_all_back(self) -> None:
        """There is no worker any more that would take them in; the next one starts with its own."""
        self._cancel = ""
        own = {prompt.ticket for prompt in self._app.config.prompts}
        for ticket in self._sent.keys() - own:
            self._put_back(ticket)

    def _submit(self, prompt: Prompt, name: str) -> None:
        self._sent[prompt.ticket] = prompt, name
        self._app.source.send(Submit(prompts=[prompt]))
        if len(prompt.document) > LONG_CHARACTERS and not prompt.cut:
            self._app.notify("Counting the tokens of a long document: the engines wait.", markup=False)

    def _ask_where_to_cut(self, event: TooLong) -> None:
        if event.ticket not in self._sent:  # a recording, or a run of old prompts again
            self._app.notify(too_long(event.title, event.tokens, event.room_tokens), severity="warning", markup=False)
            return
        if event.ticket not in self._too_long:
            self._too_long[event.ticket] = event
            if len(self._too_long) == 1:
                self._ask_about_first()

    def _ask_about_first(self) -> None:
        """Of those that have not come back meanwhile."""
        self._too_long = {ticket: waits for ticket, waits in self._too_long.items() if ticket in self._sent}
        event = next(iter(self._too_long.values()), None)
        if event is None:
            return
        prompt, name = self._sent[event.ticket]

        def answered(place: str | None) -> None:
            del self._too_long[event.ticket]
            if event.ticket in self._sent:  # else the worker has died meanwhile: it came back already
                if place:
                    self._submit(replace(prompt, cut=place), name)
                else:
                    self._put_back(event.ticket)
                    self._app.race.action_ask()
            if self._too_long:
                self._app.call_later(self._ask_about_first)  # after this one has gone

        self._app.push_screen(TooLongScreen(name or event.title, event.tokens, event.room_tokens), answered)

    def _put_back(self, ticket: str) -> None:
        prompt, name = self._sent.pop(ticket)
        self._app.fresh = self._app.fresh or not prompt.follow_up
        self._app.race.composer.put_back(prompt.document, prompt.text, name)
