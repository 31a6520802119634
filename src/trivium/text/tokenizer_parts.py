"""What a reader of tokenizer files hands over, whatever the files were."""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers

from trivium.text.token_bytes import TokenBytes


@dataclass(frozen=True)
class TokenizerParts:
    backend: tokenizers.Tokenizer
    token_bytes: TokenBytes
    vocab_size: int  # one more than the highest id
    added_ids: frozenset[int]  # matched in the text as written
    special_ids: frozenset[int]
    bos_id: int | None
    eos_ids: tuple[int, ...]  # any of them ends a generation
    prefix_ids: tuple[int, ...]  # put before and after a text that is encoded with special tokens
    suffix_ids: tuple[int, ...]
