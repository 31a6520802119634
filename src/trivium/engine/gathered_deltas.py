"""Fewer, larger deltas for who reads an answer only when it is whole: each one costs the engine's process and the client's."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from msgspec.structs import replace

from trivium.types.delta import Delta
from trivium.types.request import Request

MOST_TOKENS = 64  # kept of a sequence before they are told: so a message stays small, whatever comes with its tokens


@dataclass
class _Kept:
    """What one sequence has yet to be told."""

    deltas: list[Delta] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self.num_tokens += len(delta.tokens)

    def take(self) -> Delta:
        """All of it; at least one was added."""
        whole = joined(self.deltas)
        self.deltas, self.num_tokens = [], 0
        return whole


@dataclass
class _Answer:
    """Of a request. A sequence is in `kept` once its first tokens were told."""

    num_unended: int
    kept: dict[int, _Kept] = field(default_factory=dict)  # by index


class GatheredDeltas:
    """A sequence's first tokens are told as they come, so that clients know when that was; then several deltas as one."""

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}

    def begin(self, request: Request) -> None:
        if request.is_told_whole:
            self._answers[request.id] = _Answer(request.n)

    def forget(self, request_id: str) -> None:
        self._answers.pop(request_id, None)

    def to_tell(self, deltas: list[Delta]) -> list[Delta]:
        """What is to be told of them now, and of those kept before."""
        if not self._answers:
            return deltas
        told = []
        for delta in deltas:
            answer = self._answers.get(delta.request_id)
            if answer is None:
                told.append(delta)
                continue
            kept = answer.kept.get(delta.index)
            has_ended = delta.finish_reason is not None
            if kept is None:
                told.append(delta)
                if delta.tokens:
                    answer.kept[delta.index] = _Kept()
            else:
                kept.add(delta)
                if has_ended or kept.num_tokens >= MOST_TOKENS:
                    told.append(kept.take())
            answer.num_unended -= has_ended
            if not answer.num_unended:
                del self._answers[delta.request_id]
        return told


def joined(deltas: list[Delta]) -> Delta:
    """Of one sequence, in order: the same as one."""
    if len(deltas) == 1:
        return deltas[0]
    return replace(
        deltas[-1],
        tokens=tuple(chain.from_iterable(delta.tokens for delta in deltas)),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
        prompt_logprobs=tuple(chain.from_iterable(delta.prompt_logprobs for delta in deltas)),
        num_cached_tokens=max(delta.num_cached_tokens for delta in deltas),
        pooled=next((delta.pooled for delta in deltas if delta.pooled), b""),
    )
