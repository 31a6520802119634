"""POST /v1/messages and /v1/messages/count_tokens"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trivium.records.ids import new_id
from trivium.serve.anthropic.chat_request import chat_request
from trivium.serve.anthropic.errors import encode_error
from trivium.serve.anthropic.protocol import Event, InputTokens, Message, MessagesRequest, PromptRequest
from trivium.serve.anthropic.writer import MessageWriter
from trivium.serve.body import read_json
from trivium.serve.chat.chat import Chat, open_chat
from trivium.serve.chat.tools import read_tools
from trivium.serve.disconnect import unless_client_goes
from trivium.serve.models.asked import model_for
from trivium.serve.openai.messages import chat_prompt
from trivium.serve.sse import COMMENT, EVENT_STREAM, EventStreamResponse, Framing, named_event
from trivium.serve.state import ServerState

MESSAGES = msgspec.json.Decoder(MessagesRequest)
PROMPT = msgspec.json.Decoder(PromptRequest)
FRAMING = Framing(EVENT_STREAM, keep_alive=COMMENT)  # the message's own events tell that it ends


async def messages(state: ServerState, request: Request) -> Response | EventStreamResponse:
    body = await read_json(request, MESSAGES, state.limits)
    model = await model_for(state, request, body.model)
    chat = await open_chat(model, chat_request(body), new_id("msg_"))
    chat.cut_to_context()
    writer = MessageWriter(chat.id, chat.model, model.card.max_model_len)
    if body.stream:
        request_id: str = request.state.request_id
        return EventStreamResponse(
            _stream(chat, writer),
            state.limits,
            lambda failure: named_event("error", encode_error(failure, request_id)),
            FRAMING,
        )
    message = await unless_client_goes(request.receive, _whole(chat, writer))
    return Response(msgspec.json.encode(message), media_type="application/json")


async def count_tokens(state: ServerState, request: Request) -> Response:
    """All of the prompt's tokens, whatever the message will say of those that were cached."""
    body = await read_json(request, PROMPT, state.limits)
    model = await model_for(state, request, body.model)
    asked = chat_request(body)
    prompt = await chat_prompt(model, asked, read_tools(asked, state.limits).offered)
    return Response(msgspec.json.encode(InputTokens(len(prompt["prompt_token_ids"]))), media_type="application/json")


async def _stream(chat: Chat, writer: MessageWriter) -> AsyncGenerator[bytes]:
    async with aclosing(_events(chat, writer)) as batches:
        async for events in batches:
            yield b"".join(_frame(event) for event in events)


async def _whole(chat: Chat, writer: MessageWriter) -> Message:
    async with aclosing(_events(chat, writer)) as batches:
        async for _ in batches:
            pass
    return writer.message


async def _events(chat: Chat, writer: MessageWriter) -> AsyncGenerator[list[Event]]:
    begun = False
    async with aclosing(chat.news()) as batches:
        async for news in batches:
            (choice,) = news.choices
            events = [] if begun else writer.begin(news.usage)
            begun = True
            events += writer.take(choice.parts)
            if choice.finish is not None:
                events += writer.end(choice.finish, news.usage)
            if events:
                yield events


def _frame(event: Event) -> bytes:
    name = event.__struct_config__.tag
    assert isinstance(name, str)
    return named_event(name, msgspec.json.encode(event))
