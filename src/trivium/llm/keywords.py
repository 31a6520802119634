"""Keyword arguments of LLM and AsyncLLM to engine options: ours, those of vLLM that mean nothing here, and slips."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import Any

import msgspec

from trivium.config.options import EngineOptions
from trivium.types.errors import ConfigError

# They tune how vLLM runs or where it looks, and change no answer: code that has them moves over with one warning.
WITHOUT_MEANING = frozenset(
    [
        "allowed_local_media_path",
        "block_manager_v2",
        "compilation_config",
        "cpu_offload_gb",
        "data_parallel_size",
        "disable_cascade_attn",
        "disable_custom_all_reduce",
        "disable_log_requests",
        "disable_log_stats",
        "distributed_executor_backend",
        "download_dir",
        "enable_chunked_prefill",
        "enforce_eager",
        "generation_config",
        "hf_token",
        "max_logprobs",
        "max_num_partial_prefills",
        "max_seq_len_to_capture",
        "num_gpu_blocks_override",
        "num_scheduler_steps",
        "pipeline_parallel_size",
        "preemption_mode",
        "revision",
        "scheduling_policy",
        "swap_space",
        "tensor_parallel_size",
        "tokenizer_mode",
        "tokenizer_revision",
        "trust_remote_code",
        "use_v2_block_manager",
        "worker_cls",
    ]
)

# They would change answers, and there is nothing here that does it; None, their default, is no matter.
NOT_HERE = frozenset(
    [
        "enable_lora",
        "hf_config_path",
        "hf_overrides",
        "limit_mm_per_prompt",
        "lora_modules",
        "mm_processor_kwargs",
        "override_neuron_config",
        "override_pooler_config",
        "quantization",
        "rope_scaling",
        "rope_theta",
        "runner",
        "speculative_config",
        "speculative_model",
        "task",
        "tokenizer",
    ]
)


def read_options(model: str, keywords: Mapping[str, Any]) -> EngineOptions:
    names = set(EngineOptions.__struct_fields__)
    ours = {name: value for name, value in keywords.items() if name in names}
    foreign = {name: value for name, value in keywords.items() if name not in names}
    for name, value in foreign.items():
        if name not in WITHOUT_MEANING and (name not in NOT_HERE or value is not None):
            raise TypeError(_unknown(name, names))
    if ignored := sorted(name for name, value in foreign.items() if name in WITHOUT_MEANING and value is not None):
        warnings.warn(f"these options have no meaning here and are ignored: {', '.join(ignored)}", stacklevel=3)
    try:
        return msgspec.convert({**ours, "model": model}, EngineOptions)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        raise ConfigError(f"{name}: {message[:1].lower()}{message[1:]}, but is {ours.get(name)!r}") from None


def _unknown(name: str, names: set[str]) -> str:
    if name in NOT_HERE:
        return f"there is no option {name!r} here yet"
    close = difflib.get_close_matches(name, names, n=1)
    return f"there is no option {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
