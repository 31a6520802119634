"""/v1/responses: create, retrieve, stream again, cancel, delete, input items, input tokens"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request
from starlette.responses import Response

from trivium.faults import fault_point
from trivium.records.conversations import StoredItem
from trivium.records.paging import Page
from trivium.serve.body import read_json
from trivium.serve.chat.tools import read_tools
from trivium.serve.disconnect import unless_client_goes
from trivium.serve.errors import ApiError, invalid
from trivium.serve.models.asked import model_for
from trivium.serve.openai.messages import chat_prompt
from trivium.serve.query import ListQuery, read_query
from trivium.serve.responses.background import start_in_background
from trivium.serve.responses.chat_request import chat_request, clients_names
from trivium.serve.responses.context import read_context, truncated
from trivium.serve.responses.making import ResponseMaker, frame, frames_of, open_response
from trivium.serve.responses.protocol import CreateResponse, DeletedResponse, InputRequest, InputTokens
from trivium.serve.sse import EventStreamResponse
from trivium.serve.state import ServerState

CREATE = msgspec.json.Decoder(CreateResponse)
COUNT = msgspec.json.Decoder(InputRequest)


class ItemList(Struct, frozen=True):
    data: list[Raw]
    first_id: str
    last_id: str
    has_more: bool
    object: Literal["list"] = "list"


class RetrieveQuery(Struct, frozen=True):
    stream: bool = False
    starting_after: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1


async def create_response(state: ServerState, request: Request) -> Response | EventStreamResponse:
    body = await read_json(request, CREATE, state.limits)
    maker = await open_response(state, await model_for(state, request, body.model), body)
    if maker.response.background:
        background = await start_in_background(state, maker, request.state.leases)
        if maker.is_streamed:
            return EventStreamResponse(background.frames(0), state.limits)
        return _json(background.response)
    if maker.is_streamed:
        return EventStreamResponse(
            _stream(maker), state.limits, lambda failure: b"".join(map(frame, maker.failure_events))
        )
    return _json(await unless_client_goes(request.receive, maker.whole()))


async def _stream(maker: ResponseMaker) -> AsyncGenerator[bytes]:
    async with aclosing(maker.events()) as batches:
        async for events in batches:
            if events:
                yield b"".join(map(frame, events))


async def retrieve_response(state: ServerState, request: Request) -> Response | EventStreamResponse:
    response_id: str = request.path_params["response_id"]
    fault_point("responses.retrieve")
    query = read_query(request, RetrieveQuery)
    background = state.background_response(response_id)
    if background is not None:
        if query.stream:
            return EventStreamResponse(background.frames(query.starting_after + 1), state.limits)
        return _json(background.response)
    stored = await state.records.responses.get(response_id)
    if stored is None:
        raise _no_such_response(response_id)
    if not query.stream:
        return Response(stored.object, media_type="application/json")
    if stored.events is None:
        raise invalid("only a response that was made in the background can be streamed again", "stream")
    return EventStreamResponse(_again(frames_of(stored.events)[query.starting_after + 1 :]), state.limits)


async def _again(frames: list[bytes]) -> AsyncGenerator[bytes]:
    yield b"".join(frames)


async def cancel_response(state: ServerState, request: Request) -> Response:
    response_id: str = request.path_params["response_id"]
    background = state.background_response(response_id)
    if background is not None:
        return _json(await background.cancel())
    stored = await state.records.responses.get(response_id)
    if stored is None:
        raise _no_such_response(response_id)
    if not msgspec.json.decode(stored.object)["background"]:
        raise invalid("only a response that is made in the background can be cancelled", code="not_cancellable")
    return Response(stored.object, media_type="application/json")


async def delete_response(state: ServerState, request: Request) -> Response:
    response_id: str = request.path_params["response_id"]
    background = state.background_response(response_id)
    if background is not None:
        await background.cancel()
    if not await state.records.responses.delete(response_id):
        raise _no_such_response(response_id)
    return _json(DeletedResponse(response_id))


async def list_input_items(state: ServerState, request: Request) -> Response:
    response_id: str = request.path_params["response_id"]
    if await state.records.responses.get(response_id) is None:
        raise _no_such_response(response_id)
    return item_page(await state.records.responses.input_items(response_id, read_query(request, ListQuery).page))


def item_page(page: Page[StoredItem]) -> Response:
    ids = [item.id for item in page.data] or [""]
    return _json(ItemList([Raw(item.json) for item in page.data], ids[0], ids[-1], page.has_more))


async def count_input_tokens(state: ServerState, request: Request) -> Response:
    """What a response to the same input would say in its usage."""
    body = await read_json(request, COUNT, state.limits)
    model = await model_for(state, request, body.model)
    with clients_names():
        context = await read_context(state, body)
        asked = chat_request(body, [*context.history, *context.input])
        if body.truncation == "auto":
            asked = await truncated(model, asked)
        prompt = await chat_prompt(model, asked, read_tools(asked, state.limits).offered)
    return _json(InputTokens(len(prompt["prompt_token_ids"])))


def _no_such_response(response_id: str) -> ApiError:
    return ApiError(404, f"there is no response {response_id[:80]!r}", code="response_not_found")


def _json(answer: Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
