"""What rows ask for reaches their logits and draws: alike with the logits warpers of `transformers`, in their order."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from trivium.execute.host_copies import HostCopies
from trivium.execute.random import uniform
from trivium.execute.rows import Rows
from trivium.execute.sampler import Sampler
from trivium.execute.sampling import SamplingColumns
from trivium.kernels.ops import Ops
from trivium.kernels.sample import SampleBatch, changed_logits, kept_weights, reference
from trivium.kernels.select import select_ops
from trivium.types.kv import KVGroup, KVSpec
from trivium.types.mix import mix
from trivium.types.request import Sampling, Stopping
from trivium.types.step import RowFailure, RowStart, SampledRow

VOCAB = 3000
NO_STOP = Stopping(max_tokens=10)
CPU = torch.device("cpu")
MAX_ROWS = 8


def random_row(seed: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def started(row: int, tokens: list[int], num_prompt: int, sampling: Sampling, stopping: Stopping = NO_STOP) -> RowStart:
    return RowStart(row, f"request {row}", 0, tuple(tokens), num_prompt, sampling, stopping)


def empty_rows() -> Rows:
    return Rows(MAX_ROWS, 64, KVSpec(16, (KVGroup((0,)),), num_kv_heads=1, head_dim=1, dtype="float32"), CPU)


def batch_of(*starts: RowStart, grammar_masks: dict[int, np.ndarray] | None = None) -> SampleBatch:
    rows, columns = empty_rows(), SamplingColumns(MAX_ROWS)
    for start in starts:
        rows.start(start)
        columns.start(start.row, start.sampling, start.stopping)
    return columns.batch(np.array([start.row for start in starts]), rows, VOCAB, CPU, grammar_masks or {})


def warped_by_transformers(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    if sampling.typical_p < 1:
        warpers.append(TypicalLogitsWarper(sampling.typical_p))
    ids = torch.zeros(1, 1, dtype=torch.long)
    return torch.softmax(warpers(ids, logits.double().unsqueeze(0))[0], dim=-1)


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.3},
        {"top_k": 1},
        {"top_k": 40},
        {"top_p": 0.1},
        {"top_p": 0.95},
        {"top_p": 0.999},
        {"min_p": 0.05},
        {"typical_p": 0.2},
        {"typical_p": 0.9},
        {"top_k": 50, "top_p": 0.8, "min_p": 0.02, "typical_p": 0.95, "temperature": 1.7},
    ],
    ids=str,
)
def test_the_distribution_drawn_from_is_that_of_transformers(filters: dict, spread: float) -> None:
    """But for the rounding of weights, which may also move a token across the edge of a filter: one, of tiny weight."""
    sampling = Sampling(seed=0, **filters)
    logits = torch.stack([random_row(seed, spread) for seed in range(3)])
    draws = batch_of(*(started(row, [1], 1, sampling) for row in range(3))).draws
    assert draws is not None
    weights = kept_weights(logits, draws)
    for row in range(3):
        ours = weights[row].double() / weights[row].sum()
        torch.testing.assert_close(ours, warped_by_transformers(logits[row], sampling), rtol=1e-5, atol=2e-6)


def test_draws_follow_the_distribution() -> None:
    logits, count = torch.tensor([0.0, 1.0, 2.0, float("-inf"), -1.0]), 20_000
    draws = batch_of(started(0, [1], 1, Sampling(seed=7))).draws
    assert draws is not None
    columns = draws.columns.repeat(count, 1)
    columns[:, 5] = torch.from_numpy(uniform(np.full(count, mix(7), dtype=np.uint64), np.arange(count)))
    tokens = reference(logits.repeat(count, 1), SampleBatch(replace(draws, columns=columns)))
    frequencies = np.bincount(tokens.numpy(), minlength=5) / count
    expected = torch.softmax(logits, dim=0).numpy()
    assert frequencies[3] == 0
    # Five standard deviations of a binomial count: fails by chance once in a million.
    assert np.all(np.abs(frequencies - expected) <= 5 * np.sqrt(expected * (1 - expected) / count))


def test_a_seed_and_a_position_give_one_number_and_neighbours_differ() -> None:
    seeds = np.array([mix(seed) for seed in range(100)], dtype=np.uint64).repeat(100)
    numbers = uniform(seeds, np.tile(np.arange(100), 100))
    assert len(np.unique(numbers)) == 10_000
    assert (numbers >= 0).all() and (numbers < 1).all()
    assert uniform(seeds[304:305], np.array([4])) == numbers[304]


def changed(
    logits: torch.Tensor, tokens: list[int], num_prompt: int, stopping: Stopping = NO_STOP, **params
) -> torch.Tensor:
    batch = batch_of(started(0, tokens, num_prompt, Sampling(seed=0, **params), stopping))
    return changed_logits(logits.unsqueeze(0), batch)[0]


def test_repetition_penalty_is_that_of_transformers_over_prompt_and_answer() -> None:
    logits, tokens = random_row(1), [4, 9, 9, 77]
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([tokens]), logits.unsqueeze(0).clone())[0]
    assert torch.equal(changed(logits, tokens, 2, repetition_penalty=1.3), expected)


def test_presence_and_frequency_penalties_count_the_answer_only() -> None:
    logits = random_row(2)
    row = changed(logits, [4, 4, 9, 9, 77], 2, presence_penalty=0.5, frequency_penalty=0.25)
    expected = logits.clone()
    expected[9] -= 0.5 + 2 * 0.25
    expected[77] -= 0.5 + 0.25
    torch.testing.assert_close(row, expected)


def test_bad_words_are_banned_only_where_they_would_be_completed() -> None:
    logits = random_row(3)
    words = [[7], [9, 77, 5], [9, 78, 6]]
    for tokens in ([1, 2], [1, 9, 77], [77]):
        expected = NoBadWordsLogitsProcessor(words)(torch.tensor([tokens]), logits.unsqueeze(0).clone())[0]
        row = changed(logits, tokens, 1, bad_words=tuple(tuple(word) for word in words))
        assert torch.equal(row, expected)


def test_allowed_tokens_alone_remain_and_keep_their_logits() -> None:
    logits = random_row(4)
    row = changed(logits, [1], 1, allowed_token_ids=(3, 8, 31, 32, VOCAB - 1))
    assert torch.isfinite(row).nonzero().flatten().tolist() == [3, 8, 31, 32, VOCAB - 1]
    assert torch.equal(row[[3, 8]], logits[[3, 8]])


def test_bias_is_added_and_stop_tokens_wait_for_min_tokens() -> None:
    logits = random_row(6)
    stopping = Stopping(max_tokens=10, min_tokens=2, stop_token_ids=(11, 12))
    early = changed(logits, [1, 5], 1, stopping, logit_bias=((3, 2.5),))
    assert early[3] == logits[3] + 2.5
    assert torch.isinf(early[[11, 12]]).all()
    late = changed(logits, [1, 5, 6], 1, stopping, logit_bias=((3, 2.5),))
    assert torch.equal(late[[11, 12]], logits[[11, 12]])


def test_a_grammar_and_allowed_tokens_both_must_allow_a_token() -> None:
    mask = np.zeros(-(-VOCAB // 32), dtype=np.int32)
    mask[0] = 1 << 3 | 1 << 9
    start = started(2, [1], 1, Sampling(seed=0, allowed_token_ids=(3, 8)))
    other = started(5, [1], 1, Sampling(seed=0))
    batch = batch_of(other, start, grammar_masks={2: mask})
    rows = changed_logits(torch.stack([random_row(0), random_row(1)]), batch)
    assert torch.equal(rows[0], random_row(0))
    assert torch.isfinite(rows[1]).nonzero().flatten().tolist() == [3]


def test_a_row_that_ended_leaves_nothing_to_the_next() -> None:
    columns, rows = SamplingColumns(MAX_ROWS), empty_rows()
    busy = Sampling(
        seed=1, repetition_penalty=1.5, logit_bias=((3, 1.0),), allowed_token_ids=(3,), bad_words=((4,),), logprobs=2
    )
    columns.start(3, busy, Stopping(max_tokens=5, min_tokens=3, stop_token_ids=(1,)))
    columns.end(3)
    columns.start(3, Sampling(seed=1, temperature=0.0), NO_STOP)
    rows.start(started(3, [1, 2], 1, Sampling(seed=1)))
    assert columns.batch(np.array([3]), rows, VOCAB, CPU, {}) == SampleBatch()
    assert not columns.logprobs


KINDS = [
    Sampling(seed=1, temperature=0.0),
    Sampling(seed=2, temperature=0.7, top_p=0.9, logprobs=3),
    Sampling(seed=3, temperature=1.3, top_k=20, min_p=0.01, frequency_penalty=0.5, logprobs=0),
    Sampling(seed=4, repetition_penalty=1.2, logit_bias=((5, 3.0), (7, -2.0))),
    Sampling(seed=5, allowed_token_ids=tuple(range(0, VOCAB, 7))),
    Sampling(seed=6, typical_p=0.8, logprobs=1),
    Sampling(seed=7, bad_words=((4,),)),
]


def sample(sampler: Sampler, logits: torch.Tensor, rows: list[int]) -> tuple[list[SampledRow], list[RowFailure]]:
    copies = HostCopies(CPU)
    drawn = sampler.draw(logits, rows, {}, copies)
    copies.close()
    copies.wait()
    return sampler.take(drawn)


def sampled(ops: Ops, kinds: dict[int, Sampling]) -> dict[int, object]:
    """By row, what a step gives it whose logits depend on the row alone."""
    rows = empty_rows()
    sampler = Sampler(ops, rows)
    for row, sampling in kinds.items():
        rows.start(started(row, [4, 5, 5, row], 2, sampling))
        sampler.start(started(row, [4, 5, 5, row], 2, sampling))
    found, failures = sample(sampler, torch.stack([random_row(row) for row in kinds]), list(kinds))
    assert not failures
    assert [rows.tokens_of(row).tolist()[4:] for row in kinds] == [list(item.tokens) for item in found]
    return {item.row: item for item in found}


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_a_row_is_given_the_same_alone_and_among_others(kernels: Literal["auto", "reference"]) -> None:
    ops = select_ops(kernels, num_threads=2)
    together = sampled(ops, dict(enumerate(KINDS)))
    for row, kind in enumerate(KINDS):
        assert sampled(ops, {row: kind}) == {row: together[row]}


def test_every_provider_draws_the_same_tokens() -> None:
    ours, theirs = (sampled(ops, dict(enumerate(KINDS))) for ops in (select_ops("auto"), select_ops("reference")))
    assert [ours[row].tokens for row in ours] == [theirs[row].tokens for row in theirs]


def test_logprobs_are_of_the_model_before_anything_is_changed() -> None:
    kind = Sampling(seed=3, temperature=0.1, allowed_token_ids=(17,), logit_bias=((17, 5.0),), logprobs=2)
    (item,) = sampled(select_ops("auto"), {0: kind}).values()
    expected = torch.log_softmax(random_row(0).double(), dim=0)
    (entry,) = item.logprobs
    assert (entry.token, entry.rank) == (17, int((expected > expected[17]).sum()) + 1)
    assert entry.logprob == pytest.approx(float(expected[17]), abs=1e-6)
    assert entry.top_tokens == tuple(expected.topk(2).indices.tolist())
    assert entry.top_logprobs == pytest.approx(expected.topk(2).values.tolist(), abs=1e-6)


def test_a_row_without_a_token_fails_alone_and_says_whose_fault_it_is() -> None:
    rows = empty_rows()
    sampler = Sampler(select_ops("auto"), rows)
    for row, allowed in enumerate([None, (3,), None]):
        start = started(row, [1], 1, Sampling(seed=row, allowed_token_ids=allowed, bad_words=((3,),), logprobs=1))
        rows.start(start)
        sampler.start(start)
    logits = torch.stack([random_row(row) for row in range(3)])
    logits[2, 100] = float("nan")
    found, failures = sample(sampler, logits, [0, 1, 2])
    assert [item.row for item in found] == [0]
    assert [(failure.row, failure.is_requests_fault) for failure in failures] == [(1, True), (2, False)]
    assert rows.num_tokens[:3].tolist() == [2, 2, 2]  # all, since a step in flight may count on a token
