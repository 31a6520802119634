"""A vocabulary as model files list it: pieces with their types, and scores where merging goes by score."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct
from tokenizers import AddedToken


class PieceType(IntEnum):
    """As numbered in SentencePiece models; GGUF's `tokenizer.ggml.token_type` uses the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Matched in the text as they are written, before anything else is done to it.
_MATCHED_AS_WRITTEN = frozenset((PieceType.CONTROL, PieceType.UNKNOWN, PieceType.USER_DEFINED))
# Left out of the text that a person is shown.
_SPECIAL = frozenset((PieceType.CONTROL, PieceType.UNKNOWN))


class Vocabulary(Struct, frozen=True):
    """Parallel lists; a piece's id is its place."""

    pieces: list[str]
    types: list[int]
    scores: list[float]  # empty where merging does not go by score

    @property
    def unknown(self) -> str | None:
        return self.pieces[self.types.index(PieceType.UNKNOWN)] if PieceType.UNKNOWN in self.types else None

    def ids(self) -> dict[str, int]:
        return dict(zip(self.pieces, range(len(self.pieces)), strict=True))

    def added_ids(self) -> list[int]:
        return [id for id, kind in enumerate(self.types) if kind in _MATCHED_AS_WRITTEN and self.pieces[id]]

    def special_ids(self) -> list[int]:
        return [id for id, kind in enumerate(self.types) if kind in _SPECIAL]

    def added_token(self, id: int, swallows_space_after: bool = False) -> AddedToken:
        special = self.types[id] in _SPECIAL
        return AddedToken(self.pieces[id], normalized=False, special=special, rstrip=swallows_space_after)
