"""Drawing agrees with the logits warpers of `transformers`, in their order, on random rows."""

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

from trivium.execute.draw import candidates, draw
from trivium.execute.logits import adjust_logits
from trivium.execute.random import uniform
from trivium.types.request import Sampling, Stopping

VOCAB = 3000
NO_STOP = Stopping(max_tokens=10)


def random_row(seed: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


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
    sampling = Sampling(seed=0, **filters)
    for seed in range(3):
        logits = random_row(seed, spread)
        ids, weights = candidates(logits, sampling)
        ours = torch.zeros(VOCAB, dtype=torch.float64)
        ours[slice(None) if ids is None else ids] = weights / weights.sum()
        torch.testing.assert_close(ours, warped_by_transformers(logits, sampling), rtol=1e-9, atol=1e-12)


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, float("-inf"), -1.0])
    sampling = Sampling(seed=7)
    counts = np.zeros(5)
    for position in range(20_000):
        counts[draw(logits, sampling, uniform(sampling.seed, position))] += 1
    expected = torch.softmax(logits, dim=0).numpy()
    assert counts[3] == 0
    # Five standard deviations of a binomial count: fails by chance once in a million.
    assert np.all(np.abs(counts / 20_000 - expected) <= 5 * np.sqrt(expected * (1 - expected) / 20_000))


def test_a_seed_and_a_position_give_one_number_and_neighbours_differ() -> None:
    numbers = {uniform(seed, position) for seed in range(100) for position in range(100)}
    assert len(numbers) == 10_000
    assert all(0 <= number < 1 for number in numbers)
    assert uniform(3, 4) == uniform(3, 4)


def test_temperature_zero_takes_the_likeliest() -> None:
    logits = random_row(5)
    assert draw(logits, Sampling(seed=0, temperature=0.0), 0.999) == int(logits.argmax())


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_every_number_draws_a_token_with_weight(number: float) -> None:
    logits = torch.full((VOCAB,), float("-inf"))
    logits[[5, 17]] = torch.tensor([1.0, 2.0])
    for filters in ({}, {"top_p": 0.99}, {"top_k": 10}, {"min_p": 0.01}, {"typical_p": 0.9}):
        assert draw(logits, Sampling(seed=0, **filters), number) in (5, 17)


def adjusted(
    logits: torch.Tensor, tokens: list[int], num_prompt: int, stopping: Stopping = NO_STOP, **params
) -> torch.Tensor:
    row = logits.clone()
    adjust_logits(row, Sampling(seed=0, **params), stopping, np.array(tokens, dtype=np.int64), num_prompt)
    return row


def test_repetition_penalty_is_that_of_transformers_over_prompt_and_answer() -> None:
    logits, tokens = random_row(1), [4, 9, 9, 77]
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([tokens]), logits.unsqueeze(0).clone())[0]
    assert torch.equal(adjusted(logits, tokens, 2, repetition_penalty=1.3), expected)


def test_presence_and_frequency_penalties_count_the_answer_only() -> None:
    logits = random_row(2)
    row = adjusted(logits, [4, 4, 9, 9, 77], 2, presence_penalty=0.5, frequency_penalty=0.25)
    expected = logits.clone()
    expected[9] -= 0.5 + 2 * 0.25
    expected[77] -= 0.5 + 0.25
    torch.testing.assert_close(row, expected)


def test_bad_words_are_banned_only_where_they_would_be_completed() -> None:
    logits = random_row(3)
    words = [[7], [9, 77, 5], [9, 78, 6]]
    for tokens in ([1, 2], [1, 9, 77], [77]):
        expected = NoBadWordsLogitsProcessor(words)(torch.tensor([tokens]), logits.unsqueeze(0).clone())[0]
        row = adjusted(logits, tokens, 1, bad_words=tuple(tuple(word) for word in words))
        assert torch.equal(row, expected)


def test_allowed_tokens_alone_remain_and_keep_their_logits() -> None:
    logits = random_row(4)
    row = adjusted(logits, [1], 1, allowed_token_ids=(3, 8))
    assert torch.isfinite(row).nonzero().flatten().tolist() == [3, 8]
    assert torch.equal(row[[3, 8]], logits[[3, 8]])


def test_bias_is_added_and_stop_tokens_wait_for_min_tokens() -> None:
    logits = random_row(6)
    stopping = Stopping(max_tokens=10, min_tokens=2, stop_token_ids=(11, 12))
    early = adjusted(logits, [1, 5], 1, stopping, logit_bias=((3, 2.5),))
    assert early[3] == logits[3] + 2.5
    assert torch.isinf(early[[11, 12]]).all()
    late = adjusted(logits, [1, 5, 6], 1, stopping, logit_bias=((3, 2.5),))
    assert torch.equal(late[[11, 12]], logits[[11, 12]])
