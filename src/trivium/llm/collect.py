"""From the engine's deltas, which are tokens, to outputs, which have text. One place for LLM and AsyncLLM."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from trivium.faults import fault_point
from trivium.llm.outputs import (
    CompletionDelta,
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    TokenLogprobDict,
)
from trivium.llm.params import SamplingParams
from trivium.text.detokenize import Detokenizer
from trivium.text.stops import StopStrings
from trivium.text.tokenizer import Tokenizer
from trivium.types.account import Account
from trivium.types.delta import Delta, FinishReason
from trivium.types.errors import InvalidRequestError, RequestFailedError
from trivium.types.request import Request
from trivium.types.step import TokenLogprobs

FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.CANCELLED: "abort"}


class Collector:
    """One request's answers as they grow."""

    def __init__(
        self, request: Request, prompt_text: str | None, params: SamplingParams, tokenizer: Tokenizer | None
    ) -> None:
        self._request = request
        self._prompt_text = prompt_text
        self._tokenizer = tokenizer if params.detokenize else None
        self._prompt_token_ids = list(request.prompt)
        self._prompt_logprobs: list[TokenLogprobDict | None] | None = None
        if request.sampling.prompt_logprobs is not None:
            self._prompt_logprobs = [None]
        self._num_cached_tokens = 0
        self._metrics = RequestMetrics(arrival_time=request.arrival)
        self._accounts: tuple[Account, ...] = ()
        self._completions = [_Completion(index, params, self._tokenizer) for index in range(request.n)]
        self._last = [completion.output() for completion in self._completions]

    @property
    def finished(self) -> bool:
        return all(completion.finish_reason is not None for completion in self._completions)

    @property
    def has_news(self) -> bool:
        return any(completion.has_news for completion in self._completions)

    def take(self, deltas: Iterable[Delta]) -> list[int]:
        """Returns the sequences that a stop string has ended and that the engine has yet to be told of."""
        fault_point("llm.collect", self._request.id)
        stopped: list[int] = []
        token_came = False
        for delta in deltas:
            if delta.account is not None:
                self._accounts += (delta.account,)
            if delta.finish_reason is FinishReason.ERROR:
                kind = InvalidRequestError if delta.is_requests_fault else RequestFailedError
                raise kind(delta.error or "the request failed in the engine")
            self._num_cached_tokens = max(self._num_cached_tokens, delta.num_cached_tokens)
            if self._prompt_logprobs is not None:
                self._prompt_logprobs += [logprob_dict(entry, self._tokenizer) for entry in delta.prompt_logprobs]
            completion = self._completions[delta.index]
            if completion.finish_reason is not None:
                continue
            completion.take(delta)
            token_came = token_came or bool(delta.tokens)
            if completion.finish_reason is not None and delta.finish_reason is None:
                stopped.append(delta.index)
        self._stamp(token_came)
        return stopped

    def output(self) -> RequestOutput:
        """The whole state; what is new in it is told once, in the completions' deltas."""
        fault_point("llm.output", self._request.id)
        self._last = [
            completion.output() if completion.has_news else _without_news(last)
            for completion, last in zip(self._completions, self._last, strict=True)
        ]
        return RequestOutput(
            request_id=self._request.id,
            prompt=self._prompt_text,
            prompt_token_ids=self._prompt_token_ids,
            outputs=list(self._last),
            finished=self.finished,
            metrics=self._metrics,
            prompt_logprobs=self._prompt_logprobs,
            num_cached_tokens=self._num_cached_tokens,
        )

    def _stamp(self, token_came: bool) -> None:
        metrics, now = self._metrics, time.monotonic()
        self._metrics = RequestMetrics(
            arrival_time=metrics.arrival_time,
            first_token_time=metrics.first_token_time or (now if token_came else None),
            last_token_time=now if token_came else metrics.last_token_time,
            finished_time=now if self.finished else None,
            accounts=self._accounts,
        )


