"""Fill-in-the-middle prompts, laid out as each family was taught."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from trivium.formats.source import open_source
from trivium.text.fill_in_the_middle import FAMILIES, FillInTheMiddle, FimTokens
from trivium.text.tokenizer import Tokenizer


def tokenizer_with(directory: Path, *special: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={char: id for id, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    backend.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text("{}")
    return Tokenizer.from_source(open_source(directory))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
def test_the_parts_are_laid_out_as_the_family_was_taught(tmp_path: Path, family: FimTokens) -> None:
    marks = [mark for mark in (family.prefix, family.suffix, family.middle) if mark]
    tokenizer = tokenizer_with(tmp_path, *marks)
    fim = FillInTheMiddle.of(tokenizer)
    assert fim is not None
    written = tokenizer.decode(fim.prompt("a b", "c"), skip_special_tokens=False)
    if family.is_suffix_first:
        assert written == f"{family.suffix}c{family.prefix}a b"
    else:
        assert written == f"{family.prefix}a b{family.suffix}c{family.middle}"


def test_a_model_without_the_tokens_has_none_of_it(tmp_path: Path) -> None:
    assert FillInTheMiddle.of(tokenizer_with(tmp_path, "<|fim_prefix|>", "<|endoftext|>")) is None


def test_what_ends_a_middle_is_known(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|endoftext|>", "<|other|>")
    fim = FillInTheMiddle.of(tokenizer)
    assert fim is not None and fim.end_ids == [tokenizer.token_id("<|endoftext|>")]
