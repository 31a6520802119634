"""SentencePiece BPE vocabularies: reading a `tokenizer.model` file, and building a tokenizer from pieces and scores.

SentencePiece merges, again and again, the two neighbours whose joined text is the piece with the best score, the
leftmost where scores tie. That is BPE with a merge for every way to cut a piece into two pieces, ranked by score.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from trivium.text.token_bytes import SPACE_MARK
from trivium.text.vocabulary import PieceType, Vocabulary
from trivium.types.errors import ModelFileError, UnsupportedModelError

# Whether a space is put before the text: to every stretch between special tokens, to the very first, or never.
SpacePrefix = Literal["every", "first", "never"]


class SentencePieceModel(Struct, frozen=True):
    vocabulary: Vocabulary
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    precompiled_charsmap: bytes  # of Unicode normalization, in SentencePiece's own form


def build_tokenizer(vocabulary: Vocabulary, prefix: SpacePrefix, before: normalizers.Normalizer | None) -> Tokenizer:
    """`before` normalizes the text ahead of the marking of its spaces. Special tokens are the caller's to add."""
    ids = vocabulary.ids()
    tokenizer = Tokenizer(
        models.BPE(
            ids,
            _merges(vocabulary, ids),
            unk_token=vocabulary.unknown,
            fuse_unk=True,
            byte_fallback=PieceType.BYTE in vocabulary.types,
        )
    )
    steps: list[normalizers.Normalizer] = [] if before is None else [before]
    if prefix == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARK, prepend_scheme="first", split=False)
    else:
        steps += [normalizers.Prepend(SPACE_MARK)] if prefix == "every" else []
        steps.append(normalizers.Replace(" ", SPACE_MARK))
    tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def normalizer_of(model: SentencePieceModel) -> normalizers.Normalizer | None:
    steps: list[normalizers.Normalizer] = []
    if model.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.precompiled_charsmap))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    return normalizers.Sequence(steps) if steps else None


def _merges(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    # Only what merging may yield: special pieces come from the text as written, bytes from what has no piece.
    yields = np.isin(vocabulary.types, (PieceType.NORMAL, PieceType.USER_DEFINED, PieceType.UNUSED))
    best_first = np.argsort(-np.asarray(vocabulary.scores, dtype=np.float32), kind="stable")
    pieces = vocabulary.pieces
    ranked = [pieces[i] for i in best_first[yields[best_first]].tolist()]
    return [
        (left, right)
        for piece in ranked
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in ids and (right := piece[cut:]) in ids
    ]


# The file is one protocol buffers message. Field numbers are those of SentencePiece's published schema.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE, _BPE = 3, 2
_CHARSMAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES = 2, 3, 4


def read_model(data: bytes, name: str) -> SentencePieceModel:
    """`name` is what an error calls the file."""
    try:
        return _read_model(data, name)
    except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
        raise ModelFileError(f"{name}: is not a SentencePiece model: {error}") from None


def _read_model(data: bytes, name: str) -> SentencePieceModel:
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    model_type, charsmap, dummy_prefix, extra_whitespaces = 1, b"", True, True  # the schema's defaults
    for field in _fields(data):
        if field.number == _PIECES:
            text, score, kind = "", 0.0, int(PieceType.NORMAL)
            for part in _fields(field.bytes()):
                if part.number == _PIECE_TEXT:
                    text = part.bytes().decode()
                elif part.number == _PIECE_SCORE:
                    score = struct.unpack("<f", part.bytes())[0]
                elif part.number == _PIECE_TYPE:
                    kind = part.int()
            # Matched in the text before its spaces are marked, hence written with spaces.
            pieces.append(text.replace(SPACE_MARK, " ") if kind == PieceType.USER_DEFINED else text)
            scores.append(score)
            types.append(kind)
        elif field.number == _TRAINER:
            model_type = next((part.int() for part in _fields(field.bytes()) if part.number == _MODEL_TYPE), model_type)
        elif field.number == _NORMALIZER:
            for part in _fields(field.bytes()):
                if part.number == _CHARSMAP:
                    charsmap = part.bytes()
                elif part.number == _ADD_DUMMY_PREFIX:
                    dummy_prefix = bool(part.int())
                elif part.number == _REMOVE_EXTRA_WHITESPACES:
                    extra_whitespaces = bool(part.int())
    if not pieces:
        raise ValueError("it holds no pieces")
    if model_type != _BPE:
        raise UnsupportedModelError(
            f"{name}: holds a SentencePiece model of type {model_type}; without a tokenizer.json only BPE (2) is read"
        )
    return SentencePieceModel(Vocabulary(pieces, types, scores), dummy_prefix, extra_whitespaces, charsmap)


class _Field(NamedTuple):
    number: int
    value: int | bytes

    def int(self) -> int:
        if isinstance(self.value, bytes):
            raise ValueError(f"field {self.number} is not a number")
        return self.value

    def bytes(self) -> bytes:
        if not isinstance(self.value, bytes):
            raise ValueError(f"field {self.number} has no bytes")
        return self.value


def _fields(data: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, at = _varint(data, at)
            yield _Field(number, value)
            continue
        if wire_type == 1:
            size = 8
        elif wire_type == 2:
            size, at = _varint(data, at)
        elif wire_type == 5:
            size = 4
        else:
            raise ValueError(f"byte {at} has an unknown wire type {wire_type}")
        if size > len(data) - at:
            raise ValueError(f"a field of {size} bytes at byte {at} runs past its end")
        yield _Field(number, data[at : at + size])
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"the number at byte {at} is too long")
