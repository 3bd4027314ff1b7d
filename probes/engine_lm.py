"""An engine as a model of EleutherAI's lm-eval harness, so that each of its tasks can be asked.

A context is a prompt, and what follows it an answer: the engine reads the context as it would in generation, evicts or
offloads what it would, and is then given the continuation a token at a time, each in a decode step of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows

from engines import events
from engines.answering import Result
from engines.errors import BadRequest, KvtuiError
from engines.hybrid import AnyEngine
from engines.sequence import Forced

Pair = tuple[tuple[str, str] | None, list[int], list[int]]  # the texts, and the ids of context and continuation
SAMPLING = {"temperature", "top_p"}
OF_THE_HARNESS = {"until", "max_gen_toks", "do_sample"}


class EngineFailed(KvtuiError):
    """A request ended without an answer; `outcome` is "device_oom" or "error"."""

    def __init__(self, outcome: str, detail: str) -> None:
        self.outcome = outcome
        super().__init__(detail)


class EngineLM(TemplateLM):
    """`device_kv_peak_bytes` is the most that the engine's cache has held on the device for any request so far. `asked`
    is called after each request with how many are done and how many there are. Raises EngineFailed."""

    def __init__(self, engine: AnyEngine, asked: Callable[[int, int], None] = lambda done, total: None) -> None:
        super().__init__()
        self.engine, self.asked = engine, asked
        self.tokenizer = engine.model.tokenizer
        self.device_kv_peak_bytes = 0

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What stands in for a context that is empty."""
        bos = self.tokenizer.bos_token_id
        return self.tokenizer.eos_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        return self.engine.model.context_limit

    @property
    def max_gen_toks(self) -> int:
        return 256

    @property
    def tokenizer_name(self) -> str:
        return self.engine.model.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_options: Any) -> list[int]:
        """With the marks that the tokenizer itself adds, unless the text begins with them already."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self.tokenizer.decode([self.prefix_token_id]))
        return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Without lm-eval's own progress bar: the study has one."""
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(self, requests: list[Pair], **_options: Any) -> list[tuple[float, bool]]:
        """For each pair, the log-probability of the continuation and whether it is the greedy one. Pairs that differ in
        the last token only, as choices of one token do, are answered by one run."""
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, int]]] = {}
        for index, (texts, whole_context, continuation) in enumerate(requests):
            if not continuation:
                raise BadRequest(f"no token is left of the continuation {texts and texts[1]!r} behind its context")
            context = self._fitting(whole_context, len(continuation))
            alike.setdefault((tuple(context), tuple(continuation[:-1])), []).append((index, continuation[-1]))
        done = 0
        for (prompt, begun), ends in alike.items():
            forced = Forced([*begun, ends[0][1]])
            logprobs = self._run(list(prompt), forced).logprobs[:-1]
            assert forced.last is not None
            last = forced.last.log_softmax(-1)
            as_greedy = forced.greedy[:-1] == list(begun)
            for index, token in ends:
                answers[index] = sum(logprobs) + float(last[token]), as_greedy and forced.greedy[-1] == token
                if (texts := requests[index][0]) is not None:
                    self.cache_hook.add_partial("loglikelihood", texts, answers[index])
            done += len(ends)
            self.asked(done, len(requests))
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of whole texts, in windows as long as the context. The first half of a window is read as
        a prompt, so its tokens are scored before anything is evicted; the rest is fed a token at a time."""
        found = []
        for number, request in enumerate(requests):
            windows = get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, context_len=1
            )
            found.append(sum(self._rolled([*seen, said[-1]], len(said)) for seen, said in windows))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, found[-1])
            self.asked(number + 1, len(requests))
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the engine says, up to the first of the texts at which it is to stop, which does not belong to it."""
        said = []
        for number, request in enumerate(requests):
            context, options = request.args
            said.append(self._generated(context, options, seed=number))
            self.cache_hook.add_partial("generate_until", request.args, said[-1])
            self.asked(number + 1, len(requests))
        return said

    def _fitting(self, context: list[int], continuation: int) -> list[int]:
        """The end of the context that the model has room for before so many tokens, of which the last is not fed."""
        room = self.max_length + 1 - continuation
        if room < 1:
            raise BadRequest(f"a continuation of {continuation:,} tokens exceeds the context of {self.max_length:,}")
        return context[-room:]

    def _rolled(self, tokens: list[int], count: int) -> float:
        """The log-probability of the last `count` of a window's tokens."""
        before = len(tokens) - count
        half = max(before, len(tokens) // 2)
        forced = Forced(tokens[half:], of_prompt=half > before)
        logprobs = self._run(tokens[:half], forced).logprobs
        return sum([*forced.prompt[: half - 1], *logprobs][-count:])

    def _run(self, prompt: list[int], forced: Forced) -> Result:
        result = self.engine.generate(prompt, len(forced.tokens), forced=forced)
        self.device_kv_peak_bytes = max(self.device_kv_peak_bytes, result.device_kv_peak_bytes)
        if result.outcome != "ok":
            raise EngineFailed(result.outcome, result.detail)
        return result

    def _generated(self, context: str, options: dict[str, Any], seed: int) -> str:
        wanted: dict[str, Any] = dict(normalize_gen_kwargs(options, self.max_gen_toks))
        sampling: dict[str, Any] = {}
        if wanted["do_sample"]:
            sampling = {name: wanted[name] for name in sorted(SAMPLING & set(wanted))}
        if wanted["do_sample"] and (unknown := sorted(set(wanted) - SAMPLING - OF_THE_HARNESS)):
            raise BadRequest(f"a task samples with {', '.join(unknown)}; the engines know temperature and top_p")
        stops = handle_stop_sequences(wanted["until"], eos=self.tokenizer.decode([self.eot_token_id]))
        room = self.max_length - wanted["max_gen_toks"]
        if room < 1:
            raise BadRequest(
                f"a task generates up to {wanted['max_gen_toks']:,} tokens; the context has {self.max_length:,}"
            )
        prompt = self.tok_encode(context)[-room:] or [self.prefix_token_id]
        tokens = self._until(prompt, wanted["max_gen_toks"], [stop for stop in stops if stop], sampling, seed)
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return postprocess_generated_text(text, stops, think_end_token=None)

    def _until(self, prompt: list[int], most: int, stops: list[str], sampling: dict[str, Any], seed: int) -> list[int]:
        """The engine's tokens until one of `stops` is in their text."""
        tokens: list[int] = []
        self.engine.submit(0, prompt, most, seed=seed, **sampling)
        while self.engine.has_work:
            for event in self.engine.advance():
                if isinstance(event, events.Token):
                    tokens.append(event.token_id)
                    text = self.tokenizer.decode(tokens)
                    if any(stop in text for stop in stops):
                        self._note_peak()
                        self.engine.cancel()
                elif isinstance(event, events.Outcome) and event.outcome != "ok":
                    raise EngineFailed(event.outcome, event.detail)
        self._note_peak()
        return tokens

    def _note_peak(self) -> None:
        self.device_kv_peak_bytes = max(self.device_kv_peak_bytes, self.engine.memory().device_kv_peak_bytes)
