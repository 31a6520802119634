"""Text that comes token by token is the text of all the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import (
    TRICKY_TEXTS,
    gpt2_pre_tokenizer,
    train_byte_level_bpe,
    train_sentencepiece,
    write_byte_level_gguf,
)

from trivium.formats.source import open_source
from trivium.text.detokenize import Detokenizer
from trivium.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


def make_tokenizer(kind: str, directory: Path) -> Tokenizer:
    path = directory / "model.gguf"
    if kind == "byte-level":
        write_byte_level_gguf(path, train_byte_level_bpe(gpt2_pre_tokenizer()), "gpt-2")
    else:
        train_sentencepiece(kind == "spaced").write_gguf(path, add_space_prefix=kind == "spaced")
    return Tokenizer.from_source(open_source(path))


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    kinds = ("byte-level", "spaced", "unspaced")
    return {kind: make_tokenizer(kind, tmp_path_factory.mktemp(kind)) for kind in kinds}


KINDS = st.sampled_from(["byte-level", "spaced", "unspaced"])


@settings(max_examples=300)
@given(kind=KINDS, data=st.data(), skip=st.booleans())
def test_deltas_of_any_tokens_in_any_pieces_join_to_the_decoded_whole(
    tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer = tokenizers[kind]
    pieces = data.draw(st.lists(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=4), max_size=12))
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    deltas = [detokenizer.feed(piece) for piece in pieces] + [detokenizer.finish()]
    assert "".join(deltas) == tokenizer.decode([id for piece in pieces for id in piece], skip_special_tokens=skip)


@settings(max_examples=200)
@given(kind=KINDS, text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_no_delta_of_whole_text_holds_a_replacement_character(
    tokenizers: dict[str, Tokenizer], kind: str, text: str
) -> None:
    tokenizer = tokenizers[kind]
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.feed([id]) for id in tokenizer.encode(text)] + [detokenizer.finish()]
    assert "".join(deltas) == text
    assert sum(delta.count(REPLACEMENT) for delta in deltas) == text.count(REPLACEMENT)


def test_a_character_of_several_tokens_comes_whole_with_the_last(tokenizers: dict[str, Tokenizer]) -> None:
    for tokenizer in tokenizers.values():
        ids = tokenizer.encode("ᚠ", add_special_tokens=False)
        assert len(ids) >= 3
        detokenizer = Detokenizer(tokenizer)
        deltas = [detokenizer.feed([id]) for id in ids]
        assert deltas == [""] * (len(ids) - 1) + ["ᚠ"]
        assert detokenizer.finish() == ""


def test_a_character_that_is_never_completed_is_replaced_at_the_end(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["spaced"]
    cut = tokenizer.encode("ᚠ", add_special_tokens=False)[:-1]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.feed(cut) == ""
    assert detokenizer.finish() == REPLACEMENT == tokenizer.decode(cut)


def test_text_that_continues_a_prompt_keeps_its_leading_space(tokenizers: dict[str, Tokenizer]) -> None:
    for tokenizer in tokenizers.values():
        prompt, answer = (
            tokenizer.encode("The dog"),
            tokenizer.encode("The dog  jumps")[len(tokenizer.encode("The dog")) :],
        )
        detokenizer = Detokenizer(tokenizer, continues=True)
        text = detokenizer.feed(answer) + detokenizer.finish()
        assert tokenizer.decode(prompt) + text == "The dog  jumps"


def test_a_text_of_its_own_loses_only_the_space_that_the_tokenizer_put_there(tokenizers: dict[str, Tokenizer]) -> None:
    for tokenizer in tokenizers.values():
        for text in TRICKY_TEXTS:
            detokenizer = Detokenizer(tokenizer)
            assert "".join(detokenizer.feed([id]) for id in tokenizer.encode(text)) + detokenizer.finish() == text
