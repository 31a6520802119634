"""Token ids of one sequence to text, piece by piece as they come."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from trivium.faults import fault_point
from trivium.text.tokenizer import Tokenizer


class Detokenizer:
    """Texts given by `feed` and `finish`, joined, are the text of all the tokens.

    A character whose bytes come with several tokens is held back until it is whole. `continues` says that the
    tokens follow others (a prompt): then a leading space is text. Otherwise one that the tokenizer puts before every
    text is left out, as `Tokenizer.decode` does. Special tokens that are `shown` stay in the text though others are
    skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        continues: bool = False,
        shown: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids.difference(shown) if skip_special_tokens else frozenset()
        self._spaces_to_strip = 0 if continues else tokenizer.spaces_stripped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that these tokens make whole."""
        fault_point("text.detokenize")
        data = b"".join([self._tokenizer.token_bytes(token) for token in tokens if token not in self._skipped])
        return self._utf8.decode(self._strip(data))

    def finish(self) -> str:
        """What was held back: bytes that no token can complete any more are U+FFFD."""
        fault_point("text.detokenize_end")
        return self._utf8.decode(b"", final=True)

    def _strip(self, data: bytes) -> bytes:
        while data and self._spaces_to_strip:
            if not data.startswith(b" "):
                self._spaces_to_strip = 0
                break
            data = data[1:]
            self._spaces_to_strip -= 1
        return data
