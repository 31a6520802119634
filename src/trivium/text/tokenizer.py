"""Text to token ids and back, for a model of any source. Safe to use from several threads at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokenizers import Encoding

from trivium.faults import fault_point
from trivium.formats.gguf import GGUFFile
from trivium.formats.source import ModelSource
from trivium.text.gguf_tokenizer import read_gguf_tokenizer
from trivium.text.huggingface_tokenizer import read_huggingface_tokenizer
from trivium.text.text_mark import text_mark
from trivium.text.tokenizer_parts import TokenizerParts
from trivium.types.errors import InvalidRequestError
from trivium.types.request import TextMark


class TokenPair(NamedTuple):
    """Two texts as one, with the model's marks around them."""

    ids: list[int]
    second_from: int  # the first token that is marked as of the second text; 0: the model does not mark them


class Tokenizer:
    def __init__(self, parts: TokenizerParts) -> None:
        self.vocab_size = parts.vocab_size
        self.bos_id = parts.bos_id
        self.eos_ids = parts.eos_ids
        self.special_ids = parts.special_ids
        self._parts = parts
        self._bytes: dict[int, bytes] = {}  # of tokens asked for so far
        self._marks: dict[str, TextMark] = {}  # asked for so far

    @classmethod
    def from_source(cls, source: ModelSource) -> Tokenizer:
        if isinstance(source, GGUFFile):
            return cls(read_gguf_tokenizer(source))
        return cls(read_huggingface_tokenizer(source))

    @property
    def spaces_stripped(self) -> int:
        """Leading spaces of a whole text that are the tokenizer's and not the text's."""
        return self._parts.token_bytes.spaces_stripped

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Special tokens that are written in the text are taken as such; `add_special_tokens` puts others around it."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        fault_point("text.tokenize")
        for text in texts:
            _check_encodable(text)
        try:
            encodings = self._parts.backend.encode_batch_fast(texts, add_special_tokens=False)
        except BaseException as error:
            # The library's regular expressions give up (as a Rust panic) on runs of millions of alike characters.
            if type(error).__name__ != "PanicException":
                raise
            raise InvalidRequestError(
                f"a text of {max(map(len, texts))} characters holds a run of alike ones that is too long to tokenize"
            ) from None
        if not add_special_tokens:
            return [encoding.ids for encoding in encodings]
        prefix, suffix = self._parts.prefix_ids, self._parts.suffix_ids
        return [[*prefix, *encoding.ids, *suffix] for encoding in encodings]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]], most: int | None = None) -> list[TokenPair]:
        """`most`: of a pair with more tokens, the second text loses its end, and then the first."""
        for pair in pairs:
            for text in pair:
                _check_encodable(text)
        encodings = self._parts.backend.encode_batch(list(pairs), add_special_tokens=True)
        return [_token_pair(encoding, most) for encoding in encodings]

    def cut(self, ids: Sequence[int], most: int) -> list[int]:
        """At most so many: a text that was encoded with special tokens loses its end, and keeps what goes after it."""
        suffix = list(self._parts.suffix_ids)
        if len(ids) <= most or most <= len(suffix) or list(ids[len(ids) - len(suffix) :]) != suffix:
            return list(ids[:most])
        return [*ids[: most - len(suffix)], *suffix]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Bytes that are not UTF-8 become U+FFFD."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        data = b"".join([self.token_bytes(id) for id in ids if id not in skipped])
        for _ in range(self.spaces_stripped):
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the text; nothing if no token has this id (a model's vocabulary may be padded)."""
        known = self._bytes.get(id)
        if known is None:
            token = self._parts.backend.id_to_token(id) if 0 <= id < self.vocab_size else None
            known = b"" if token is None else self._parts.token_bytes.of(token, added=id in self._parts.added_ids)
            self._bytes[id] = known
        return known

    def mark(self, text: str) -> TextMark:
        """How to see the text come, however it is cut into tokens. The first time looks at the whole vocabulary."""
        if text not in self._marks:
            self._marks[text] = text_mark(text, [self.token_bytes(id) for id in range(self.vocab_size)])
        return self._marks[text]

    def token_text(self, id: int) -> str:
        """The token's text alone, for show: a part of a character is U+FFFD."""
        fault_point("text.token_text")
        return self.token_bytes(id).decode("utf-8", "replace")

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name in the vocabulary, such as `<|im_end|>`."""
        return self._parts.backend.token_to_id(token)

    def is_special(self, id: int) -> bool:
        return id in self.special_ids


def _token_pair(encoding: Encoding, most: int | None) -> TokenPair:
    surplus = 0 if most is None else max(0, len(encoding.ids) - most)
    dropped: set[int] = set()
    for text in (1, 0):
        places = [place for place, owner in enumerate(encoding.sequence_ids) if owner == text]
        dropped |= {*places[max(0, len(places) - (surplus - len(dropped))) :]}
    kept = [place for place in range(len(encoding.ids)) if place not in dropped]
    marked = [number for number, place in enumerate(kept) if encoding.type_ids[place] == 1]
    return TokenPair([encoding.ids[place] for place in kept], marked[0] if marked else 0)


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text holds half of a surrogate pair, U+{ord(text[error.start]):04X}, at character {error.start}"
        ) from None
