"""Items: what a conversation is made of in Responses. Read from clients' JSON, and written with all their fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trivium.records.ids import new_id
from trivium.serve.errors import invalid
from trivium.serve.openai.protocol import TokenLogprob

Status = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system", "developer"]


class InputText(Struct, frozen=True, tag="input_text"):
    text: str


class OutputText(Struct, frozen=True, tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class PlainText(Struct, frozen=True, tag="text"):
    """What some clients send for either of the two."""

    text: str


class Refusal(Struct, frozen=True, tag="refusal"):
    refusal: str


class ReasoningText(Struct, frozen=True, tag="reasoning_text"):
    text: str


class SummaryText(Struct, frozen=True, tag="summary_text"):
    text: str


MessagePart = InputText | OutputText | PlainText | Refusal


class Message(Struct, frozen=True, tag="message"):
    role: Role
    content: str | list[MessagePart]  # a string in clients' JSON only
    id: str | None = None  # None in clients' JSON only, as with the items below
    status: Status | None = None


class FunctionCall(Struct, frozen=True, tag="function_call"):
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None


class FunctionCallOutput(Struct, frozen=True, tag="function_call_output"):
    call_id: str
    output: str | list[InputText]
    id: str | None = None
    status: Status | None = None


class Reasoning(Struct, frozen=True, tag="reasoning"):
    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: Status | None = None


Item = Message | FunctionCall | FunctionCallOutput | Reasoning

ID_PREFIXES: dict[type, str] = {Message: "msg_", FunctionCall: "fc_", FunctionCallOutput: "fco_", Reasoning: "rs_"}


class ItemReference(Struct, frozen=True, tag="item_reference"):
    """An item that the server has: its id stands for it."""

    id: str


_DECODER: msgspec.json.Decoder[Item] = msgspec.json.Decoder(Item)


def decode_item(stored: bytes) -> Item:
    return _DECODER.decode(stored)


def read_input(given: str | Sequence[dict[str, Any]], param: str) -> list[Item | ItemReference]:
    """What a client sent, with ids, and with content as a list of parts."""
    if isinstance(given, str):
        return [_whole(Message("user", given))]
    return [_read_item(item, f"{param}[{place}]") for place, item in enumerate(given)]


def _read_item(item: dict[str, Any], where: str) -> Item | ItemReference:
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference"
    if kind not in ("message", "function_call", "function_call_output", "reasoning", "item_reference"):
        raise invalid(f"{where}: items of type {str(kind)[:80]!r} are not supported by this server", f"{where}.type")
    try:
        read: Item | ItemReference = msgspec.convert({**item, "type": kind}, Item | ItemReference)
    except msgspec.ValidationError as error:
        raise invalid(f"{where}: {error}", where) from None
    return read if isinstance(read, ItemReference) else _whole(read)


def _whole(item: Item) -> Item:
    """With all that an item has when the server shows it."""
    item = replace(item, id=item.id or new_id(ID_PREFIXES[type(item)]), status=item.status or "completed")
    if isinstance(item, Message):
        text = OutputText if item.role == "assistant" else InputText
        parts = [PlainText(item.content)] if isinstance(item.content, str) else item.content
        return replace(item, content=[part if isinstance(part, Refusal) else text(part.text) for part in parts])
    return item


def text_of(parts: str | Sequence[MessagePart]) -> str:
    if isinstance(parts, str):
        return parts
    return "".join(part.refusal if isinstance(part, Refusal) else part.text for part in parts)
