"""What the example promises; a plugin's own tests begin here. Run by Trivium's suite too."""

import pytest
from trivium_platform_example import BLOCK_TOKENS, ExamplePlatform

from trivium.platform.conformance import conformance
from trivium.types.decisions import Adjust, Refuse, Wish
from trivium.types.facts import ModelFacts

MODEL = ModelFacts(windows=(None,), num_kv_heads=1, head_dim=8, max_position=64, checkpoint_dtype="float32")


def test_it_keeps_the_contract() -> None:
    assert [check for check in conformance(ExamplePlatform()) if check.state != "ok"] == []


def test_the_chips_own_block_size_is_asked_for() -> None:
    (adjusted,) = ExamplePlatform().negotiate(Wish(), MODEL)
    assert isinstance(adjusted, Adjust) and adjusted.new == BLOCK_TOKENS
    assert ExamplePlatform().negotiate(Wish(block_size=BLOCK_TOKENS), MODEL) == ()


@pytest.mark.parametrize("dtype", ["float16"])
def test_what_the_chip_does_not_compute_is_refused_with_a_remedy(dtype: str) -> None:
    refusals = [one for one in ExamplePlatform().negotiate(Wish(dtype=dtype), MODEL) if isinstance(one, Refuse)]
    assert refusals and refusals[0].remedy
