"""One answer's text, read by the model's dialect into parts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec.structs import replace

from trivium.dialects.dialect import Dialect
from trivium.dialects.parts import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from trivium.llm.outputs import CompletionOutput
from trivium.serve.chat.news import Finish
from trivium.serve.chat.tools import Tools
from trivium.serve.openai.logprobs import TextPosition, TokenShapes


class ChoiceReader:
    """Reads one of the n answers, in one piece or in many."""

    def __init__(
        self, dialect: Dialect, tools: Tools, shapes: TokenShapes, *, in_reasoning: bool, tells_reasoning: bool
    ) -> None:
        self._dialect = dialect
        self._tools = tools
        self._tells_reasoning = tells_reasoning
        self._parser = dialect.parser(tools.schemas, in_reasoning=in_reasoning)
        self._offsets = TokenOffsets(shapes) if self._parser is not None else None
        self._has_calls = False

    def read(self, completion: CompletionOutput) -> tuple[tuple[Part, ...], Finish | None]:
        """The parts that its delta brings, and at its end why it ended."""
        delta = completion.delta
        if self._parser is None or self._offsets is None:
            parts: list[Part] = [Content(delta.text)] if delta.text else []
        else:
            self._offsets.add(delta.token_ids)
            parts = self._parser.feed(delta.text)
            if completion.finished:
                parts += self._parser.finish()
        shown = tuple(self._with_id(part) for part in parts if self._is_wanted(part))
        self._has_calls = self._has_calls or any(isinstance(part, CallStart) for part in shown)
        return shown, self._finish(completion) if completion.finished else None

    @property
    def num_reasoning_tokens(self) -> int:
        if self._parser is None or self._offsets is None:
            return 0
        return sum(self._offsets.count(first, end) for first, end in self._parser.reasoning_spans)

    @property
    def num_malformed(self) -> int:
        return 0 if self._parser is None else self._parser.num_malformed

    def _is_wanted(self, part: Part) -> bool:
        """Where only one call is wanted, those after it are dropped."""
        if isinstance(part, Reasoning):
            return self._tells_reasoning
        is_later_call = isinstance(part, CallStart | CallArguments | CallEnd) and part.number > 0
        return self._tools.parallel or not is_later_call

    def _with_id(self, part: Part) -> Part:
        if isinstance(part, CallStart) and part.id is None:
            return replace(part, id=self._dialect.call_id())
        return part

    def _finish(self, completion: CompletionOutput) -> Finish:
        if completion.finish_reason == "length":
            return Finish("length")
        return Finish("tool_calls" if self._has_calls else "stop", completion.stop_reason)


class TokenOffsets:
    """Where each token of an answer begins in its text."""

    def __init__(self, shapes: TokenShapes) -> None:
        self._shapes = shapes
        self._position = TextPosition()
        self._starts: list[int] = []

    def add(self, tokens: Sequence[int]) -> None:
        self._starts += [self._position.advance(self._shapes.content(token) or b"") for token in tokens]

    def count(self, first: int, end: int) -> int:
        """Tokens that begin within these characters."""
        return bisect_left(self._starts, end) - bisect_left(self._starts, first)
