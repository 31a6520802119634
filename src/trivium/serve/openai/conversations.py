"""/v1/conversations and their items"""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from trivium.faults import fault_point
from trivium.records.conversations import Conversation
from trivium.records.ids import new_id
from trivium.records.paging import Page
from trivium.serve.body import read_json
from trivium.serve.errors import ApiError, invalid
from trivium.serve.openai.metadata import check_metadata
from trivium.serve.openai.responses import item_page
from trivium.serve.query import ListQuery, read_query
from trivium.serve.responses.context import resolved, stored_items
from trivium.serve.responses.items import Item, read_input
from trivium.serve.state import ServerState

MAX_NEW_ITEMS = 20  # at a time, as OpenAI has it


class CreateConversation(Struct, kw_only=True):
    items: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


class UpdateConversation(Struct, kw_only=True):
    metadata: dict[str, str] | None


class AddItems(Struct, kw_only=True):
    items: list[dict[str, Any]]


class ConversationObject(Struct, frozen=True):
    id: str
    created_at: int
    metadata: dict[str, str]
    object: Literal["conversation"] = "conversation"


class DeletedConversation(Struct, frozen=True):
    id: str
    deleted: bool = True
    object: Literal["conversation.deleted"] = "conversation.deleted"


CREATE = msgspec.json.Decoder(CreateConversation)
UPDATE = msgspec.json.Decoder(UpdateConversation)
ADD = msgspec.json.Decoder(AddItems)


async def create_conversation(state: ServerState, request: Request) -> Response:
    body = await read_json(request, CREATE, state.limits)
    check_metadata(body.metadata, state.limits)
    fault_point("conversations.create")
    items = await _read_items(state, body.items or [])
    conversation = Conversation(new_id("conv_"), int(time.time()), body.metadata or {})
    await state.records.conversations.add(conversation, stored_items(items))
    return _shown(conversation)


async def retrieve_conversation(state: ServerState, request: Request) -> Response:
    return _shown(await _found(state, request))


async def update_conversation(state: ServerState, request: Request) -> Response:
    body = await read_json(request, UPDATE, state.limits)
    check_metadata(body.metadata, state.limits)
    conversation_id: str = request.path_params["conversation_id"]
    changed = await state.records.conversations.change_metadata(conversation_id, body.metadata or {})
    if changed is None:
        raise _no_such_conversation(conversation_id)
    return _shown(changed)


async def delete_conversation(state: ServerState, request: Request) -> Response:
    conversation_id: str = request.path_params["conversation_id"]
    if not await state.records.conversations.delete(conversation_id):
        raise _no_such_conversation(conversation_id)
    return _json(DeletedConversation(conversation_id))


async def list_items(state: ServerState, request: Request) -> Response:
    conversation = await _found(state, request)
    query = read_query(request, ListQuery)
    return item_page(await state.records.conversations.list_items(conversation.id, query.page))


async def add_items(state: ServerState, request: Request) -> Response:
    body = await read_json(request, ADD, state.limits)
    conversation = await _found(state, request)
    items = stored_items(await _read_items(state, body.items))
    await state.records.conversations.add_items(conversation.id, items)
    return item_page(Page(items, False))


async def retrieve_item(state: ServerState, request: Request) -> Response:
    conversation = await _found(state, request)
    item_id: str = request.path_params["item_id"]
    item = await state.records.conversations.get_item(conversation.id, item_id)
    if item is None:
        raise _no_such_item(item_id)
    return Response(item.json, media_type="application/json")


async def delete_item(state: ServerState, request: Request) -> Response:
    conversation = await _found(state, request)
    item_id: str = request.path_params["item_id"]
    if not await state.records.conversations.delete_item(conversation.id, item_id):
        raise _no_such_item(item_id)
    return _shown(conversation)


async def _read_items(state: ServerState, given: list[dict[str, Any]]) -> list[Item]:
    if len(given) > MAX_NEW_ITEMS:
        raise invalid(f"items may have {MAX_NEW_ITEMS} entries at a time, but has {len(given)}", "items")
    return await resolved(state, read_input(given, "items"))


async def _found(state: ServerState, request: Request) -> Conversation:
    conversation_id: str = request.path_params["conversation_id"]
    conversation = await state.records.conversations.get(conversation_id)
    if conversation is None:
        raise _no_such_conversation(conversation_id)
    return conversation


def _no_such_conversation(conversation_id: str) -> ApiError:
    return ApiError(404, f"there is no conversation {conversation_id[:80]!r}", code="conversation_not_found")


def _no_such_item(item_id: str) -> ApiError:
    return ApiError(404, f"there is no item {item_id[:80]!r} in this conversation", code="item_not_found")


def _shown(conversation: Conversation) -> Response:
    return _json(ConversationObject(conversation.id, conversation.created_at, conversation.metadata))


def _json(answer: Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
