"""What the engine and the grammar process say to each other: msgpack structs in frames, over two lines.

The first line is for trials (a grammar is compiled to see whether it can be), the second for matching.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from trivium.grammar.limits import GrammarLimits
from trivium.types.request import Grammar

T = TypeVar("T")

_LENGTH = struct.Struct("<I")
_PIECE = 1 << 20


class Setup(Struct, frozen=True):
    """What the process reads from its standard input before anything else."""

    model: str  # path of the model, for its tokenizer
    vocab_size: int  # columns of the logits
    eos_token_ids: tuple[int, ...]  # of the model's configuration; the tokenizer's come on top
    num_rows: int
    num_threads: int
    trial_descriptor: int
    matching_descriptor: int
    mask_descriptor: int  # the file of the masks, mapped by both sides
    limits: GrammarLimits


# --- trials


class Try(Struct, frozen=True):
    ticket: int
    grammar: Grammar


class Trial(Struct, frozen=True, omit_defaults=True):
    ticket: int
    compiled: str | None = None  # None: it cannot be, and `why` says why not
    why: str = ""
    is_our_fault: bool = False
    num_bytes: int = 0  # that compiling it took
    seconds: float = 0.0


# --- matching, to the process


class Build(Struct, frozen=True, tag="build"):
    """Make a matcher from a compiled grammar; Built is the answer, or `at_once`, none: rows that need it follow."""

    key: int
    compiled: str
    at_once: bool = False


class Drop(Struct, frozen=True, tag="drop"):
    key: int


class RowOpening(Struct, frozen=True, array_like=True):
    row: int
    key: int
    tokens: tuple[int, ...]  # generated before


class RowAdvance(Struct, frozen=True, array_like=True):
    row: int
    token: int


class UpdateRows(Struct, frozen=True, tag="update"):
    """Applied in this order. Masks of rows opened or advanced are then filled, and told in one RowsUpdated or several."""

    number: int
    closed: Sequence[int] = ()
    opened: Sequence[RowOpening] = ()
    advanced: Sequence[RowAdvance] = ()


# --- matching, from the process


class Started(Struct, frozen=True, tag="started"):
    why_not: str = ""


class Built(Struct, frozen=True, tag="built"):
    key: int
    why_not: str = ""


class RowProblem(Struct, frozen=True, array_like=True):
    """Why a row has no mask."""

    row: int
    why: str
    is_requests_fault: bool = True  # the same grammar would fail anywhere


class RowsUpdated(Struct, frozen=True, tag="updated"):
    """These rows have their mask, or a problem."""

    number: int  # of the update that asked for it
    rows: Sequence[int]
    problems: Sequence[RowProblem] = ()


ToMatching = Build | Drop | UpdateRows
FromMatching = Started | Built | RowsUpdated


class Line(Generic[T]):
    """Frames over a stream socket. Raises EOFError when the other end is gone."""

    def __init__(self, end: socket.socket, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._socket = end
        self._decoder = decoder
        self._received = bytearray()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Struct) -> None:
        frame = msgspec.msgpack.encode(message)
        try:
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
        except OSError:
            raise EOFError from None

    def receive(self, seconds: float | None = None) -> list[T]:
        """All whole messages that are there, waiting for the first; none after `seconds`."""
        messages = self._take()
        while not messages:
            if not self._poll.poll(None if seconds is None else seconds * 1000):
                return []
            try:
                piece = self._socket.recv(_PIECE)
            except OSError:
                piece = b""
            if not piece:
                raise EOFError
            self._received += piece
            messages = self._take()
        return messages

    def _take(self) -> list[T]:
        messages = []
        begin, received = 0, self._received
        while len(received) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, begin)
            end = begin + _LENGTH.size + length
            if len(received) < end:
                break
            messages.append(self._decoder.decode(received[begin + _LENGTH.size : end]))
            begin = end
        if begin:
            del received[:begin]
        return messages

    def close(self) -> None:
        self._socket.close()


TRIES = msgspec.msgpack.Decoder(Try)
TRIALS = msgspec.msgpack.Decoder(Trial)
TO_MATCHING: msgspec.msgpack.Decoder[ToMatching] = msgspec.msgpack.Decoder(ToMatching)
FROM_MATCHING: msgspec.msgpack.Decoder[FromMatching] = msgspec.msgpack.Decoder(FromMatching)
