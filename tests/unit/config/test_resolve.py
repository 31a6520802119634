"""The configuration: what the user set is kept or refused, what the engine chose is said."""

import pytest
from msgspec.structs import replace

from trivium.config.options import EngineOptions
from trivium.config.resolve import resolve
from trivium.types.errors import ConfigError
from trivium.types.facts import Capabilities, ModelFacts
from trivium.types.kv import blocks_needed, group_layers

GIB = 1 << 30
CPU = Capabilities(
    platform="cpu",
    device="cpu",
    name="a processor",
    dtypes=("float32", "bfloat16"),
    memory_bytes=16 * GIB,
    available_bytes=8 * GIB,
    num_threads=4,
    features=(),
)
FACTS = ModelFacts(windows=(None,) * 4, num_kv_heads=2, head_dim=64, max_position=4096, checkpoint_dtype="float32")
KV_DTYPES = ("float32", "bfloat16")


GPU = Capabilities(
    platform="cuda",
    device="cuda:0",
    name="a GPU",
    dtypes=("bfloat16", "float32"),
    memory_bytes=80 * GIB,
    available_bytes=60 * GIB,
    num_threads=4,
    features=(),
    memory_is_dedicated=True,
)


def options(**values) -> EngineOptions:
    return EngineOptions(model="m", **values)


def test_defaults_take_the_models_length_and_say_how_much_memory_the_cache_takes() -> None:
    config = resolve(options(), FACTS, CPU, KV_DTYPES)
    assert config.max_model_len == 4096
    assert config.dtype == "float32"
    assert config.num_threads == 4
    said = {adjustment.option: adjustment for adjustment in config.adjustments}
    assert int(said["kv_cache_bytes"].value) == config.num_blocks * config.kv.bytes_per_block <= 2 * GIB


def test_a_dtype_the_platform_lacks_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"float16 does not run on a processor: it has float32, bfloat16"):
        resolve(options(dtype="float16"), FACTS, CPU, KV_DTYPES)


def test_a_length_beyond_the_models_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"5000 .* 4096"):
        resolve(options(max_model_len=5000), FACTS, CPU, KV_DTYPES)


def test_a_cache_too_small_for_the_models_length_shortens_it_aloud() -> None:
    block_bytes = resolve(options(), FACTS, CPU, KV_DTYPES).kv.bytes_per_block
    config = resolve(options(kv_cache_bytes=10 * block_bytes), FACTS, CPU, KV_DTYPES)
    assert config.num_blocks == 10
    assert config.max_model_len == 10 * 16
    assert any(adjustment.option == "max_model_len" for adjustment in config.adjustments)


def test_a_cache_too_small_for_the_length_the_user_set_is_refused() -> None:
    block_bytes = resolve(options(), FACTS, CPU, KV_DTYPES).kv.bytes_per_block
    with pytest.raises(ConfigError, match=r"max_model_len 1000 needs 63 KV blocks"):
        resolve(options(kv_cache_bytes=10 * block_bytes, max_model_len=1000), FACTS, CPU, KV_DTYPES)


def test_a_budget_that_cannot_give_every_row_its_token_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(8\) is less than max_num_seqs \(16\)"):
        resolve(options(max_num_batched_tokens=8, max_num_seqs=16), FACTS, CPU, KV_DTYPES)


def test_layers_are_grouped_by_window_into_groups_of_one_size() -> None:
    gemma = tuple(None if (layer + 1) % 6 == 0 else 512 for layer in range(18))
    groups = group_layers(gemma)
    assert [group.window for group in groups] == [512] * 5 + [None]
    assert {len(group.layers) for group in groups} == {3}
    assert sorted(layer for group in groups for layer in group.layers) == list(range(18))


