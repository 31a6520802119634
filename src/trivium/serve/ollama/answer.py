"""An answer as Ollama writes it: lines of JSON, or one object."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from trivium.dialects.parts import CallArguments, CallEnd, CallStart
from trivium.serve.chat.news import ChatNews, ChatUsage, ChoiceNews, Finish, content_of, reasoning_of
from trivium.serve.ollama.protocol import FunctionCalled, Line, MadeCall, Message
from trivium.serve.openai.logprobs import TokenShapes, chat_logprobs
from trivium.serve.openai.protocol import TokenLogprob


class Said(Struct, frozen=True):
    """A part of an answer, or all of it."""

    content: str = ""
    thinking: str = ""
    calls: tuple[MadeCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def __add__(self, more: Said) -> Said:
        return Said(
            self.content + more.content,
            self.thinking + more.thinking,
            self.calls + more.calls,
            self.logprobs + more.logprobs,
        )


class Stopwatch:
    """Moments of a request's life, in nanoseconds."""

    def __init__(self) -> None:
        self._arrived = time.monotonic_ns()
        self._asked = self._first = self._arrived

    def asked(self) -> None:
        """The prompt is made."""
        self._asked = self._first = time.monotonic_ns()

    def answered(self) -> None:
        """The first token came."""
        self._first = time.monotonic_ns()

    def durations(self) -> dict[str, int]:
        """Never 0: clients divide by them."""
        now = time.monotonic_ns()
        spans = {
            "total_duration": now - self._arrived,
            "load_duration": self._asked - self._arrived,
            "prompt_eval_duration": self._first - self._asked,
            "eval_duration": now - self._first,
        }
        return {name: max(span, 1) for name, span in spans.items()}


class AnswerWriter:
    """`take` news, then write what it brought as a line; at the end, `last` tells of all of it."""

    def __init__(
        self, model: str, watch: Stopwatch, shapes: TokenShapes, *, is_chat: bool, logprobs: int | None = None
    ) -> None:
        """`logprobs`: how many alternatives are told for each token; None: nothing is told."""
        self._model = model
        self._watch = watch
        self._shapes = shapes
        self._is_chat = is_chat
        self._logprobs = logprobs
        self._begun = False
        self._call: CallStart | None = None  # that is being made
        self._arguments: list[str] = []
        self.token_ids: list[int] = []

    def take(self, news: ChatNews) -> tuple[Said, Finish | None]:
        (choice,) = news.choices
        if not self._begun:
            self._begun = True
            self._watch.answered()
        self.token_ids += choice.token_ids
        logprobs: tuple[TokenLogprob, ...] = ()
        if self._logprobs is not None and choice.token_ids:
            entries = chat_logprobs(choice.token_ids, choice.logprobs, self._logprobs, self._shapes)
            logprobs = tuple(entries.content)
        said = Said(content_of(choice.parts), reasoning_of(choice.parts), self._calls(choice), logprobs)
        return said, choice.finish

    def _calls(self, choice: ChoiceNews) -> tuple[MadeCall, ...]:
        """Those that are whole now."""
        made = []
        for part in choice.parts:
            match part:
                case CallStart():
                    self._call, self._arguments = part, []
                case CallArguments(_, text):
                    self._arguments.append(text)
                case CallEnd() if self._call is not None:
                    function = FunctionCalled(self._call.name, _object("".join(self._arguments)), self._call.number)
                    made.append(MadeCall(self._call.id or "", function))
                    self._call = None
        return tuple(made)

    def line(self, said: Said) -> Line:
        return self._line(said, done=False)

    def last(self, said: Said, finish: Finish, usage: ChatUsage, context: list[int] | None = None) -> Line:
        return self._line(
            said,
            done=True,
            done_reason="length" if finish.reason == "length" else "stop",
            prompt_eval_count=usage.prompt_tokens,
            eval_count=usage.completion_tokens,
            context=UNSET if context is None else context,
            **self._watch.durations(),
        )

    def _line(self, said: Said, **fields: Any) -> Line:
        return line_of(self._model, said, is_chat=self._is_chat, **fields)


def line_of(model: str, said: Said, *, is_chat: bool, **fields: Any) -> Line:
    if is_chat:
        fields["message"] = Message(said.content, "assistant", said.thinking, [*said.calls])
    else:
        fields |= {"response": said.content, "thinking": said.thinking or UNSET}
    return Line(
        model=model,
        created_at=moment(datetime.now(UTC)),
        logprobs=[*said.logprobs] if said.logprobs else UNSET,
        **fields,
    )


def moment(when: datetime) -> str:
    """RFC 3339 with a fraction and a zone."""
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _object(text: str) -> dict[str, Any]:
    """Empty where the model was cut short or wrote no object: Ollama's JSON has no place for anything else."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
