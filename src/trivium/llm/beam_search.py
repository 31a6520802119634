"""Beam search from outside the engine: one-token requests with log probabilities, cheap by the prefix cache.

The rules are those of `transformers`: of the best (1 + number of end tokens) x width continuations, the best `width`
may finish, and the best `width` that have not finished run on; a finished beam's score is its log probability /
(generated tokens, the end token included) ** length_penalty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trivium.llm.lower import end_token_ids
from trivium.llm.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput, TokenLogprobDict
from trivium.llm.params import BeamSearchParams, SamplingParams
from trivium.llm.prompts import Prompt
from trivium.text.tokenizer import Tokenizer
from trivium.types.card import ModelCard
from trivium.types.errors import NeverFitsError


class Completer(Protocol):
    @property
    def card(self) -> ModelCard: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...
    async def complete_all(
        self, prompts: Sequence[Prompt], sampling_params: Sequence[SamplingParams]
    ) -> list[RequestOutput]: ...


@dataclass(frozen=True, slots=True)
class _Beam:
    tokens: tuple[int, ...] = ()  # generated
    logprobs: tuple[TokenLogprobDict, ...] = ()
    total: float = 0.0

    def extended(self, token: int, logprobs: TokenLogprobDict) -> _Beam:
        return _Beam((*self.tokens, token), (*self.logprobs, logprobs), self.total + logprobs[token].logprob)

    def score(self, length_penalty: float) -> float:
        return self.total / math.pow(len(self.tokens), length_penalty)


async def beam_search(llm: Completer, prompt: tuple[int, ...], params: BeamSearchParams) -> BeamSearchOutput:
    if len(prompt) + params.max_tokens > llm.card.max_model_len:
        raise NeverFitsError(len(prompt), params.max_tokens, llm.card.max_model_len)
    ends = frozenset() if params.ignore_eos else end_token_ids(llm.tokenizer, llm.card)
    width, penalty = params.beam_width, params.length_penalty
    num_candidates = min(max(2, 1 + len(ends)) * width, llm.card.vocab_size)
    # The scores are the model's own log probabilities, so nothing of the sampling but these can matter.
    one_token = SamplingParams(
        temperature=0.0, max_tokens=1, logprobs=num_candidates, ignore_eos=True, detokenize=False
    )
    running = [_Beam()]
    finished: list[_Beam] = []
    for length in range(1, params.max_tokens + 1):
        outputs = await llm.complete_all(
            [{"prompt_token_ids": prompt + beam.tokens} for beam in running], [one_token] * len(running)
        )
        candidates = _best_continuations(running, outputs, num_candidates)
        may_end = length == params.max_tokens
        finished += [beam for beam in candidates[:width] if may_end or beam.tokens[-1] in ends]
        finished = sorted(finished, key=lambda beam: beam.score(penalty), reverse=True)[:width]
        running = [beam for beam in candidates if beam.tokens[-1] not in ends][:width]
        if not running or (
            len(finished) == width and (params.early_stopping or not _can_improve(running, finished, penalty))
        ):
            break
    return BeamSearchOutput([_sequence(beam, prompt, ends, params, llm.tokenizer) for beam in finished])


def _best_continuations(running: Sequence[_Beam], outputs: Sequence[RequestOutput], count: int) -> list[_Beam]:
    candidates = []
    for beam, output in zip(running, outputs, strict=True):
        logprobs = output.outputs[0].logprobs
        assert logprobs is not None
        candidates += [beam.extended(token, logprobs[0]) for token in logprobs[0]]
    return sorted(candidates, key=lambda beam: beam.total, reverse=True)[:count]


def _can_improve(running: Sequence[_Beam], finished: Sequence[_Beam], length_penalty: float) -> bool:
    """Whether the best running beam, were it to end here, would displace a finished one."""
    return running[0].score(length_penalty) > finished[-1].score(length_penalty)


def _sequence(
    beam: _Beam, prompt: tuple[int, ...], ends: frozenset[int], params: BeamSearchParams, tokenizer: Tokenizer | None
) -> BeamSearchSequence:
    ended = beam.tokens[-1] in ends
    kept = beam.tokens[:-1] if ended and not params.include_stop_str_in_output else beam.tokens
    tokens = [*prompt, *kept]
    return BeamSearchSequence(
        tokens=tokens,
        logprobs=list(beam.logprobs),
        cum_logprob=beam.total,
        text=tokenizer.decode(tokens) if tokenizer is not None else None,
        finish_reason="stop" if ended else "length",
        stop_reason=beam.tokens[-1] if ended else None,
    )
