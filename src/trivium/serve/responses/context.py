"""What a response answers: the items before it, from the records, and its own input."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trivium.faults import fault_point
from trivium.records.conversations import StoredItem
from trivium.serve.chat.tools import read_tools
from trivium.serve.errors import ApiError, invalid
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.messages import chat_prompt
from trivium.serve.openai.protocol import ChatRequest
from trivium.serve.responses.items import Item, ItemReference, decode_item, read_input
from trivium.serve.responses.protocol import InputRequest
from trivium.serve.state import ServerState

ANSWER_SHARE = 8  # with truncation and no bound on the answer, at least 1 / 8 of the context is left for it


class Context(Struct, frozen=True):
    history: list[Item]
    input: list[Item]
    conversation_id: str | None


async def read_context(state: ServerState, request: InputRequest) -> Context:
    fault_point("responses.context")
    given = request.conversation
    conversation_id = given if given is None or isinstance(given, str) else given.id
    if request.previous_response_id is not None and conversation_id is not None:
        raise invalid("previous_response_id and conversation exclude each other", "conversation")
    history: list[Item] = []
    if request.previous_response_id is not None:
        history = await _after_response(state, request.previous_response_id)
    elif conversation_id is not None:
        history = await _of_conversation(state, conversation_id)
    if request.input is None and not history:
        raise invalid("input must be given", "input")
    items = await resolved(state, read_input(request.input or [], "input"))
    if not (items or history):
        raise invalid("input must not be empty", "input")
    return Context(history, items, conversation_id)


async def resolved(state: ServerState, items: Sequence[Item | ItemReference]) -> list[Item]:
    """With each reference replaced by the item it names."""
    found: list[Item] = []
    for item in items:
        if isinstance(item, ItemReference):
            stored = await state.records.responses.find_item(item.id)
            if stored is None:
                raise ApiError(404, f"there is no item {item.id[:80]!r}", param="input", code="item_not_found")
            found.append(decode_item(stored.json))
        else:
            found.append(item)
    return found


async def _after_response(state: ServerState, response_id: str) -> list[Item]:
    param = "previous_response_id"
    previous = await state.records.responses.get(response_id)
    items = None if previous is None else await state.records.responses.history(response_id)
    if previous is None or items is None:
        message = f"the response {response_id[:80]!r}, or one that it follows, is not kept here"
        raise invalid(message, param, "previous_response_not_found")
    if previous.status not in ("completed", "incomplete"):
        raise invalid(f"the response {response_id[:80]!r} cannot be followed: it is {previous.status}", param)
    return [decode_item(item.json) for item in items]


async def _of_conversation(state: ServerState, conversation_id: str) -> list[Item]:
    items = await state.records.conversations.items(conversation_id)
    if items is None:
        message = f"there is no conversation {conversation_id[:80]!r}"
        raise ApiError(404, message, param="conversation", code="conversation_not_found")
    return [decode_item(item.json) for item in items]


def stored_items(items: Sequence[Item]) -> list[StoredItem]:
    return [StoredItem(item.id or "", msgspec.json.encode(item)) for item in items]


async def truncated(model: ServedModel, request: ChatRequest) -> ChatRequest:
    """Without as many of the oldest messages as it takes to leave room for an answer.

    System messages at the beginning stay, and so does the last message.
    """
    messages = request.messages
    first = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    offered = read_tools(request, model.limits).offered
    context = model.card.max_model_len
    room = context - (request.max_completion_tokens or context // ANSWER_SHARE)

    def without(count: int) -> ChatRequest:
        start = first + count
        while start < len(messages) - 1 and messages[start].role == "tool":
            start += 1  # what a call gave back means nothing without the call
        return replace(request, messages=messages[:first] + messages[start:])

    async def fits(candidate: ChatRequest) -> bool:
        prompt = await chat_prompt(model, candidate, offered)
        return len(prompt["prompt_token_ids"]) <= room

    low, high = 0, max(len(messages) - first - 1, 0)  # how many must go: at least `low`, `high` at most
    while low < high:
        middle = (low + high) // 2
        if await fits(without(middle)):
            high = middle
        else:
            low = middle + 1
    return without(low) if low else request
