"""The configuration of an encoder: a text must fit in a step, and is as long as it was in training unless asked."""

from __future__ import annotations

import pytest

from trivium.config.options import EngineOptions
from trivium.config.resolve_encoder import resolve_encoder
from trivium.types.errors import ConfigError
from trivium.types.facts import Capabilities, EncoderFacts

CPU = Capabilities(
    platform="cpu",
    device="cpu",
    name="a processor",
    dtypes=("float32",),
    memory_bytes=1 << 34,
    available_bytes=1 << 33,
    num_threads=4,
    features=(),
)
FACTS = EncoderFacts(max_position=512, trained_length=256, checkpoint_dtype="float32")


def test_texts_are_as_long_as_in_training_unless_asked_for_longer() -> None:
    config = resolve_encoder(EngineOptions(model="m"), FACTS, CPU)
    assert config.max_model_len == 256
    (said,) = config.adjustments
    assert said.option == "max_model_len" and "512" in said.reason
    asked = resolve_encoder(EngineOptions(model="m", max_model_len=512), FACTS, CPU)
    assert (asked.max_model_len, asked.adjustments) == (512, ())


def test_a_step_always_has_room_for_the_longest_text() -> None:
    long = EncoderFacts(max_position=8192, trained_length=8192, checkpoint_dtype="float32")
    assert resolve_encoder(EngineOptions(model="m"), long, CPU).max_batched_tokens >= 8192
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(128\) is less than max_model_len \(256\)"):
        resolve_encoder(EngineOptions(model="m", max_num_batched_tokens=128), FACTS, CPU)


def test_more_positions_than_the_model_has_are_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match="513 is more than the 512 positions"):
        resolve_encoder(EngineOptions(model="m", max_model_len=513), FACTS, CPU)