def test_a_sliding_group_needs_blocks_for_its_window_and_one_chunk_only() -> None:
    groups = group_layers((64, None))
    assert blocks_needed(groups, 16, num_tokens=10_000, max_chunk=32) == 625 + (-(-(63 + 32) // 16) + 1)
    assert blocks_needed(groups, 16, num_tokens=17, max_chunk=32) == 2 + 2


def test_sliding_layers_let_a_longer_context_into_the_same_memory() -> None:
    cache = resolve(options(), FACTS, CPU, KV_DTYPES).kv.bytes_per_block * 64
    full = resolve(options(kv_cache_bytes=cache, max_chunk_tokens=32), FACTS, CPU, KV_DTYPES)
    mixed = replace(FACTS, windows=(64, 64, None, None))
    sliding = resolve(options(kv_cache_bytes=cache, max_chunk_tokens=32), mixed, CPU, KV_DTYPES)
    assert sliding.max_model_len > full.max_model_len


def test_a_devices_own_memory_is_filled_up_to_the_share_less_what_a_step_needs() -> None:
    facts = replace(FACTS, max_position=1 << 22)
    config = resolve(options(), facts, GPU, KV_DTYPES, lambda tokens, longest: tokens * (1 << 17) + longest * 256)
    step = 8192 * (1 << 17) + (1 << 22) * 256
    room = 60 * GIB - int(80 * GIB * (1 - 0.9)) - step - GIB
    assert config.dtype == "bfloat16"
    assert config.num_blocks == room // config.kv.bytes_per_block
    (said,) = [adjustment for adjustment in config.adjustments if adjustment.option == "kv_cache_bytes"]
    assert "61440 of the 81920 MiB of a GPU are free" in said.reason
    assert "gpu_memory_utilization 0.9" in said.reason


def test_weights_that_leave_no_room_for_a_cache_are_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"no memory is left for a KV cache: 9216 of the 81920 MiB of a GPU are free"):
        resolve(options(), FACTS, replace(GPU, available_bytes=9 * GIB), KV_DTYPES)


def test_a_device_of_its_own_computes_more_tokens_at_once() -> None:
    assert resolve(options(), FACTS, CPU, KV_DTYPES).max_batched_tokens == 2048
    small, large = (replace(FACTS, weight_bytes=count) for count in (1_200_000_000, 16_000_000_000))
    assert resolve(options(), small, CPU, KV_DTYPES).max_batched_tokens == 2048
    assert resolve(options(), FACTS, GPU, KV_DTYPES).max_batched_tokens == 8192
    assert resolve(options(), large, GPU, KV_DTYPES).max_batched_tokens == 8192
    assert resolve(options(), small, GPU, KV_DTYPES).max_batched_tokens == 16384
    assert resolve(options(max_num_batched_tokens=300), FACTS, GPU, KV_DTYPES).max_batched_tokens == 300


def test_steps_are_launched_ahead_where_the_device_runs_by_itself_or_the_user_says_so() -> None:
    device = replace(CPU, runs_by_itself=True)
    assert [resolve(options(), FACTS, platform, KV_DTYPES).steps_ahead for platform in (CPU, device)] == [0, 1]
    assert resolve(options(overlap=True), FACTS, CPU, KV_DTYPES).steps_ahead == 1
    assert resolve(options(overlap=False), FACTS, device, KV_DTYPES).steps_ahead == 0


def test_keys_and_values_are_kept_as_the_kernels_read_them_best_and_this_is_said() -> None:
    config = resolve(options(), FACTS, CPU, ("bfloat16", "float32"))
    assert (config.dtype, config.kv.dtype) == ("float32", "bfloat16")
    assert any(adjustment.option == "kv_cache_dtype" for adjustment in config.adjustments)
    asked = resolve(options(kv_cache_dtype="float32"), FACTS, CPU, ("bfloat16", "float32"))
    assert asked.kv.dtype == "float32"
    assert not any(adjustment.option == "kv_cache_dtype" for adjustment in asked.adjustments)


def test_a_cache_that_the_kernels_cannot_keep_is_refused_with_the_sizes() -> None:
    with pytest.raises(
        ConfigError, match=r"no bfloat16 keys and values in blocks of 5 tokens and heads of 64: there is f"
    ):
        resolve(options(kv_cache_dtype="bfloat16", block_size=5), FACTS, CPU, ("float32",))


def test_a_small_models_prefix_cache_keeps_no_more_than_its_weights_take_and_says_so() -> None:
    mib = 1 << 20
    for weight_bytes, easy_bytes in [(10 * mib, 128 * mib), (500 * mib, 500 * mib)]:
        config = resolve(options(), replace(FACTS, weight_bytes=weight_bytes), CPU, KV_DTYPES)
        assert config.easy_blocks == easy_bytes // config.kv.bytes_per_block < config.num_blocks
        said = {adjustment.option: adjustment for adjustment in config.adjustments}
        assert f"{easy_bytes >> 20} MiB" in said["prefix cache"].reason


def test_memory_that_the_user_gave_or_that_is_the_engines_own_is_filled() -> None:
    assert resolve(options(kv_cache_bytes=GIB), FACTS, CPU, KV_DTYPES).easy_blocks is None
    assert resolve(options(), FACTS, GPU, KV_DTYPES).easy_blocks is None
    assert resolve(options(), replace(FACTS, weight_bytes=GIB * 9), CPU, KV_DTYPES).easy_blocks is None