class _Completion:
    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer | None) -> None:
        self._index = index
        self._user_stop_ids = frozenset(params.stop_token_ids or ())
        self._shows_stop = params.include_stop_str_in_output
        self._tokenizer = tokenizer
        self._detokenizer: Detokenizer | None = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(
                tokenizer, params.skip_special_tokens, continues=True, shown=params.shown_special_tokens
            )
        self._stops: StopStrings | None = None
        if params.stop_strings:
            self._stops = StopStrings(params.stop_strings, self._shows_stop, params.min_tokens)
        self._text = ""
        self._undecoded: list[int] = []  # tokens whose text is wanted only when an output is
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobDict] | None = None if params.logprobs is None else []
        self._cumulative_logprob = 0.0
        self._told = (0, 0)  # characters and tokens in the output before
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self.has_news = False

    def take(self, delta: Delta) -> None:
        tokens = delta.tokens
        ends_with_stop = delta.finish_reason is FinishReason.STOP
        shown = tokens[:-1] if ends_with_stop and not self._shows_stop else tokens
        if self._stops is not None:
            tokens = tokens[: self._show_until_stop(shown, self._stops, len(tokens))]
        elif self._detokenizer is not None:
            self._undecoded += shown
        self._append(tokens, delta.logprobs)
        if self.finish_reason is None and delta.finish_reason is not None:
            self._finish(delta)
        self.has_news = self.has_news or bool(tokens) or self.finish_reason is not None

    def _show_until_stop(self, shown: Sequence[int], stops: StopStrings, num_tokens: int) -> int:
        """Adds the text of the tokens up to a stop string; returns how many of `num_tokens` belong to the answer."""
        assert self._detokenizer is not None
        for count, token in enumerate(shown, start=1):
            self._text += stops.feed(self._detokenizer.feed((token,)), len(self._token_ids) + count)
            if stops.matched is not None:
                self.finish_reason, self._stop_reason = "stop", stops.matched
                return count
        return num_tokens

    def _append(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        self._token_ids += tokens
        if self._logprobs is not None:
            for entry in logprobs[: len(tokens)]:
                self._logprobs.append(logprob_dict(entry, self._tokenizer))
                self._cumulative_logprob += entry.logprob

    def _finish(self, delta: Delta) -> None:
        """The engine ended it: what was held back is text now."""
        assert delta.finish_reason is not None
        self.finish_reason = FINISH_REASONS[delta.finish_reason]
        if delta.stop_token in self._user_stop_ids:
            self._stop_reason = delta.stop_token
        if self._detokenizer is not None:
            self._decode()
            rest = self._detokenizer.finish()
            if self._stops is not None:
                rest = self._stops.feed(rest, len(self._token_ids)) + self._stops.finish()
            self._text += rest

    def _decode(self) -> None:
        if self._undecoded and self._detokenizer is not None:
            self._text += self._detokenizer.feed(self._undecoded)
            self._undecoded.clear()

    def output(self) -> CompletionOutput:
        self._decode()
        num_chars, num_tokens = self._told
        self._told = (len(self._text), len(self._token_ids))
        self.has_news = False
        return CompletionOutput(
            index=self._index,
            text=self._text,
            token_ids=self._token_ids.copy(),
            cumulative_logprob=None if self._logprobs is None else self._cumulative_logprob,
            logprobs=None if self._logprobs is None else self._logprobs.copy(),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            delta=CompletionDelta(
                text=self._text[num_chars:],
                token_ids=tuple(self._token_ids[num_tokens:]),
                logprobs=() if self._logprobs is None else tuple(self._logprobs[num_tokens:]),
            ),
        )


def _without_news(output: CompletionOutput) -> CompletionOutput:
    return replace(output, delta=CompletionDelta()) if output.delta else output


def logprob_dict(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> TokenLogprobDict:
    """By token: the one that stands there first, then the likeliest in order."""
    found = {entry.token: Logprob(entry.logprob, entry.rank, _shown(entry.token, tokenizer))}
    for rank, (token, logprob) in enumerate(zip(entry.top_tokens, entry.top_logprobs, strict=True), start=1):
        if token not in found:
            found[token] = Logprob(logprob, rank, _shown(token, tokenizer))
    return found


def _shown(token: int, tokenizer: Tokenizer | None) -> str | None:
    return tokenizer.token_text(token) if tokenizer is not None else None
