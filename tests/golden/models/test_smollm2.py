"""The default model, quantized, against `transformers` in float32 with the same weights, on real text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import pytest
import torch
from oracle import loaded
from paged_run import generate
from torch import Tensor
from torch.nn.functional import kl_div, nll_loss
from transformers import LlamaConfig, LlamaForCausalLM

from trivium.formats.source import open_source
from trivium.models.decoder import Decoder
from trivium.models.spec import ModelSpec
from trivium.models.weight_form import FormWish
from trivium.store import DEFAULT_MODEL, ModelStore
from trivium.text.tokenizer import Tokenizer
from trivium.types.errors import TriviumError

TEXT = Path(__file__).parent / "fixtures" / "wikitext2_excerpt.txt"
WINDOW = 512  # tokens that are judged together


@cache
def model_path() -> Path:
    try:
        return ModelStore().resolve(DEFAULT_MODEL)
    except TriviumError as error:
        pytest.skip(f"the default model cannot be had here: {error}")


def dequantized(path: Path, spec: ModelSpec) -> LlamaForCausalLM:
    """By the `gguf` package, with the order of rows that the converter changed put back."""
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        max_position_embeddings=spec.max_position,
        rms_norm_eps=spec.norm.eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope.theta},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, spec.num_layers)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = stored[names.get_name(name, try_suffixes=(".weight",))]
            weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
            if "q_proj" in name or "k_proj" in name:
                weight = weight.view(-1, spec.head_dim // 2, 2, spec.hidden_size).transpose(1, 2)
            parameter.copy_(weight.reshape(parameter.shape))
    return model.eval()


@dataclass(frozen=True)
class Verdict:
    """The perplexity of so few tokens moves by a percent with whatever is rounded otherwise; the divergence by a tenth of itself."""

    agreement: float  # of the likeliest tokens
    divergence: float  # mean over positions, of what `transformers` says of the next token from what we say, in nats
    perplexity: float
    exact_perplexity: float

    @property
    def perplexity_difference(self) -> float:
        return abs(self.perplexity - self.exact_perplexity) / self.exact_perplexity


def windows_of_text(num_tokens: int) -> list[list[int]]:
    tokens = Tokenizer.from_source(open_source(model_path())).encode(TEXT.read_text())
    return [tokens[start : start + WINDOW] for start in range(0, num_tokens, WINDOW)]


class Said(NamedTuple):
    """Of one window."""

    log_probabilities: Tensor  # [WINDOW, vocabulary]
    likeliest: Tensor  # [WINDOW]
    loss: float


def said(logits: Tensor, window: list[int]) -> Said:
    log_probabilities = logits.log_softmax(-1)
    return Said(log_probabilities, logits.argmax(-1), float(nll_loss(log_probabilities[:-1], torch.tensor(window[1:]))))


@cache
def said_by_transformers(num_tokens: int) -> list[Said]:
    model = dequantized(model_path(), loaded(model_path()).spec)
    with torch.no_grad():
        return [said(model(torch.tensor([window])).logits[0], window) for window in windows_of_text(num_tokens)]


def judge(decoder: Decoder, num_tokens: int, kv_dtype: str | None = None) -> Verdict:
    """Against `transformers` in float32 on the same weights, over WikiText."""
    windows = windows_of_text(num_tokens)
    agreed, divergence, our_loss, their_loss = 0, 0.0, 0.0, 0.0
    for window, theirs in zip(windows, said_by_transformers(num_tokens), strict=True):
        run = generate(decoder, [window], 1, block_size=16, chunks=(200, WINDOW), kv_dtype=kv_dtype)[0]
        ours = said(run.logits, window)
        agreed += int((ours.likeliest == theirs.likeliest).sum())
        apart = kl_div(ours.log_probabilities, theirs.log_probabilities, log_target=True, reduction="batchmean")
        divergence += float(apart) / len(windows)
        our_loss += ours.loss / len(windows)
        their_loss += theirs.loss / len(windows)
    verdict = Verdict(agreed / num_tokens, divergence, float(np.exp(our_loss)), float(np.exp(their_loss)))
    print(verdict)
    assert 10 < verdict.exact_perplexity < 60  # the text and the model belong together
    return verdict


@pytest.mark.parametrize("num_tokens", [1024, pytest.param(2560, marks=pytest.mark.slow)])
def test_quantized_weights_predict_real_text_as_their_dequantized_values_do(num_tokens: int) -> None:
    verdict = judge(loaded(model_path()), num_tokens)
    assert verdict.agreement >= 0.999
    assert verdict.perplexity_difference < 1e-5


@pytest.mark.parametrize("num_tokens", [1024, pytest.param(2560, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("form", "agreement", "cost"), [("blocks", 0.95, 0.005), ("rows", 0.93, 0.008)])
def test_products_of_bytes_cost_little(form: FormWish, agreement: float, cost: float, num_tokens: int) -> None:
    verdict = judge(loaded(model_path(), kernels="auto", form=form), num_tokens)
    assert verdict.agreement >= agreement
    assert verdict.divergence < cost


@pytest.mark.parametrize("num_tokens", [1024, pytest.param(2560, marks=pytest.mark.slow)])
def test_keys_and_values_in_fewer_bits_cost_next_to_nothing(num_tokens: int) -> None:
    decoder = loaded(model_path(), kernels="native")
    exact, in_16_bits, in_8_bits = (
        judge(decoder, num_tokens, dtype).divergence for dtype in ("float32", "bfloat16", "int8")
    )
    assert in_16_bits < exact + 5e-4
    assert in_8_bits < exact + 1.5e-3
