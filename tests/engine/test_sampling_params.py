"""Promises of sampling parameters: what is wrong is named with its value, before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from trivium import BeamSearchParams, SamplingParams
from trivium.types.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("temperature", float("nan"), "temperature must be a finite number at least 0, but is nan"),
        ("temperature", float("inf"), "temperature must be a finite number at least 0, but is inf"),
        ("temperature", -0.1, "temperature must be a finite number at least 0, but is -0.1"),
        ("temperature", "hot", "temperature must be a finite number at least 0, but is 'hot'"),
        ("temperature", 10**400, "temperature must be a finite number at least 0"),
        ("temperature", True, "temperature must be a finite number at least 0, but is True"),
        ("top_p", 0.0, "top_p must be a number above 0 and at most 1, but is 0.0"),
        ("top_p", 1.1, "top_p must be a number above 0 and at most 1, but is 1.1"),
        ("min_p", float("nan"), "min_p must be a number at least 0 and at most 1, but is nan"),
        ("typical_p", 0, "typical_p must be a number above 0 and at most 1, but is 0"),
        ("top_k", -2, "top_k must be an integer of at least -1, but is -2"),
        ("top_k", 1.5, "top_k must be an integer of at least -1, but is 1.5"),
        ("n", 0, "n must be an integer of at least 1 and at most 1024, but is 0"),
        ("presence_penalty", 2.1, "presence_penalty must be a number at least -2 and at most 2, but is 2.1"),
        ("frequency_penalty", -3, "frequency_penalty must be a number at least -2 and at most 2, but is -3"),
        ("repetition_penalty", 0.0, "repetition_penalty must be a finite number above 0, but is 0.0"),
        ("seed", 2**64, f"but is {2**64}"),
        ("seed", 1.0, "but is 1.0"),
        ("max_tokens", 0, "max_tokens must be an integer of at least 1, but is 0"),
        ("min_tokens", 17, "min_tokens must be at most max_tokens, which is 16, but is 17"),
        ("logprobs", -2, "logprobs must be an integer of at least -1, but is -2"),
        ("prompt_logprobs", -2, "prompt_logprobs must be an integer of at least -1, but is -2"),
        ("truncate_prompt_tokens", 0, "truncate_prompt_tokens must be -1 or at least 1, but is 0"),
        ("stop", [""], "stop must be made of strings that are not empty, but is ''"),
        ("stop", [3], "stop must be made of strings that are not empty, but is 3"),
        ("stop", 3, "stop must be a list of strings, but is 3"),
        ("bad_words", "word", "bad_words must be a list of strings, but is 'word'"),
        ("stop_token_ids", [-1], "stop_token_ids must be made of token ids"),
        ("allowed_token_ids", [], "allowed_token_ids must be a list with at least one token"),
        ("allowed_token_ids", ["a"], "allowed_token_ids must be made of token ids"),
        ("logit_bias", {"x": 1.0}, "logit_bias must be keyed by token ids, but is 'x'"),
        ("logit_bias", {3: float("inf")}, "logit_bias must be a number at least -100 and at most 100, but is inf"),
        ("logit_bias", [3], "logit_bias must be a map from token ids to numbers, but is [3]"),
    ],
)
def test_a_wrong_value_is_named_with_its_range(field: str, value: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(**{field: value})
    assert says in str(error.value)
    assert error.value.param == field
    assert len(str(error.value)) < 300


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidRequestError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_an_integer_too_long_to_print_is_still_a_sentence() -> None:
    with pytest.raises(InvalidRequestError, match="too long to print"):
        SamplingParams(n=10**5000)


def test_defaults_are_those_that_vllm_users_know() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.max_tokens) == (1, 1.0, 1.0, 0, 16)
    assert params.logprobs is None and params.seed is None


def test_values_at_the_edges_are_taken() -> None:
    SamplingParams(
        temperature=0, top_p=1, top_k=-1, min_p=1, seed=2**64 - 1, max_tokens=None, min_tokens=100, logprobs=-1
    )
    SamplingParams(logit_bias={"5": -100, 6: 100}, stop="x", presence_penalty=-2, frequency_penalty=2)  # type: ignore[dict-item]


@pytest.mark.parametrize("wrong", [{"beam_width": 0}, {"max_tokens": 0}, {"length_penalty": float("nan")}])
def test_beam_search_parameters_are_checked_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 3, **wrong})
