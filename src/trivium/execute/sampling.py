"""How each row chooses its tokens, as columns over rows; for a step, as the batch that the `sample` op takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivium.execute.random import uniform
from trivium.execute.rows import Rows
from trivium.execute.thinking import ThinkingWatch
from trivium.kernels.sample import Biases, Draws, Masks, Penalties, SampleBatch
from trivium.types.mix import mix
from trivium.types.request import Sampling, Stopping

BANNED = float("-inf")

OnDevice = Callable[[object, type], Tensor]  # (values, numpy type)


@dataclass(frozen=True)
class RowBiases:
    """What one row adds to logits, where it asks for that."""

    tokens: np.ndarray  # int64
    values: np.ndarray  # float32
    bad_words: tuple[tuple[int, ...], ...]
    stop_tokens: np.ndarray  # int64; banned before `min_tokens`
    min_tokens: int

    @staticmethod
    def of(sampling: Sampling, stopping: Stopping) -> RowBiases | None:
        min_tokens = stopping.min_tokens if stopping.stop_token_ids else 0
        if not sampling.logit_bias and not sampling.bad_words and not min_tokens:
            return None
        return RowBiases(
            tokens=np.array([token for token, _ in sampling.logit_bias], dtype=np.int64),
            values=np.array([value for _, value in sampling.logit_bias], dtype=np.float32),
            bad_words=sampling.bad_words,
            stop_tokens=np.array(stopping.stop_token_ids, dtype=np.int64),
            min_tokens=min_tokens,
        )

    def banned(self, tokens: np.ndarray, num_generated: int) -> list[int]:
        """After these tokens: the ends of words that must not be completed, and stop tokens that come too early."""
        banned = self.stop_tokens.tolist() if num_generated < self.min_tokens else []
        for *begin, end in self.bad_words:
            if begin == tokens[len(tokens) - len(begin) :].tolist():
                banned.append(end)
        return banned


class SamplingColumns:
    """A row that no sequence holds keeps stale numbers in the arrays; nothing reads them."""

    def __init__(self, max_rows: int) -> None:
        self._draws = np.zeros((max_rows, 6))  # as Draws.columns, but for the last
        self._mixed_seeds = np.zeros(max_rows, dtype=np.uint64)
        self._penalties = np.zeros((max_rows, 3), dtype=np.float32)
        self._drawing: set[int] = set()  # rows that have a temperature
        self._penalized: set[int] = set()
        self._biases: dict[int, RowBiases] = {}
        self._allowed: dict[int, tuple[int, ...]] = {}
        self.logprobs: dict[int, int] = {}  # of rows that want them: how many beside the chosen token's
        self.thinking: dict[int, ThinkingWatch] = {}  # of rows whose reasoning has a budget

    def start(self, row: int, sampling: Sampling, stopping: Stopping) -> None:
        self.end(row)
        self._draws[row, :5] = (
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p,
            sampling.typical_p,
        )
        if sampling.temperature:
            self._drawing.add(row)
        self._mixed_seeds[row] = mix(sampling.seed)
        self._penalties[row] = sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
        if self._penalties[row].tolist() != [1.0, 0.0, 0.0]:
            self._penalized.add(row)
        biases = RowBiases.of(sampling, stopping)
        if biases is not None:
            self._biases[row] = biases
        if sampling.allowed_token_ids is not None:
            self._allowed[row] = sampling.allowed_token_ids
        if sampling.logprobs is not None:
            self.logprobs[row] = sampling.logprobs
        if sampling.thinking is not None:
            self.thinking[row] = ThinkingWatch(sampling.thinking)

    def end(self, row: int) -> None:
        self._drawing.discard(row)
        self._penalized.discard(row)
        self._biases.pop(row, None)
        self._allowed.pop(row, None)
        self.logprobs.pop(row, None)
        self.thinking.pop(row, None)

    def batch(
        self,
        row_ids: np.ndarray,
        rows: Rows,
        vocab_size: int,
        device: torch.device,
        grammar_masks: Mapping[int, np.ndarray],
    ) -> SampleBatch:
        """Of these rows, int64 [M]. `grammar_masks`: by row, int32 words whose bits are the tokens that may come next."""

        def on_device(values: object, dtype: type) -> Tensor:
            return torch.from_numpy(np.asarray(values, dtype=dtype)).to(device, non_blocking=True)

        return SampleBatch(
            draws=self._draws_of(row_ids, rows, on_device) if self._drawing else None,
            penalties=self._penalties_of(row_ids, rows, on_device) if self._penalized else None,
            biases=self._biases_of(row_ids, rows, on_device) if self._biases else None,
            masks=self._masks_of(row_ids, vocab_size, grammar_masks, on_device)
            if self._allowed or grammar_masks
            else None,
        )

    def _draws_of(self, row_ids: np.ndarray, rows: Rows, on_device: OnDevice) -> Draws | None:
        columns = self._draws[row_ids]
        temperature, top_k, top_p, min_p, typical_p, _ = columns.T
        if not temperature.any():
            return None
        typical = bool((typical_p < 1).any())
        columns[:, 5] = uniform(self._mixed_seeds[row_ids], rows.num_tokens[row_ids])
        return Draws(
            on_device(columns, np.float64),
            filters=typical or bool((top_k > 0).any() or (top_p < 1).any() or (min_p > 0).any()),
            typical=typical,
        )

    def _penalties_of(self, row_ids: np.ndarray, rows: Rows, on_device: OnDevice) -> Penalties | None:
        places = [place for place, row in enumerate(row_ids.tolist()) if row in self._penalized]
        if not places:
            return None
        penalized = row_ids[places]
        num_tokens = rows.num_tokens[penalized]
        spans = np.stack([np.arange(len(places)), rows.num_prompt_tokens[penalized], num_tokens], axis=1)
        return Penalties(
            rows=on_device(places, np.int64),
            amounts=on_device(self._penalties[penalized], np.float32),
            history=on_device(rows.tokens[penalized, : num_tokens.max()], np.int64),
            spans=on_device(spans, np.int64),
        )

    def _biases_of(self, row_ids: np.ndarray, rows: Rows, on_device: OnDevice) -> Biases | None:
        starts, tokens, values = [0], [], []
        for row in row_ids.tolist():
            biases = self._biases.get(row)
            if biases is not None:
                held = rows.tokens_of(row)
                banned = biases.banned(held, len(held) - int(rows.num_prompt_tokens[row]))
                tokens += [*biases.tokens, *banned]
                values += [*biases.values, *(BANNED for _ in banned)]
            starts.append(len(tokens))
        if not tokens:
            return None
        return Biases(on_device(starts, np.int64), on_device(tokens, np.int64), on_device(values, np.float32))

    def _masks_of(
        self, row_ids: np.ndarray, vocab_size: int, grammar_masks: Mapping[int, np.ndarray], on_device: OnDevice
    ) -> Masks | None:
        places, masks = [], []
        for place, row in enumerate(row_ids.tolist()):
            both = [mask for mask in (self._allowed_mask(row, vocab_size), grammar_masks.get(row)) if mask is not None]
            if both:
                places.append(place)
                masks.append(np.bitwise_and.reduce(both))
        return Masks(on_device(places, np.int64), on_device(masks, np.int32)) if places else None

    def _allowed_mask(self, row: int, vocab_size: int) -> np.ndarray | None:
        """int32 words, one bit for each token."""
        allowed = self._allowed.get(row)
        if allowed is None:
            return None
        bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
        bits[list(allowed)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)
