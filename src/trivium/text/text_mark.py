"""How a text comes in tokens: models spell marks such as `</think>` in any cut, and other words may share their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.types.request import TextMark


def text_mark(text: str, vocabulary: Sequence[bytes]) -> TextMark:
    """`vocabulary`: each token's bytes, by its id."""
    wanted = text.encode()
    ends, moves = [], []
    for token in _relevant_tokens(wanted, vocabulary):
        end = _state_after(0, vocabulary[token], wanted)
        if end:
            ends.append((token, end))
        for state in range(1, len(wanted)):
            after = _state_after(state, vocabulary[token], wanted)
            if after != end:
                moves.append((state, token, after))
    return TextMark(len(wanted), tuple(ends), tuple(moves))


def _relevant_tokens(wanted: bytes, vocabulary: Sequence[bytes]) -> list[int]:
    """Those after which the state can be another than 0: they hold the text, begin it, end it, or are a part of it."""
    places = range(1, len(wanted) + 1)
    beginnings = tuple(wanted[:end] for end in places)
    endings = tuple(wanted[len(wanted) - count :] for count in places)
    parts = {wanted[first:end] for first in range(len(wanted)) for end in places if first < end}
    return [
        token
        for token, spelling in enumerate(vocabulary)
        if spelling.endswith(beginnings) or spelling.startswith(endings) or spelling in parts or wanted in spelling
    ]


def _state_after(state: int, spelling: bytes, wanted: bytes) -> int:
    seen = wanted[:state] + spelling
    if wanted in seen:
        return len(wanted)
    return next(count for count in range(len(wanted) - 1, -1, -1) if seen.endswith(wanted[:count]))
