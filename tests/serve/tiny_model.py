"""A model of a real architecture, small enough to answer at once: random weights, a byte-level tokenizer, ChatML."""

from __future__ import annotations

import json
from pathlib import Path

MODEL = "tiny/llama"  # what the servers call it
CONTEXT = 8192
LONG_CONTEXT = 1 << 17
ENDLESS = 120_000  # tokens that take minutes, within the long context: no answer of so many ends before its test
# Options with which every start is the same, whatever memory is free.
EXACT = ("--dtype", "float32", "--kv-cache-dtype", "float32", "--kv-cache-bytes", str(256 << 20))
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "[{{ call.function.name }}({% for key, value in call.function.arguments.items() %}{{ key }}={{ value }}{% endfor %})]"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{{ suffix }}"
)
TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "Hello, world! How are you today?",
    "äöü 你好 🙂 naïve café",
] * 20


def save_tiny_model(directory: Path, context: int = CONTEXT) -> Path:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "chat_template": TEMPLATE})
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=0,
        eos_token_id=2,
        initializer_range=0.2,  # logits far enough apart that answers differ from a uniform draw
    )
    LlamaForCausalLM(config).eval().save_pretrained(directory)
    return directory
