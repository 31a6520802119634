"""Promises of the keyword arguments of LLM and AsyncLLM."""

from __future__ import annotations

import warnings

import pytest

from trivium.llm.keywords import read_options
from trivium.types.errors import ConfigError


def test_engine_options_are_taken() -> None:
    options = read_options("m", {"dtype": "float32", "max_model_len": 128, "enable_prefix_caching": False})
    assert (options.model, options.dtype, options.max_model_len, options.enable_prefix_caching) == (
        "m",
        "float32",
        128,
        False,
    )


def test_options_of_vllm_without_meaning_here_are_named_in_one_warning() -> None:
    with pytest.warns(UserWarning, match="enforce_eager, tensor_parallel_size") as found:
        read_options("m", {"tensor_parallel_size": 1, "enforce_eager": True, "swap_space": None})
    assert len(found) == 1


def test_options_that_would_change_answers_are_refused_unless_they_are_off() -> None:
    with pytest.raises(TypeError, match="'enable_lora'"):
        read_options("m", {"enable_lora": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_options("m", {"quantization": None, "tokenizer": None})


def test_a_slip_is_answered_with_a_suggestion() -> None:
    with pytest.raises(TypeError, match="no option 'max_model_length'; did you mean 'max_model_len'"):
        read_options("m", {"max_model_length": 5})


@pytest.mark.parametrize(
    "wrong", [{"max_model_len": 0}, {"dtype": "int8"}, {"block_size": "many"}, {"num_threads": -1}]
)
def test_a_wrong_value_is_a_sentence_with_name_and_value(wrong: dict[str, object]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigError) as error:
        read_options("m", wrong)
    assert name in str(error.value)
    assert repr(value) in str(error.value)
