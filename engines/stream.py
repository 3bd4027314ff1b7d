"""The prompt stream of a race: rendered when it comes in, and fitted into the context when its turn comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from engines.chat import Chat, Rendered, title_of
from engines.commands import Prompt, WorkerConfig
from engines.errors import BadRequest, PromptTooLong
from engines.events import Event, Notice, TooLong


@dataclass
class Item:
    """`part` counts up with each submission that opens a conversation: what came together is run again together, with
    the follow-ups that came later."""

    prompt: Prompt
    rendered: Rendered
    part: int
    cancelled: bool = False


class Stream:
    """`emit` hears of prompts that are left out. A prompt's index is its `request` number."""

    def __init__(self, chat: Chat, config: WorkerConfig, context_limit: int, emit: Callable[[Event], None]) -> None:
        self._chat = chat
        self._config = config
        self._limit = context_limit
        self._emit = emit
        self._items: list[Item] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def titles(self) -> list[str]:
        return [title_of(item.prompt) for item in self._items]

    @property
    def waiting(self) -> bool:
        return self._next < len(self._items)

    def rewind(self) -> None:
        """To the beginning of the part that the last prompt belongs to, without what was cancelled; where that is all
        there was, with it. What was before is forgotten."""
        begun = self._items[: self._next]
        kept = [item for item in begun if not item.cancelled] or begun
        part = kept[-1].part if kept else 0
        again = [item for item in kept if item.part == part]
        self._items = again + self._items[self._next :]
        for item in again:
            item.cancelled = False
        self._next = 0

    def cancel(self, *, running: bool) -> bool:
        """Drops what waits, and marks the last one if it is `running`. Returns whether there was anything."""
        waited = self.waiting
        del self._items[self._next :]
        if running:
            self._items[-1].cancelled = True
        return running or waited

    def new_tokens(self, prompt: Prompt) -> int:
        return self._config.max_new_tokens if prompt.max_new_tokens is None else prompt.max_new_tokens

    def append(self, prompts: list[Prompt], conversation_tokens: int = 0) -> None:
        """All of them or none: rendered at once, so that a faulty one is refused before anything runs. Only one that is
        too long and has a ticket is left out by itself: a person will be asked where to cut it. A follow-up that is too
        long for any conversation need not wait for the present one of `conversation_tokens` to end. Raises BadRequest.
        """
        accepted: list[Item] = []
        part = self._items[-1].part if self._items else 0
        if prompts and not prompts[0].follow_up:
            part += 1
        for index, prompt in enumerate(prompts, start=len(self._items)):
            try:
                if prompt.follow_up and index == 0:
                    raise BadRequest("it is a follow-up, but nothing comes before it")
                accepted.append(Item(prompt, self._render(prompt), part))
            except BadRequest as fault:
                if isinstance(fault, PromptTooLong) and prompt.ticket:
                    before = conversation_tokens if prompt.follow_up else 0
                    self._refuse(prompt, fault.tokens, self._limit - before)
                    continue
                many = len(prompts) > 1
                raise BadRequest(f"prompt {index + 1}: {fault}" if many else str(fault)) from fault
        self._items += accepted

    def take(self, conversation_tokens: int | None) -> tuple[int, Prompt, Rendered] | None:
        """The next prompt with its index, or None when it turns out not to fit: then it is out of the stream.
        `conversation_tokens` is the length of the longest conversation that it may follow; without one (None), a
        follow-up opens its own."""
        index = self._next
        prompt, rendered = self._items[index].prompt, self._items[index].rendered
        fitted: Rendered | None = rendered
        try:
            if prompt.follow_up and conversation_tokens is not None:
                fitted = self._fit(prompt, rendered, self._limit - conversation_tokens)
            elif prompt.follow_up:
                prompt = msgspec.structs.replace(prompt, follow_up=False)
                fitted = self._render(prompt)
        except BadRequest as fault:
            if isinstance(fault, PromptTooLong) and prompt.ticket:
                self._refuse(prompt, fault.tokens, self._limit)
            else:
                self._emit(Notice(level="error", text=str(fault), ticket=prompt.ticket))
            fitted = None
        if fitted is None:
            del self._items[index]
            return None
        self._next += 1
        return index, prompt, fitted

    def _render(self, prompt: Prompt) -> Rendered:
        """As in an empty context; a follow-up is fitted in when its turn comes, if any context can hold it."""
        if prompt.follow_up:
            rendered = self._chat.render_follow_up(prompt)
            if prompt.ticket and not self._place(prompt) and len(rendered.token_ids) > self._limit:
                raise PromptTooLong(len(rendered.token_ids), self._limit)
            return rendered
        if place := self._place(prompt):
            return self._chat.render(prompt, truncate_to=self._room(prompt, self._limit), cut=place)
        return self._chat.render(prompt)

    def _fit(self, prompt: Prompt, rendered: Rendered, free_tokens: int) -> Rendered | None:
        """A follow-up, cut to what the context has left; None when a person has to be asked. Without a ticket nobody
        can be: then it ends as an error in the engines where it does not fit."""
        tokens, place = len(rendered.token_ids), self._place(prompt)
        if place and tokens > (room := self._room(prompt, free_tokens)):
            return self._chat.render_follow_up(prompt, truncate_to=room, cut=place)
        if prompt.ticket and not place and tokens > free_tokens:
            self._refuse(prompt, tokens, free_tokens)
            return None
        return rendered

    def _place(self, prompt: Prompt) -> str:
        return prompt.cut or self._config.truncate

    def _room(self, prompt: Prompt, free_tokens: int) -> int:
        """How many of the context's free tokens a prompt gets that has to be cut: the answer needs some, too."""
        return max(free_tokens - self.new_tokens(prompt), free_tokens // 2)

    def _refuse(self, prompt: Prompt, tokens: int, free_tokens: int) -> None:
        room = self._room(prompt, free_tokens)
        self._emit(TooLong(ticket=prompt.ticket, title=title_of(prompt), tokens=tokens, room_tokens=room))
