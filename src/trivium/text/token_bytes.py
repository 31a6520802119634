"""The bytes that a token stands for.

A tokenizer's decoder turns token strings into text; the decoders of language models do so token by token, so that
text is the tokens' bytes joined, and a stream can be cut anywhere. This file reads such a decoder's description
into a rule from one token to its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from trivium.types.errors import UnsupportedModelError

SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: bytes that print stand for themselves, the others follow from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


class TokenBytes(Struct, frozen=True):
    byte_level: bool = False  # each character of a token stands for a byte
    byte_fallback: bool = False  # tokens such as <0x0A> are a byte
    replacements: tuple[tuple[str, str], ...] = ()
    continuation: str | None = None  # WordPiece: a token with this prefix continues a word, any other begins one
    spaces_stripped: int = 0  # at most so many leading spaces of a text were put there by the tokenizer

    def stripping(self, spaces: int) -> TokenBytes:
        return msgspec.structs.replace(self, spaces_stripped=spaces)

    def of(self, token: str, added: bool) -> bytes:
        """`added` tokens were matched in the text as they are written, before any encoding of bytes."""
        if self.byte_level:
            return token.encode() if added else _undo_byte_level(token)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if self.continuation is not None:
            token = token.removeprefix(self.continuation) if token.startswith(self.continuation) else " " + token
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode()


SENTENCEPIECE_BYTES = TokenBytes(byte_fallback=True, replacements=((SPACE_MARK, " "),))
BYTE_LEVEL_BYTES = TokenBytes(byte_level=True)


def token_bytes_of_decoder(decoder: Mapping[str, Any] | None) -> TokenBytes:
    """From the `decoder` of a tokenizer.json."""
    if decoder is None:
        return TokenBytes()
    stages = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    facts: dict[str, Any] = {"replacements": ()}
    fused = False
    for stage in stages:
        match stage["type"]:
            case "ByteLevel":
                facts["byte_level"] = True
            case "ByteFallback":
                facts["byte_fallback"] = True
            case "Replace" if "String" in stage["pattern"]:
                facts["replacements"] += ((stage["pattern"]["String"], stage["content"]),)
            case "Fuse":
                fused = True
            case "Strip" if fused and stage["content"] == " " and stage["stop"] == 0:
                facts["spaces_stripped"] = stage["start"]
            case "Metaspace":
                facts["replacements"] += ((stage["replacement"], " "),)
                facts["spaces_stripped"] = 0 if stage.get("prepend_scheme", "always") == "never" else 1
            case "WordPiece":
                facts["continuation"] = stage["prefix"]
                facts["spaces_stripped"] = 1
            case other:
                raise UnsupportedModelError(f"tokenizer.json has a decoder of type {other!r}, which is not one we run")
    return TokenBytes(**facts)


def _undo_byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_ALPHABET[char] for char in token])
    except KeyError:  # not of the alphabet: a token that was written as it is read
        return token.encode()
