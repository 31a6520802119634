"""POST /v1/chat/completions"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from trivium.dialects.parts import CallArguments, CallStart, Content, Part, Reasoning
from trivium.faults import fault_point
from trivium.llm.outputs import TokenLogprobDict
from trivium.observe.request_account import RequestAccount
from trivium.serve.body import read_json
from trivium.serve.chat.chat import Chat, open_chat
from trivium.serve.chat.news import Call, ChatResult, ChoiceNews, ChoiceResult, Finish
from trivium.serve.disconnect import unless_client_goes
from trivium.serve.models.asked import model_for
from trivium.serve.openai.logprobs import chat_logprobs, prompt_logprobs
from trivium.serve.openai.protocol import (
    AssistantMessage,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    FunctionDelta,
    MessageToolCall,
    StreamOptions,
    ToolCallDelta,
    Usage,
)
from trivium.serve.openai.usage import usage_of_chat
from trivium.serve.openai.wording import Wording
from trivium.serve.request_times import answer_metrics
from trivium.serve.sse import EventStreamResponse, event
from trivium.serve.state import ServerState

DECODER = msgspec.json.Decoder(ChatRequest)


async def chat_completions(state: ServerState, request: Request) -> Response | EventStreamResponse:
    body = await read_json(request, DECODER, state.limits)
    model = await model_for(state, request, body.model)
    chat = await open_chat(model, body, f"chatcmpl-{uuid.uuid4().hex}")
    answer = ChatAnswer(
        chat,
        state.wording,
        speaks_of_functions=body.functions is not None,
        tells_metrics=body.include_metrics is True,
    )
    if body.stream:
        return EventStreamResponse(answer.stream(body.stream_options or StreamOptions()), state.limits)
    result = await unless_client_goes(request.receive, chat.whole())
    metrics = await answer_metrics() if body.include_metrics else UNSET
    return Response(msgspec.json.encode(answer.whole(result, metrics)), media_type="application/json")


class ChatAnswer:
    """Writes one request's answer, whole or in chunks; id, time and model are the same in all of it."""

    def __init__(self, chat: Chat, wording: Wording, *, speaks_of_functions: bool, tells_metrics: bool = False) -> None:
        self._chat = chat
        self._wording = wording
        self._speaks_of_functions = speaks_of_functions  # the deprecated words for tools
        self._tells_metrics = tells_metrics

    def whole(self, result: ChatResult, metrics: RequestAccount | UnsetType = UNSET) -> ChatCompletion:
        fault_point("chat.answer", self._chat.id)
        prompt = result.prompt_logprobs
        return ChatCompletion(
            id=self._chat.id,
            created=self._chat.created,
            model=self._chat.model,
            choices=[self._choice(choice) for choice in result.choices],
            usage=usage_of_chat(result.usage),
            prompt_logprobs=UNSET if prompt is None else prompt_logprobs(prompt, self._chat.shapes),
            metrics=metrics,
        )

    def _choice(self, choice: ChoiceResult) -> ChatChoice:
        return ChatChoice(
            index=choice.index,
            message=self._message(choice),
            finish_reason=self._finish_reason(choice.finish),
            logprobs=self._logprobs(choice.token_ids, choice.logprobs),
            stop_reason=choice.finish.stop_reason,
        )

    def _message(self, choice: ChoiceResult) -> AssistantMessage:
        calls = [_called(call) for call in choice.calls]
        return AssistantMessage(
            content=None if calls and not choice.content else choice.content,
            tool_calls=calls if calls and not self._speaks_of_functions else UNSET,
            function_call=calls[0].function if calls and self._speaks_of_functions else UNSET,
            reasoning=self._wording.under("reasoning", choice.reasoning),
            reasoning_content=self._wording.under("reasoning_content", choice.reasoning),
        )

    def _finish_reason(self, finish: Finish) -> str:
        if finish.reason != "tool_calls":
            return finish.reason
        if self._speaks_of_functions:
            return "function_call"
        return "tool_calls" if self._chat.tools.named is None else self._wording.named_call_finish

    def _logprobs(self, tokens: Sequence[int], entries: Sequence[TokenLogprobDict]) -> ChatLogprobs | None:
        k = self._chat.job.sampling.logprobs
        return None if k is None else chat_logprobs(tokens, entries, k, self._chat.shapes)

    async def stream(self, options: StreamOptions) -> AsyncGenerator[bytes]:
        """First each choice's role, by index; then what it says; then, in a chunk of its own, why it ended."""
        usage: UnsetType | None = None if options.include_usage else UNSET
        begun = False
        async with aclosing(self._chat.news()) as batches:
            async for news in batches:
                chunks = []
                if not begun:
                    begun = True
                    role = ChatDelta(role="assistant", content="")
                    chunks += [ChatChunkChoice(index, role) for index in range(self._chat.n)]
                for choice in news.choices:
                    chunks += self._chunks(choice)
                if chunks:
                    now = usage_of_chat(news.usage) if options.continuous_usage_stats else usage
                    yield b"".join(self._encode([chunk], now) for chunk in chunks)
        if options.include_usage or self._tells_metrics:
            metrics = await answer_metrics() if self._tells_metrics else UNSET
            yield self._encode([], usage_of_chat(news.usage) if options.include_usage else UNSET, metrics)

    def _chunks(self, news: ChoiceNews) -> list[ChatChunkChoice]:
        """One for each part; the log probabilities of all the tokens go with the first."""
        deltas = [delta for part in news.parts if (delta := self._delta(part)) is not None]
        logprobs = self._logprobs(news.token_ids, news.logprobs) if news.token_ids else None
        if logprobs is not None and not deltas:
            deltas = [ChatDelta(content="")]
        chunks = [
            ChatChunkChoice(news.index, delta, logprobs if place == 0 else None) for place, delta in enumerate(deltas)
        ]
        if news.finish is not None:
            reason, stop = self._finish_reason(news.finish), news.finish.stop_reason
            chunks.append(ChatChunkChoice(news.index, ChatDelta(), finish_reason=reason, stop_reason=stop))
        return chunks

    def _delta(self, part: Part) -> ChatDelta | None:
        match part:
            case Content(text):
                return ChatDelta(content=text)
            case Reasoning(text):
                return ChatDelta(
                    reasoning=self._wording.under("reasoning", text),
                    reasoning_content=self._wording.under("reasoning_content", text),
                )
            case CallStart(number, name, id):
                return self._call_delta(number, FunctionDelta("", name), id or UNSET)
            case CallArguments(number, text):
                return self._call_delta(number, FunctionDelta(text))
        return None

    def _call_delta(self, number: int, function: FunctionDelta, id: str | UnsetType = UNSET) -> ChatDelta:
        if self._speaks_of_functions:
            return ChatDelta(function_call=function)
        return ChatDelta(tool_calls=[ToolCallDelta(number, function, id, UNSET if id is UNSET else "function")])

    def _encode(
        self,
        choices: list[ChatChunkChoice],
        usage: Usage | UnsetType | None,
        metrics: RequestAccount | UnsetType = UNSET,
    ) -> bytes:
        chat = self._chat
        chunk = ChatChunk(chat.id, chat.created, chat.model, choices, usage=usage, metrics=metrics)
        return event(msgspec.json.encode(chunk))


def _called(call: Call) -> MessageToolCall:
    return MessageToolCall(call.id, CalledFunction(call.name, call.arguments))
