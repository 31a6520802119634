"""Prompts, lengths and traces become requests of the wanted shape."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from trivium.bench.errors import BenchError
from trivium.bench.lengths import draw_lengths
from trivium.bench.prompts import WORDS, PromptCost
from trivium.bench.settings import PrefixSettings, ReplaySettings, WorkloadSettings
from trivium.bench.trace import read_trace
from trivium.bench.workload import replay, sharing, synthetic

TRACES = Path(__file__).parent / "traces"
PLAIN = PromptCost()


def words(text: str) -> list[str]:
    return text.split()


def shared_words(one: str, other: str) -> int:
    pairs = zip(words(one), words(other), strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(words(one)), len(words(other))))


def test_there_is_one_word_for_each_byte() -> None:
    assert len({*WORDS}) == len(WORDS) == 256


def test_the_cost_of_words_is_fitted_and_turned_round() -> None:
    cost = PromptCost.fit((10, 45), (110, 245))
    assert (cost.per_word, cost.fixed) == (2.0, 25.0)
    assert cost.words_for(225) == 100
    assert cost.words_for(1) == 1  # a prompt is never empty


def test_prompts_are_as_long_as_asked_and_share_no_beginning() -> None:
    plan = synthetic(WorkloadSettings(requests=20, prompt_tokens=100, output_tokens=7), "w", PLAIN)
    assert {len(words(request.prompt)) for request in plan} == {100}
    assert {request.output_tokens for request in plan} == {7}
    assert max(shared_words(one.prompt, other.prompt) for one in plan for other in plan if one is not other) < 4


def test_equal_seeds_give_equal_requests() -> None:
    settings = WorkloadSettings(requests=5, lengths="sharegpt", seed=3)
    assert synthetic(settings, "w", PLAIN) == synthetic(settings, "w", PLAIN)
    other = synthetic(settings, "x", PLAIN)
    assert [(r.prompt_tokens, r.output_tokens) for r in other] == [
        (r.prompt_tokens, r.output_tokens) for r in synthetic(settings, "w", PLAIN)
    ]
    assert other != synthetic(settings, "w", PLAIN)


def test_conversations_have_the_means_of_sharegpt() -> None:
    lengths = draw_lengths("sharegpt", 0, 0, 20_000, random.Random(0))
    assert statistics.fmean(one.prompt for one in lengths) == pytest.approx(161, rel=0.05)
    assert statistics.fmean(one.output for one in lengths) == pytest.approx(338, rel=0.05)


def test_uniform_lengths_stay_within_half_of_the_mean() -> None:
    lengths = draw_lengths("uniform", 100, 10, 2000, random.Random(0))
    assert (min(one.prompt for one in lengths), max(one.prompt for one in lengths)) == (50, 150)
    assert (min(one.output for one in lengths), max(one.output for one in lengths)) == (5, 15)


def test_prompts_share_their_prefix_with_their_group_and_nothing_else() -> None:
    settings, prefix = WorkloadSettings(requests=6, prompt_tokens=20), PrefixSettings(prefix_tokens=50, prefixes=2)
    plan = [request.prompt for request in sharing(settings, prefix, "w", PLAIN, shared=True)]
    assert {len(words(text)) for text in plan} == {70}
    assert 50 <= shared_words(plan[0], plan[2]) < 60
    assert shared_words(plan[0], plan[1]) < 4
    alone = [request.prompt for request in sharing(settings, prefix, "w", PLAIN, shared=False)]
    assert {len(words(text)) for text in alone} == {70}
    assert shared_words(alone[0], alone[2]) < 4


def test_mooncake_blocks_with_one_hash_are_one_text() -> None:
    trace = read_trace(TRACES / "mooncake_conversation.jsonl")
    assert len(trace) == 12 and trace[0].prompt_tokens == 6758 and trace[0].output_tokens == 500
    made = replay(trace, ReplaySettings(), None, PLAIN)
    first, second = made.plan[:2]
    assert len(words(first.prompt)) == 6758
    assert trace[0].blocks[:1] == trace[1].blocks[:1] and trace[0].blocks[1] != trace[1].blocks[1]
    assert 512 <= shared_words(first.prompt, second.prompt) < 516
    assert len(made.notes) == 1


def test_azure_traces_keep_their_times_and_lengths() -> None:
    trace = read_trace(TRACES / "azure_conv.csv")
    assert [(one.prompt_tokens, one.output_tokens) for one in trace[:2]] == [(374, 44), (396, 109)]
    assert trace[0].at == 0 and trace[1].at == pytest.approx(4.314579, abs=1e-5)


def test_a_replay_is_scaled_in_time_and_says_what_it_shortened() -> None:
    trace = read_trace(TRACES / "azure_conv.csv")
    made = replay(trace, ReplaySettings(speed=10, max_requests=5, max_output_tokens=50), 256, PLAIN)
    assert [request.at_ns for request in made.plan] == [round(one.at / 10 * 1e9) for one in trace[:5]]
    assert all(request.prompt_tokens + request.output_tokens <= 256 for request in made.plan)
    assert max(request.output_tokens for request in made.plan) == 50
    assert "10 × its speed: 5 of its 12" in made.notes[0]
    assert "shortened" in made.notes[1]


def test_a_replay_may_begin_later() -> None:
    trace = read_trace(TRACES / "azure_conv.csv")
    made = replay(trace, ReplaySettings(start=trace[3].at), None, PLAIN)
    assert len(made.plan) == 9 and made.plan[0].at_ns == 0


@pytest.mark.parametrize(
    "text",
    ["", "a,b\n1,2\n", '{"timestamp": 0}\n', "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n",
     "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,many,2\n"],
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_its_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(BenchError, match="trace"):
        read_trace(path)


def test_a_trace_that_is_not_there_is_refused() -> None:
    with pytest.raises(BenchError, match="nowhere"):
        read_trace(Path("nowhere"))
