"""`trivium serve` over the parrot: everything is real but the model. Run as a program, as the command line is."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

from parrot_core import END, SAID, SAY, SLOWLY

FIM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", END, SAY, SAID, SLOWLY, *FIM]
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}"
)


def save_parrot(directory: Path, *more_special: str) -> Path:
    """A tokenizer and a template; there are no weights."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: id for id, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (*SPECIAL, *more_special)])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": END, "bos_token": "<|endoftext|>", "chat_template": TEMPLATE})
    )
    return directory


def spoken(answer: str, *, slowly: bool = False) -> str:
    """What makes the parrot say so."""
    return f"{SLOWLY if slowly else ''}{SAY}{answer}{SAID}"


def says(answer: str, *, slowly: bool = False) -> list[dict[str, str]]:
    """Messages to which the parrot answers so."""
    return [{"role": "user", "content": spoken(answer, slowly=slowly)}]


if __name__ == "__main__":
    from trivium import cli
    from trivium.engine.client import EngineClient
    from trivium.llm import async_llm

    async_llm.EngineClient = functools.partial(EngineClient, core="parrot_core:ParrotCore")  # type: ignore[assignment,misc]
    sys.exit(cli.main())
