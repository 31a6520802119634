"""A llama of four layers with seeded random weights, and a byte-level tokenizer with a chat template."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

BOS, EOS = 0, 1
SPECIAL_TOKENS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["the quick brown fox jumps over the lazy dog", "three roads meet in one place", "hello world hello there"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class SmallModel:
    directory: Path
    oracle: LlamaForCausalLM


def save_llama(
    directory: Path,
    vocab_size: int,
    eos_token_id: int,
    seed: int,
    initializer_range: float = 0.2,
    context: int = 256,
) -> LlamaForCausalLM:
    """The default range is so wide that tokens are told apart by far more than rounding."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=initializer_range,
        bos_token_id=BOS,
        eos_token_id=eos_token_id,
        pad_token_id=None,
    )
    config._attn_implementation = "eager"
    oracle = LlamaForCausalLM(config).float().eval()
    oracle.save_pretrained(directory)
    return oracle


def save_small_model(directory: Path, context: int = 256) -> SmallModel:
    oracle = save_llama(directory, vocab_size=384, eos_token_id=EOS, seed=0, context=context)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return SmallModel(directory, oracle)
