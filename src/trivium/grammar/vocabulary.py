"""The model's tokens as the matcher knows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llguidance import LLTokenizer, TokenizerWrapper
from msgspec import Struct

from trivium.formats.source import open_source
from trivium.text.tokenizer import Tokenizer
from trivium.types.errors import UnsupportedModelError


class Vocabulary(Struct, frozen=True):
    matcher_tokens: LLTokenizer
    special_ids: dict[str, int]  # by name


def read_vocabulary(model: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
    with open_source(model) as source:
        tokenizer = Tokenizer.from_source(source)
    ends = [id for id in dict.fromkeys((*tokenizer.eos_ids, *eos_token_ids)) if id < vocab_size]
    if not ends:
        raise UnsupportedModelError("the model has no token that ends an answer, so a grammar could not end one")
    wrapper = TokenizerWrapper(_Tokens(tokenizer, vocab_size, ends))
    special = {tokenizer.token_text(id): id for id in sorted(tokenizer.special_ids) if id < vocab_size}
    special.pop("", None)
    return Vocabulary(LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=ends), special)


class _Tokens:
    """What the matcher asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> None:
        self.eos_token_id = ends[0]
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = sorted(id for id in tokenizer.special_ids if id < vocab_size)
        self.tokens = [self._bytes(tokenizer, id) for id in range(vocab_size)]
        self._tokenizer = tokenizer

    def _bytes(self, tokenizer: Tokenizer, id: int) -> bytes:
        """The mark 0xFF, which no text has, is how the matcher tells special tokens from others."""
        return b"\xff" * tokenizer.is_special(id) + tokenizer.token_bytes(id)

    def __call__(self, text: str) -> list[int]:
        """Where a grammar leaves no choice, the matcher allows the tokens in which the model would write it."""
        return self._tokenizer.encode(text, add_special_tokens=False)
