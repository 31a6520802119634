"""Decisions of a platform: defaults give way and say so, a user's own value only where that was accepted."""

import pytest

from trivium.config.options import EngineOptions
from trivium.config.settlement import settle_with_platform, wish_of
from trivium.types.decisions import Adjust, Keep, Refuse
from trivium.types.errors import ConfigError

BLOCKS = Adjust("block_size", 16, 128, "the chip reads 128 tokens at once", "warn")


def test_what_is_kept_stays_and_is_not_talked_about() -> None:
    options = EngineOptions(model="m", block_size=32)
    assert settle_with_platform(options, [Keep("block_size")]) == (options, [])


def test_a_default_gives_way_and_says_so() -> None:
    options, said = settle_with_platform(EngineOptions(model="m"), [BLOCKS])
    assert options.block_size == 128
    assert (said[0].option, said[0].value) == ("block_size", "128")
    assert "reads 128 tokens" in said[0].reason and "not 16" in said[0].reason


def test_a_users_own_value_is_refused_with_what_would_do() -> None:
    with pytest.raises(
        ConfigError, match=r"block_size 32 cannot be kept, since the chip .*: give 128, or --accept-adj"
    ):
        settle_with_platform(EngineOptions(model="m", block_size=32), [BLOCKS])


def test_a_users_own_value_is_adjusted_where_that_was_accepted() -> None:
    options, said = settle_with_platform(EngineOptions(model="m", block_size=32, accept_adjustments=True), [BLOCKS])
    assert options.block_size == 128 and "not 32" in said[0].reason


def test_a_refusal_names_its_remedy_whatever_was_accepted() -> None:
    refusal = Refuse("dtype", "float16 overflows here", "--dtype bfloat16")
    with pytest.raises(ConfigError, match="float16 overflows here: --dtype bfloat16"):
        settle_with_platform(EngineOptions(model="m", accept_adjustments=True), [refusal])


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (Adjust("seed", None, 7, "it likes 7"), "'seed', in which it has no say"),
        (Adjust("block_size", 16, 0, "none"), "wants block_size to be 0"),
    ],
)
def test_a_platform_cannot_change_what_is_not_its_own_or_to_nonsense(decision: Adjust, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settle_with_platform(EngineOptions(model="m"), [decision])


def test_a_wish_holds_what_the_user_gave() -> None:
    wish = wish_of(EngineOptions(model="m", dtype="bfloat16", max_num_seqs=3))
    assert (wish.dtype, wish.max_num_seqs, wish.block_size) == ("bfloat16", 3, 16)
