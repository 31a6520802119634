"""From a chat's news to a response: its events in their order, and the object as it grows."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from trivium.dialects.parts import CallArguments, CallEnd, CallStart, Content, Part
from trivium.dialects.parts import Reasoning as ReasoningPart
from trivium.records.ids import new_id
from trivium.serve.chat.news import ChatUsage, ChoiceNews, Finish
from trivium.serve.errors import ApiError
from trivium.serve.openai.protocol import TokenLogprob
from trivium.serve.responses.chat_request import write_reasoning
from trivium.serve.responses.items import FunctionCall, Item, Message, OutputText, Reasoning, ReasoningText, Status
from trivium.serve.responses.protocol import (
    ArgumentsEvent,
    ErrorEvent,
    Event,
    IncompleteDetails,
    InputTokensDetails,
    ItemEvent,
    NestedError,
    OutputTokensDetails,
    PartEvent,
    ResponseError,
    ResponseEvent,
    ResponseObject,
    ResponseStatus,
    ResponseUsage,
    TextEvent,
)


class ResponseWriter:
    """Each method returns the events that it causes. One item is open at a time."""

    def __init__(self, response: ResponseObject, *, keeps_reasoning: bool) -> None:
        """`keeps_reasoning`: the client sends reasoning back as `encrypted_content`."""
        self.response = response
        self._keeps_reasoning = keeps_reasoning
        self._sequence_number = 0
        self._open: Message | Reasoning | FunctionCall | None = None
        self._text: list[str] = []  # of the open item
        self._logprobs: list[TokenLogprob] = []  # of the open message
        # White space that may turn out to stand before a call: a message of nothing else would be none.
        self._held_text = ""
        self._held_logprobs: list[TokenLogprob] = []

    # The response's life

    def created(self) -> list[Event]:
        return [self._response_event("response.created")]

    def queued(self) -> list[Event]:
        return [self._response_event("response.queued")]

    def in_progress(self) -> list[Event]:
        self._change("in_progress")
        return [self._response_event("response.in_progress")]

    def news(self, news: ChoiceNews, logprobs: Sequence[TokenLogprob]) -> list[Event]:
        """`logprobs`: of the news' tokens, where they were asked for."""
        events: list[Event] = []
        self._held_logprobs += logprobs
        for part in news.parts:
            events += self._part(part)
        return events

    def finished(self, finish: Finish, usage: ChatUsage) -> list[Event]:
        events: list[Event] = []
        says_nothing = not self.response.output and self._open is None
        if says_nothing or (self._held_logprobs and isinstance(self._open, Message)):
            events += self._say(self._held_text)
        is_cut = finish.reason == "length"
        events += self._close("incomplete" if is_cut else "completed")
        self.response = replace(
            self.response,
            usage=_usage(usage),
            completed_at=None if is_cut else int(time.time()),
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
        )
        self._change("incomplete" if is_cut else "completed")
        return [*events, self._response_event(f"response.{self.response.status}")]

    def failed(self, error: ApiError) -> list[Event]:
        self.response = replace(self.response, error=_error(error))
        self._change("failed")
        nested = NestedError(error.message, error.type, error.param, error.code)
        told = ErrorEvent(
            sequence_number=self._next(), code=error.code, message=error.message, param=error.param, error=nested
        )
        return [told, self._response_event("response.failed")]

    def cancelled(self) -> None:
        """There is no event for it: the stream just ends."""
        self._close("incomplete")
        self._change("cancelled")

    def _change(self, status: ResponseStatus) -> None:
        self.response = replace(self.response, status=status)

    # Items

    def _part(self, part: Part) -> list[Event]:
        match part:
            case Content(text):
                return self._content(text)
            case ReasoningPart(text):
                return self._think(text)
            case CallStart(_, name, call_id):
                return self._start_call(name, call_id or new_id("call_"))
            case CallArguments(_, text):
                return self._continue_call(text)
            case CallEnd():
                return self._close("completed")

    def _content(self, text: str) -> list[Event]:
        if not isinstance(self._open, Message) and not (self._held_text + text).strip():
            self._held_text += text
            return []
        text, self._held_text = self._held_text + text, ""
        return self._say(text)

    def _say(self, text: str) -> list[Event]:
        events: list[Event] = []
        if not isinstance(self._open, Message):
            events += self._close("completed")
            events += self._begin(Message("assistant", [], new_id("msg_"), "in_progress"))
            events.append(self._part_event("response.content_part.added", OutputText("")))
        logprobs, self._held_logprobs = self._held_logprobs, []
        self._text.append(text)
        self._logprobs += logprobs
        if text or logprobs:
            events.append(self._text_event("response.output_text.delta", delta=text, logprobs=logprobs))
        return events

    def _think(self, text: str) -> list[Event]:
        self._drop_held()
        events: list[Event] = []
        if not isinstance(self._open, Reasoning):
            events += self._close("completed")
            events += self._begin(Reasoning(id=new_id("rs_"), content=[], status="in_progress"))
            events.append(self._part_event("response.content_part.added", ReasoningText("")))
        self._text.append(text)
        events.append(self._text_event("response.reasoning_text.delta", delta=text))
        return events

    def _start_call(self, name: str, call_id: str) -> list[Event]:
        self._drop_held()
        call = FunctionCall(call_id, name, "", new_id("fc_"), "in_progress")
        return [*self._close("completed"), *self._begin(call)]

    def _continue_call(self, text: str) -> list[Event]:
        self._drop_held()
        self._text.append(text)
        return [
            ArgumentsEvent(
                type="response.function_call_arguments.delta",
                sequence_number=self._next(),
                item_id=self._open_id,
                output_index=self._output_index,
                delta=text,
            )
        ]

    def _drop_held(self) -> None:
        self._held_text, self._held_logprobs = "", []

    def _begin(self, item: Message | Reasoning | FunctionCall) -> list[Event]:
        self._open = item
        return [self._item_event("response.output_item.added", item)]

    def _close(self, status: Status) -> list[Event]:
        """Ends the open item, if there is one, and puts it into the response's output."""
        if self._open is None:
            return []
        text = "".join(self._text)
        events: list[Event] = []
        item: Item
        match self._open:
            case Message():
                said = OutputText(text, logprobs=self._logprobs)
                events.append(self._text_event("response.output_text.done", text=text, logprobs=self._logprobs))
                events.append(self._part_event("response.content_part.done", said))
                item = replace(self._open, content=[said], status=status)
            case Reasoning():
                thought = ReasoningText(text)
                events.append(self._text_event("response.reasoning_text.done", text=text))
                events.append(self._part_event("response.content_part.done", thought))
                kept = write_reasoning(text) if self._keeps_reasoning else None
                item = replace(self._open, content=[thought], encrypted_content=kept, status=status)
            case FunctionCall():
                events.append(
                    ArgumentsEvent(
                        type="response.function_call_arguments.done",
                        sequence_number=self._next(),
                        item_id=self._open_id,
                        output_index=self._output_index,
                        arguments=text,
                        name=self._open.name,
                    )
                )
                item = replace(self._open, arguments=text, status=status)
        events.append(self._item_event("response.output_item.done", item))
        self.response = replace(self.response, output=[*self.response.output, item])
        self._open, self._text, self._logprobs = None, [], []
        return events

    # Events

    def _next(self) -> int:
        number = self._sequence_number
        self._sequence_number += 1
        return number

    @property
    def _output_index(self) -> int:
        return len(self.response.output)

    @property
    def _open_id(self) -> str:
        assert self._open is not None and self._open.id is not None
        return self._open.id

    def _response_event(self, kind: str) -> ResponseEvent:
        return ResponseEvent(type=kind, sequence_number=self._next(), response=self.response)

    def _item_event(self, kind: str, item: Item) -> ItemEvent:
        return ItemEvent(type=kind, sequence_number=self._next(), output_index=self._output_index, item=item)  # type: ignore[arg-type]

    def _part_event(self, kind: str, part: OutputText | ReasoningText) -> PartEvent:
        return PartEvent(
            type=kind,  # type: ignore[arg-type]
            sequence_number=self._next(),
            item_id=self._open_id,
            output_index=self._output_index,
            part=part,
        )

    def _text_event(
        self,
        kind: str,
        *,
        delta: str | None = None,
        text: str | None = None,
        logprobs: list[TokenLogprob] | None = None,
    ) -> TextEvent:
        return TextEvent(
            type=kind,
            sequence_number=self._next(),
            item_id=self._open_id,
            output_index=self._output_index,
            content_index=0,
            delta=UNSET if delta is None else delta,
            text=UNSET if text is None else text,
            logprobs=UNSET if logprobs is None else logprobs,
        )


def _usage(usage: ChatUsage) -> ResponseUsage:
    return ResponseUsage(
        usage.prompt_tokens,
        InputTokensDetails(usage.cached_tokens),
        usage.completion_tokens,
        OutputTokensDetails(usage.reasoning_tokens),
        usage.prompt_tokens + usage.completion_tokens,
    )


def _error(error: ApiError) -> ResponseError:
    """In the few words that the specification has for it."""
    match error.status:
        case 429:
            code = "rate_limit_exceeded"
        case status if status < 500:
            code = "invalid_prompt"
        case _:
            code = "server_error"
    return ResponseError(code, error.message)
