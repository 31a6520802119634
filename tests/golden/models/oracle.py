"""Tiny models made, saved and run by `transformers`, whose answers ours must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from paged_run import Generated
from transformers import PreTrainedModel

from trivium.formats.source import open_source
from trivium.kernels.select import Kernels, select_ops
from trivium.models.decoder import Decoder
from trivium.models.load import load_model
from trivium.models.locate import locate_weights
from trivium.models.weight_form import FormWish, choose_form

# Small, with sizes that all differ, so that a swapped pair shows.
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def random_weights(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Every parameter is drawn, norms and biases too: as they are made, zeros and ones would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(parameter + drawn if "norm" in name else drawn)
    return model.eval()


def saved(model: PreTrainedModel, path: Path, **options: Any) -> Path:
    model.save_pretrained(path, **options)
    return path


def loaded(
    path: Path,
    dtype: torch.dtype = torch.float32,
    max_position: int | None = None,
    kernels: Kernels = "reference",
    form: FormWish = "blocks",
) -> Decoder:
    source, ops = open_source(path), select_ops(kernels)
    chosen = choose_form(form, locate_weights(source), ops)
    return load_model(source, ops, dtype, "cpu", max_position=max_position, form=chosen)


@torch.no_grad()
def continued(model: PreTrainedModel, prompt: list[int], num_new: int) -> Generated:
    """What `transformers` says, one token after another with its own cache."""
    tokens, logits, cache = list(prompt), [], None
    fresh = prompt
    while len(tokens) < len(prompt) + num_new:
        output = model(torch.tensor([fresh]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits.append(output.logits[0])
        tokens.append(int(output.logits[0, -1].argmax()))
        fresh = tokens[-1:]
    return Generated(tokens[len(prompt) :], torch.cat(logits))


def prompts(lengths: tuple[int, ...], vocab_size: int = SIZES["vocab_size"]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in lengths]


def assert_equal(ours: Generated, theirs: Generated) -> None:
    """The tokens are the same; logits, which are up to 10 here, differ by the float32 rounding of other orders: by up to
    7e-5 where torch multiplies with AVX-512 on an Intel Xeon."""
    torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-4, rtol=0)
    assert ours.tokens == theirs.tokens
