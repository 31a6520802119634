"""Steps of an encoder: one plan out, one result in. A text is computed whole in one step, and leaves nothing behind."""

from __future__ import annotations

from msgspec import Struct

from trivium.types.step import RowFailure


class EncodeText(Struct, frozen=True):
    tokens: tuple[int, ...]
    second_from: int  # where the second of a pair of texts begins; len(tokens): there is none


class EncodeStep(Struct, frozen=True):
    id: int
    texts: tuple[EncodeText, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(text.tokens) for text in self.texts)


class EncodeResult(Struct, frozen=True):
    step_id: int
    vectors: tuple[bytes, ...]  # of each text, float32
    failures: tuple[RowFailure, ...] = ()  # of the texts of these places
