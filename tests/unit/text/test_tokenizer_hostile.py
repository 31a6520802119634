"""Texts and uses that try to break the tokenizer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tiny_tokenizers import (
    CORPUS,
    gpt2_pre_tokenizer,
    train_byte_level_bpe,
    train_sentencepiece,
    write_byte_level_gguf,
)

from trivium.formats.source import open_source
from trivium.text.tokenizer import Tokenizer
from trivium.types.errors import InvalidRequestError


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    if request.param == "byte-level":
        write_byte_level_gguf(path, train_byte_level_bpe(gpt2_pre_tokenizer()), "llama-bpe")
    else:
        train_sentencepiece(add_dummy_prefix=True).write_gguf(path)
    return Tokenizer.from_source(open_source(path))


def test_nul_bytes_are_text(tokenizer: Tokenizer) -> None:
    text = "\x00" * 1000 + "a\x00b"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "\ude00\ud83d"])
def test_half_a_surrogate_pair_is_refused_by_name(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"half of a surrogate pair, U\+D"):
        tokenizer.encode(text)


@pytest.mark.parametrize("size", [1_000_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_megabytes_of_text_are_tokenized(tokenizer: Tokenizer, size: int) -> None:
    text = ("The quick brown fox jumps over the lazy dog. 12345\n" * 200_000)[:size]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_long_runs_of_one_character_are_tokenized(tokenizer: Tokenizer) -> None:
    for char in (" ", "\n", "a", "1", "!", "日"):
        text = char * 300_000
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_run_beyond_what_the_pattern_can_match_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = write_byte_level_gguf(tmp_path / "model.gguf", train_byte_level_bpe(gpt2_pre_tokenizer()), "llama-bpe")
    tokenizer = Tokenizer.from_source(open_source(path))
    with pytest.raises(InvalidRequestError, match="10000001 characters"):
        tokenizer.encode(" " * 10_000_001)
    assert tokenizer.decode(tokenizer.encode("still works")) == "still works"


def test_many_threads_get_the_ids_that_one_gets(tokenizer: Tokenizer) -> None:
    texts = [line[i:] for line in CORPUS[:6] for i in range(20)]
    alone = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            assert list(threads.map(tokenizer.encode, texts)) == alone
            assert list(threads.map(tokenizer.decode, alone)) == texts


def test_a_batch_gives_the_ids_of_its_texts(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_batch(CORPUS[:6]) == [tokenizer.encode(text) for text in CORPUS[:6]]
    assert tokenizer.encode_batch([]) == []
