"""The running conversation as one engine knows it: one text, cut into tokens, each with its position. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from kvtui.state import EngineState, RequestState


@dataclass
class Part:
    """A prompt or an answer: `tokens` of them, the first one at `position` of the context, and as token `first` of the
    conversation. `said` are an answer's token ids."""

    request: int
    answer: bool
    position: int
    tokens: int
    said: Sequence[int] = ()
    first: int = 0


def requests_of(engine: EngineState | None) -> list[RequestState]:
    """The running conversation's, in order."""
    return [engine.requests[number] for number in engine.conversation] if engine is not None else []


def parts_of(engine: EngineState | None) -> list[Part]:
    """Prompts and answers in order. Tokens are counted over all of them."""
    parts: list[Part] = []
    for request in requests_of(engine):
        parts.append(Part(request.request, False, request.first_position, len(request.offsets)))
        answered = request.first_position + request.prompt_tokens
        parts.append(Part(request.request, True, answered, len(request.tokens), request.tokens))
    first = 0
    for part in parts:
        part.first = first
        first += part.tokens
    return parts


@dataclass(frozen=True)
class Address:
    """A token in a way that holds in every engine. A prompt's tokens are counted back from its end: engines may leave
    out a follow-up's first ones."""

    request: int
    answer: bool
    index: int


class Manuscript:
    """`text` with token i at `ends[i - 1] .. ends[i]`. Tokens of which no character is complete are empty."""

    def __init__(self, engine: str = "") -> None:
        self.engine = engine
        self.text = ""
        self.ends: list[int] = []
        self.parts: list[Part] = []
        self._requests: list[RequestState] = []
        self._taken: list[int] = []  # tokens of each request's answer that are in the text

    def __len__(self) -> int:
        return len(self.ends)

    def take(self, engine: EngineState | None) -> bool:
        """Brings it up to date. Returns False where it had to begin anew rather than go on."""
        requests = requests_of(engine)
        grows = self._goes_on(requests)
        if not grows:
            self.text, self.ends, self._requests, self._taken = "", [], [], []
        said: list[str] = []
        length = len(self.text)
        for index, request in enumerate(requests):
            if index == len(self._requests):
                self._requests.append(request)
                self._taken.append(0)
                if request.offsets:
                    self.ends += _ends(request, length)
                    said.append(request.asked)
                    length += len(request.asked)
            for text in request.texts[self._taken[index] :]:
                said.append(text)
                length += len(text)
                self.ends.append(length)
            self._taken[index] = len(request.texts)
        if said:
            self.text += "".join(said)
        self.parts = parts_of(engine)
        return grows

    def _goes_on(self, requests: list[RequestState]) -> bool:
        known = len(self._requests)
        if len(requests) < known or any(requests[i] is not self._requests[i] for i in range(known)):
            return False
        last = known - 1
        return all(
            len(requests[i].texts) >= self._taken[i] if i == last else len(requests[i].texts) == self._taken[i]
            for i in range(known)
        )

    def span(self, token: int) -> tuple[int, int]:
        """A token's characters."""
        return self.ends[token - 1] if token else 0, self.ends[token]

    def token_of(self, character: int) -> int:
        """The token that holds a character; the last one for those beyond the end."""
        return max(0, min(bisect_right(self.ends, character), len(self.ends) - 1))

    def part_of(self, token: int) -> Part:
        """Raises IndexError when there is no token at all."""
        return self.parts[bisect_right(self.parts, token, key=lambda part: part.first) - 1]

    def position_of(self, token: int) -> int:
        part = self.part_of(token)
        return part.position + token - part.first

    def address_of(self, token: int) -> Address:
        part = self.part_of(token)
        index = token - part.first
        return Address(part.request, part.answer, index if part.answer else part.tokens - index)

    def find(self, address: Address) -> int | None:
        """The token there, or the nearest of the same prompt or answer."""
        for part in self.parts:
            if part.tokens and (part.request, part.answer) == (address.request, address.answer):
                index = address.index if part.answer else part.tokens - address.index
                return part.first + max(0, min(index, part.tokens - 1))
        return None


def _ends(request: RequestState, base: int) -> list[int]:
    """Of a prompt's tokens: never backwards, never beyond the text; all of the text belongs to one."""
    size = len(request.asked)
    ends = [base + min(end, size) for end in accumulate(request.offsets, max)]
    ends[-1] = base + size
    return ends
