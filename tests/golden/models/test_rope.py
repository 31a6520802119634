"""Rotary angles against those that `transformers` computes, for every scaling, and the tokens that follow from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import SIZES, assert_equal, continued, loaded, prompts, random_weights, saved
from paged_run import generate
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from trivium.models.from_huggingface import HFConfig, hf_rope
from trivium.models.rope import Rope, attention_factor, fixed_frequencies

MAX_POSITION = 40  # so short that prompts and continuations cross it
ORIGINAL = 16
HALF = 6  # frequencies, of heads of 12
SHORT, LONG = [1.0 + 0.1 * i for i in range(HALF)], [1.5 + 0.7 * i for i in range(HALF)]

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn implicit original": {"rope_type": "yarn", "factor": 4.0},
    "yarn attention factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "attention_factor": 1.3,
    },
    "yarn mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": ORIGINAL,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn not truncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "truncate": False,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": ORIGINAL,
    },
    "longrope factor": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": ORIGINAL,
        "factor": 6.0,
    },
    "longrope attention factor": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": ORIGINAL,
        "attention_factor": 1.2,
    },
}


def config_of(name: str, **options: Any) -> LlamaConfig:
    parameters = {"rope_theta": 5000.0, **SCALINGS[name]}
    return LlamaConfig(**(SIZES | {"max_position_embeddings": MAX_POSITION, "rope_parameters": parameters} | options))


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("length", [1, ORIGINAL, ORIGINAL + 1, MAX_POSITION, MAX_POSITION + 1, 200])
def test_angles_of_a_sequence_equal_those_of_transformers(name: str, length: int) -> None:
    config = config_of(name)
    positions = torch.arange(length)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    rope = Rope(hf_rope(HFConfig(config.to_dict())), max_position=200, device="cpu")
    ours = rope.rotation(positions, torch.full((length,), length))
    torch.testing.assert_close(ours.cos, cos[0, :, :HALF], atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.sin, sin[0, :, :HALF], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_tokens_of_short_and_long_sequences_in_one_step_keep_their_own_frequencies(name: str) -> None:
    rope = Rope(hf_rope(HFConfig(config_of(name).to_dict())), max_position=200, device="cpu")
    positions, lengths = torch.tensor([3, 3, 3, 3]), torch.tensor([4, 17, 41, 150])
    together = rope.rotation(positions, lengths)
    for i in range(4):
        alone = rope.rotation(positions[i : i + 1], lengths[i : i + 1])
        assert torch.equal(together.cos[i : i + 1], alone.cos)
    assert len(together.cos.unique(dim=0)) > 1


@pytest.mark.parametrize("name", ["linear", "yarn", "llama3"])
def test_a_part_of_each_head_may_turn(name: str) -> None:
    config = config_of(name)
    config.rope_parameters["partial_rotary_factor"] = 0.5
    theirs, factor = ROPE_INIT_FUNCTIONS[SCALINGS[name]["rope_type"]](config)
    spec = hf_rope(HFConfig(config.to_dict()))
    assert spec.dim == 6
    torch.testing.assert_close(fixed_frequencies(spec, "cpu"), theirs, atol=0, rtol=1e-6)
    assert attention_factor(spec) == pytest.approx(factor)


@pytest.mark.parametrize("name", SCALINGS)
def test_tokens_equal_those_of_transformers_across_the_original_context(name: str, tmp_path: Path) -> None:
    model = random_weights(LlamaForCausalLM(config_of(name)))
    decoder = loaded(saved(model, tmp_path), max_position=128)
    asked = prompts((5, 30, 50))
    # Chunks must not matter: lengths tell that all prompt tokens belong to one sequence.
    for prompt, ours in zip(asked, generate(decoder, asked, 64, block_size=16, chunks=(7, 64)), strict=True):
        # A fresh model each time: the dynamic scaling of transformers remembers the longest sequence it saw.
        fresh = LlamaForCausalLM.from_pretrained(tmp_path)
        assert_equal(ours, continued(fresh, prompt, 64))


def test_the_older_form_of_the_configuration_means_the_same() -> None:
    for name, parameters in SCALINGS.items():
        new = {**config_of(name).to_dict(), "rope_parameters": {"rope_theta": 5000.0, **parameters}}
        old = {key: value for key, value in new.items() if key != "rope_parameters"}
        kind = {"type": parameters["rope_type"], **{k: v for k, v in parameters.items() if k != "rope_type"}}
        old |= {"rope_theta": 5000.0, "rope_scaling": kind}
        assert hf_rope(HFConfig(old)) == hf_rope(HFConfig(new))
