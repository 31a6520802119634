"""A small tokenizer, and a walker that writes texts by drawing at random among the tokens that a grammar allows."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from trivium.formats.source import open_source
from trivium.grammar.limits import GrammarLimits
from trivium.grammar.masks import allowed_tokens
from trivium.grammar.messages import RowProblem
from trivium.grammar.service import GrammarService, Preparation
from trivium.text.tokenizer import Tokenizer
from trivium.types.request import Grammar, GrammarKind

SPECIAL = ["<|end|>", "<|call|>"]
CORPUS = [
    '{"name": "value", "list": [1, 2.5, true, false, null], "text": "hello there"}',
    '{\n  "a": {\n    "b": "12-34"\n  }\n}',
    "äöü 你好 🙂 naïve café <tool_call> </tool_call> 2024-01-02T03:04:05Z",
] * 20
NUM_ROWS = 4


def save_tokenizer(directory: Path) -> Path:
    tokenizer = Backend(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[0]}))
    (directory / "config.json").write_text("{}")
    return directory


class Walker:
    def __init__(self, directory: Path, limits: GrammarLimits | None = None) -> None:
        self.tokenizer = Tokenizer.from_source(open_source(directory))
        self.vocab_size = self.tokenizer.vocab_size + 5  # models pad their vocabulary
        self.service = GrammarService(str(directory), self.vocab_size, (), NUM_ROWS, limits=limits)

    def prepare(self, kind: GrammarKind, text: str) -> Preparation:
        return self.finish(self.service.prepare(Grammar(kind, text)))

    def finish(self, preparation: Preparation) -> Preparation:
        while not preparation.is_done:
            self.service.poll(0.05)
        return preparation

    def why_not(self, kind: GrammarKind, text: str) -> str:
        """Why the grammar is refused."""
        error = self.prepare(kind, text).error
        assert error is not None, f"{text[:200]} was accepted"
        return str(error)

    def masks(self, row: int) -> Mapping[int, RowProblem]:
        """Waits for the row's mask; rows that cannot have one."""
        self.service.ask_for_masks()
        assert self.service.wait_for_masks([row], is_idle=True) == set()
        return self.service.problems

    def allowed(self, row: int) -> list[int]:
        problems = self.masks(row)
        assert row not in problems, problems[row].why
        return np.flatnonzero(allowed_tokens(self.service.masks[row], self.vocab_size)).tolist()

    def accepts(self, preparation: Preparation, text: str) -> bool:
        """Whether the text can be written byte by byte and then end."""
        assert preparation.compiled is not None, preparation.error
        byte_tokens = {self.tokenizer.token_bytes(id): id for id in range(self.tokenizer.vocab_size)}
        self.service.open_row(0, preparation.compiled, [byte_tokens[bytes([byte])] for byte in text.encode()])
        problems = self.masks(0)
        ends = 0 not in problems and self.tokenizer.eos_ids[0] in self.allowed(0)
        self.service.close_row(0)
        return ends

    def write(self, preparation: Preparation, seed: int, max_tokens: int = 400, row: int = 0) -> str | None:
        """A text that obeys, ended as soon as may be more often than not; None: it did not end in time."""
        assert preparation.compiled is not None, preparation.error
        draw = random.Random(seed)
        self.service.open_row(row, preparation.compiled, ())
        written: list[int] = []
        try:
            for _ in range(max_tokens):
                allowed = self.allowed(row)
                ends = [id for id in allowed if id in self.tokenizer.eos_ids]
                if ends and (len(ends) == len(allowed) or draw.random() < 0.6):
                    return self.tokenizer.decode(written, skip_special_tokens=False)
                # Tokens with a closing mark are few among many: they get half of the draws.
                closing = [id for id in allowed if set(self.tokenizer.token_bytes(id)) & set(b'"]}')]
                pool = closing if closing and draw.random() < 0.5 else [id for id in allowed if id not in ends]
                written.append(draw.choice(pool))
                self.service.advance_row(row, written[-1])
        finally:
            self.service.close_row(row)
        return None
