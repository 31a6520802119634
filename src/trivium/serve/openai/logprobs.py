"""Log probabilities in OpenAI's two shapes: chat's list of objects and the four parallel lists of completions."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from trivium.llm.outputs import Logprob, TokenLogprobDict
from trivium.llm.params import SamplingParams
from trivium.serve.openai.protocol import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from trivium.text.tokenizer import Tokenizer

LOWEST = -9999.0  # JSON has no infinity


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


class TokenShapes:
    """How tokens look in answers. Special tokens have no bytes while they are left out of the text."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._skip_special = sampling.skip_special_tokens
        self._shown = frozenset(sampling.shown_special_tokens)

    def is_special(self, token: int) -> bool:
        return self._tokenizer.is_special(token)

    def content(self, token: int) -> bytes | None:
        """What the token adds to the text; None: it adds nothing, and is no part of it."""
        if self._skip_special and self._tokenizer.is_special(token) and token not in self._shown:
            return None
        return self._tokenizer.token_bytes(token)

    def spelled(self, token: int) -> bytes:
        """What the token stands for where it is written out."""
        return self._tokenizer.token_bytes(token)

    def name(self, token: int) -> str:
        """A string for the token, another one for each token: what is not text by itself is shown as its bytes."""
        if self._tokenizer.is_special(token):
            return self._tokenizer.token_text(token)
        content = self._tokenizer.token_bytes(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def likeliest(entry: TokenLogprobDict, k: int) -> list[tuple[int, Logprob]]:
    """The k likeliest tokens, likeliest first; the sampled one is among them only by its own merit."""
    ranked = sorted(entry.items(), key=lambda item: (-item[1].logprob, item[1].rank or 0))
    return ranked[:k]


def chat_logprobs(
    tokens: Sequence[int], entries: Sequence[TokenLogprobDict], k: int, shapes: TokenShapes
) -> ChatLogprobs:
    return ChatLogprobs([_chat_entry(token, entry, k, shapes) for token, entry in zip(tokens, entries, strict=True)])


def _chat_entry(token: int, entry: TokenLogprobDict, k: int, shapes: TokenShapes) -> TokenLogprob:
    return TokenLogprob(
        token=shapes.name(token),
        logprob=finite(entry[token].logprob),
        bytes=_byte_list(shapes.content(token)),
        top_logprobs=[
            TopLogprob(shapes.name(other), finite(logprob.logprob), _byte_list(shapes.content(other)))
            for other, logprob in likeliest(entry, k)
        ],
    )


def _byte_list(content: bytes | None) -> list[int] | None:
    return None if content is None else list(content)


def prompt_logprobs(entries: Sequence[TokenLogprobDict | None], shapes: TokenShapes) -> PromptLogprobs:
    """The extension: for each prompt token, the candidates by id."""
    return [
        None
        if entry is None
        else {
            token: PromptLogprob(finite(logprob.logprob), logprob.rank, shapes.name(token))
            for token, logprob in entry.items()
        }
        for entry in entries
    ]


class TextPosition:
    """How many characters of a text have come, where tokens may end inside of one."""

    def __init__(self, chars: int = 0) -> None:
        self.chars = chars
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def advance(self, content: bytes) -> int:
        """Go past a token; the number of the character in which its first byte is."""
        if not content:
            return self.chars
        first = self._decoder.decode(content[:1])
        is_pending = bool(self._decoder.getstate()[0])
        # The first byte may have ended, as U+FFFD, a character that other tokens began.
        start = self.chars + len(first) - (0 if is_pending else 1)
        self.chars += len(first) + len(self._decoder.decode(content[1:]))
        return start


class CompletionLogprobsWriter:
    """Writes one choice's lists, at once or piece by piece: it remembers how far into the text it has come."""

    def __init__(self, k: int, shapes: TokenShapes) -> None:
        self._k = k
        self._shapes = shapes
        self._position = TextPosition()

    def write(self, tokens: Sequence[int], entries: Sequence[TokenLogprobDict | None]) -> CompletionLogprobs:
        written = self._entries(tokens, entries)
        for token in tokens:
            written.text_offset.append(self._position.advance(self._shapes.content(token) or b""))
        return written

    def write_prompt(
        self, text: str, tokens: Sequence[int], entries: Sequence[TokenLogprobDict | None]
    ) -> CompletionLogprobs:
        """The lists of a prompt whose text stands at the beginning of the answer.

        A special token has its place in the text where the text spells it out, and none where the tokenizer added it;
        a space that the tokenizer put before the first word is not in the text either.
        """
        written = self._entries(tokens, entries)
        for token in tokens:
            content = self._shapes.spelled(token)
            here = self._position.chars
            if self._shapes.is_special(token) and not text.startswith(content.decode(), here):
                content = b""
            elif here == 0 and content.startswith(b" ") and not text.startswith(" "):
                content = content[1:]
            written.text_offset.append(min(self._position.advance(content), len(text)))
        self._position = TextPosition(len(text))
        return written

    def _entries(self, tokens: Sequence[int], entries: Sequence[TokenLogprobDict | None]) -> CompletionLogprobs:
        """All but the offsets."""
        written = CompletionLogprobs([], [], [], [])
        for token, entry in zip(tokens, entries, strict=True):
            written.tokens.append(self._shapes.name(token))
            written.token_logprobs.append(None if entry is None else finite(entry[token].logprob))
            written.top_logprobs.append(None if entry is None else self._candidates(token, entry))
        return written

    def _candidates(self, token: int, entry: TokenLogprobDict) -> dict[str, float]:
        """The k likeliest and the chosen one, which may make k + 1: readers look the chosen one up."""
        chosen = likeliest(entry, self._k)
        if all(other != token for other, _ in chosen):
            chosen.append((token, entry[token]))
        return {self._shapes.name(other): finite(logprob.logprob) for other, logprob in chosen}
