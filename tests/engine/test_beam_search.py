"""Beam search from one-token requests finds what `transformers` finds, with the same scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_model import save_llama
from transformers import LlamaForCausalLM

from trivium import LLM, BeamSearchParams
from trivium.types.errors import NeverFitsError

EOS = 3
PROMPTS = [[5], [7, 9, 11, 30, 2], list(range(10, 40))]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, Path]:
    """Few tokens, and none far likelier than the others, so that beams often come to the end token."""
    directory = tmp_path_factory.mktemp("beams")
    return save_llama(directory, vocab_size=48, eos_token_id=EOS, seed=1, initializer_range=0.08), directory


@pytest.fixture(scope="module")
def beam_llm(oracle: tuple[LlamaForCausalLM, Path]) -> Iterator[LLM]:
    _, directory = oracle
    options = {
        "dtype": "float32",
        "kv_cache_dtype": "float32",
        "num_threads": 1,
        "kv_cache_bytes": 16 << 20,
        "skip_tokenizer_init": True,
    }
    with LLM(str(directory), **options) as llm:
        yield llm


def oracle_beams(
    model: LlamaForCausalLM, prompt: list[int], params: BeamSearchParams
) -> tuple[list[list[int]], list[float]]:
    """Beams without padding and their scores, the best first."""
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            num_beams=params.beam_width,
            num_return_sequences=params.beam_width,
            max_new_tokens=params.max_tokens,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            eos_token_id=None if params.ignore_eos else EOS,
            pad_token_id=EOS,
            return_dict_in_generate=True,
            output_scores=True,
        )
    beams = []
    for row in found.sequences.tolist():
        new = row[len(prompt) :]
        if not params.ignore_eos and EOS in new:
            new = new[: new.index(EOS) + 1]
        beams.append(prompt + new)
    return beams, found.sequences_scores.tolist()


@pytest.mark.parametrize(
    "params",
    [
        BeamSearchParams(4, 24, include_stop_str_in_output=True),
        BeamSearchParams(4, 24, include_stop_str_in_output=True, early_stopping=True),
        BeamSearchParams(3, 20, include_stop_str_in_output=True, length_penalty=0.0),
        BeamSearchParams(5, 16, include_stop_str_in_output=True, length_penalty=2.0),
        BeamSearchParams(4, 12, ignore_eos=True),
    ],
    ids=["default", "early", "sum", "long", "no end"],
)
def test_beams_and_scores_are_those_of_transformers(
    beam_llm: LLM, oracle: tuple[LlamaForCausalLM, Path], params: BeamSearchParams
) -> None:
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    for prompt, output in zip(PROMPTS, beam_llm.beam_search(prompts, params), strict=True):
        beams, scores = oracle_beams(oracle[0], prompt, params)
        assert [sequence.tokens for sequence in output.sequences] == beams
        for sequence, score in zip(output.sequences, scores, strict=True):
            generated = len(sequence.tokens) - len(prompt)
            assert sequence.cum_logprob / generated**params.length_penalty == pytest.approx(score, abs=1e-4)
            assert sequence.finish_reason == (
                "stop" if sequence.tokens[-1] == EOS and not params.ignore_eos else "length"
            )


def test_the_searches_above_came_to_the_end_token(beam_llm: LLM) -> None:
    outputs = beam_llm.beam_search([{"prompt_token_ids": prompt} for prompt in PROMPTS], BeamSearchParams(4, 24))
    ended = [
        (prompt, sequence)
        for prompt, output in zip(PROMPTS, outputs, strict=True)
        for sequence in output.sequences
        if sequence.finish_reason == "stop"
    ]
    assert 2 <= len(ended) <= 10, "choose another seed: some beams should end, and some should not"
    for prompt, sequence in ended:
        assert sequence.stop_reason == EOS
        assert EOS not in sequence.tokens[len(prompt) :]  # left out unless it is asked for
        assert sequence.text is None  # there is no tokenizer


def test_one_beam_is_greedy(beam_llm: LLM, oracle: tuple[LlamaForCausalLM, Path]) -> None:
    (output,) = beam_llm.beam_search([PROMPTS[2]], BeamSearchParams(1, 12, ignore_eos=True))
    with torch.inference_mode():
        expected = oracle[0].generate(torch.tensor([PROMPTS[2]]), do_sample=False, max_new_tokens=12, min_new_tokens=12)
    assert output.sequences[0].tokens == expected[0].tolist()


def test_the_prompt_is_computed_once(beam_llm: LLM) -> None:
    prompt = [9, 8, 7, 6] * 16
    before = beam_llm.stats().scheduler
    beam_llm.beam_search([prompt], BeamSearchParams(4, 8, ignore_eos=True))
    after = beam_llm.stats().scheduler
    computed = (after.prompt_tokens - before.prompt_tokens) - (after.cached_tokens - before.cached_tokens)
    assert computed < 2 * len(prompt) + 4 * 8 * 16  # each later request computes no more than a block


def test_a_search_that_cannot_fit_is_refused(beam_llm: LLM) -> None:
    with pytest.raises(NeverFitsError):
        beam_llm.beam_search([[5] * 250], BeamSearchParams(2, 7))
