"""What is found in a model's text, in the order in which it was said."""

from __future__ import annotations

from msgspec import Struct


class Content(Struct, frozen=True):
    text: str


class Reasoning(Struct, frozen=True):
    text: str


class CallStart(Struct, frozen=True):
    """A call begins. Its arguments follow in pieces, then its end; calls do not overlap."""

    number: int  # of the answer's calls, from 0
    name: str
    id: str | None = None  # where the model gave it one


class CallArguments(Struct, frozen=True):
    """The pieces of one call, joined, are a JSON object, unless the model wrote it wrong or was cut short."""

    number: int
    text: str


class CallEnd(Struct, frozen=True):
    number: int


Part = Content | Reasoning | CallStart | CallArguments | CallEnd
