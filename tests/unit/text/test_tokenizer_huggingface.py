"""Tokenizers from Hugging Face directories: tokenizer.json, the smaller files beside it, SentencePiece models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_tokenizers import (
    TRICKY_TEXTS,
    gpt2_pre_tokenizer,
    train_byte_level_bpe,
    train_sentencepiece,
    write_directory,
)
from tokenizers import AddedToken, decoders, models, processors
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from trivium.formats.source import open_source
from trivium.text.tokenizer import Tokenizer
from trivium.types.errors import ModelFileError, UnsupportedModelError


def read(path: Path) -> Tokenizer:
    return Tokenizer.from_source(open_source(path))


def byte_level() -> Backend:
    return train_byte_level_bpe(gpt2_pre_tokenizer(), special=("<s>", "</s>", "<|eot|>"))


def test_a_tokenizer_json_gives_its_ids_and_texts(tmp_path: Path) -> None:
    trained = byte_level()
    tokenizer = read(write_directory(tmp_path / "model", {}, trained))
    for text in TRICKY_TEXTS:
        assert tokenizer.encode(text) == trained.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == trained.get_vocab_size()


def test_the_post_processor_of_tokenizer_json_puts_tokens_around(tmp_path: Path) -> None:
    trained = byte_level()
    trained.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer = read(write_directory(tmp_path / "model", {}, trained))
    plain = tokenizer.encode("the dog", add_special_tokens=False)
    assert tokenizer.encode("the dog") == [0, *plain, 1]
    assert tokenizer.encode("") == [0, 1]


@pytest.mark.parametrize(
    ("flags", "first", "last"),
    [({}, [1], []), ({"add_bos_token": False}, [], []), ({"add_eos_token": True}, [1], [2])],
)
def test_beside_a_sentencepiece_model_the_configuration_says_what_goes_around(
    tmp_path: Path, flags: dict[str, bool], first: list[int], last: list[int]
) -> None:
    trained = train_sentencepiece(add_dummy_prefix=True)
    tokenizer = read(write_directory(tmp_path / "model", {"tokenizer_config.json": flags}, model=trained.data))
    assert tokenizer.encode("the dog") == [*first, *trained.oracle.encode("the dog"), *last]


def test_a_tokenizer_json_overrules_add_bos_token_as_in_transformers(tmp_path: Path) -> None:
    config = {"add_bos_token": True, "bos_token": "<s>"}
    path = write_directory(tmp_path / "model", {"tokenizer_config.json": config}, byte_level())
    assert read(path).encode("the dog") == PreTrainedTokenizerFast.from_pretrained(path)("the dog")["input_ids"]


def test_end_ids_come_from_the_generation_configuration_and_the_tokenizer(tmp_path: Path) -> None:
    files = {
        "generation_config.json": {"eos_token_id": [1, 2], "bos_token_id": 0},
        "tokenizer_config.json": {"eos_token": {"content": "<|eot|>"}, "bos_token": "<s>"},
    }
    tokenizer = read(write_directory(tmp_path / "model", files, byte_level()))
    assert tokenizer.eos_ids == (1, 2)
    assert tokenizer.bos_id == 0

    files = {"config.json": {"eos_token_id": 2}, "special_tokens_map.json": {"eos_token": "</s>"}}
    tokenizer = read(write_directory(tmp_path / "other", files, byte_level()))
    assert tokenizer.eos_ids == (2, 1)


def test_tokens_that_only_the_configuration_adds_are_known(tmp_path: Path) -> None:
    trained = byte_level()
    size = trained.get_vocab_size()
    config = {
        "added_tokens_decoder": {
            str(size): {"content": "<tool>", "special": False},
            str(size + 1): {"content": "<hidden>", "special": True},
        }
    }
    tokenizer = read(write_directory(tmp_path / "model", {"tokenizer_config.json": config}, trained))
    ids = tokenizer.encode("<tool>the<hidden>")
    assert (ids[0], ids[-1]) == (size, size + 1)
    assert tokenizer.decode(ids) == "<tool>the"
    assert tokenizer.vocab_size == size + 2


def test_an_added_token_whose_id_is_taken_is_a_sentence(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"7": {"content": "<tool>"}}}
    path = write_directory(tmp_path / "model", {"tokenizer_config.json": config}, byte_level())
    with pytest.raises(ModelFileError, match="'<tool>' has id 7"):
        read(path)


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    trained = byte_level()
    trained.enable_truncation(3)
    trained.enable_padding(length=10)
    tokenizer = read(write_directory(tmp_path / "model", {}, trained))
    assert tokenizer.decode(tokenizer.encode("the quick brown fox")) == "the quick brown fox"


def test_token_bytes_joined_are_the_utf8_of_the_text(tmp_path: Path) -> None:
    tokenizer = read(write_directory(tmp_path / "model", {}, byte_level()))
    for text in TRICKY_TEXTS:
        assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_added_tokens_of_a_byte_level_tokenizer_stand_for_what_is_written(tmp_path: Path) -> None:
    trained = byte_level()
    trained.add_special_tokens([AddedToken("<｜begin▁of▁sentence｜>", normalized=False), AddedToken("<é>")])
    tokenizer = read(write_directory(tmp_path / "model", {}, trained))
    text = "<｜begin▁of▁sentence｜>the<é>"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_ids_beyond_the_vocabulary_stand_for_nothing(tmp_path: Path) -> None:
    tokenizer = read(write_directory(tmp_path / "model", {}, byte_level()))
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""
    assert tokenizer.decode([tokenizer.vocab_size, -1, 2**40]) == ""


LLAMA2_DECODER = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
GEMMA_DECODER = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


@pytest.mark.parametrize(
    "decoder",
    [
        LLAMA2_DECODER,
        GEMMA_DECODER,
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.WordPiece(cleanup=False),
        decoders.ByteLevel(),
    ],
    ids=["llama-2", "gemma", "metaspace", "metaspace-never", "wordpiece", "byte-level"],
)
def test_decoding_by_bytes_is_what_the_decoder_says(tmp_path: Path, decoder: decoders.Decoder) -> None:
    pieces = ["<unk>", "▁", "▁the", "the", "▁▁", "##ing", "Ġdog", "<0x0A>", "<0xE6>", "<0x97>", "<0xA5>", "x"]
    backend = Backend(models.BPE(dict(zip(pieces, range(len(pieces)), strict=True)), [], unk_token="<unk>"))
    backend.decoder = decoder
    tokenizer = read(write_directory(tmp_path / "model", {}, backend))
    for ids in ([2, 3], [1, 2], [3, 5, 2], [8, 9, 10, 7], [3, 4, 11], [6, 6], [11, 5, 3], []):
        assert tokenizer.decode(ids) == backend.decode(ids), [pieces[id] for id in ids]


def test_a_decoder_that_is_not_by_token_is_refused(tmp_path: Path) -> None:
    backend = byte_level()
    backend.decoder = decoders.CTC()
    with pytest.raises(UnsupportedModelError, match="'CTC'"):
        read(write_directory(tmp_path / "model", {}, backend))


@pytest.mark.parametrize("dummy_prefix", [True, False])
def test_a_directory_with_only_a_sentencepiece_model(tmp_path: Path, dummy_prefix: bool) -> None:
    trained = train_sentencepiece(dummy_prefix)
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = read(write_directory(tmp_path / "model", {"tokenizer_config.json": config}, model=trained.data))
    for text in TRICKY_TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False) == trained.oracle.encode(text), text
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("the")[0] == 1
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,))


def test_a_sentencepiece_model_that_normalizes(tmp_path: Path) -> None:
    trained = train_sentencepiece(True, normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True)
    tokenizer = read(write_directory(tmp_path / "model", {}, model=trained.data))
    for text in ("ｆｕｌｌ ｗｉｄｔｈ ﬁ", "  two   spaces  ", "½ café"):
        assert tokenizer.encode(text, add_special_tokens=False) == trained.oracle.encode(text), text


def test_the_newer_rule_puts_a_space_before_the_first_stretch_only(tmp_path: Path) -> None:
    trained = train_sentencepiece(True, user_symbols=("<turn>",))
    turn, the = trained.oracle.PieceToId("<turn>"), trained.oracle.encode("the")
    bare = [id for id in trained.oracle.encode("<turn>the") if id != turn][1:]  # after the mark of the prefix
    older = read(write_directory(tmp_path / "older", {}, model=trained.data))
    newer = {"tokenizer_config.json": {"legacy": False}}
    newer_tokenizer = read(write_directory(tmp_path / "newer", newer, model=trained.data))
    assert older.encode("the<turn>the", add_special_tokens=False) == [*the, turn, *the]
    assert newer_tokenizer.encode("the<turn>the", add_special_tokens=False) == [*the, turn, *bare]


def test_a_unigram_sentencepiece_model_is_refused(tmp_path: Path) -> None:
    trained = train_sentencepiece(True, model_type="unigram", vocab_size=350)
    with pytest.raises(UnsupportedModelError, match="of type 1"):
        read(write_directory(tmp_path / "model", {}, model=trained.data))


def test_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        read(write_directory(tmp_path / "none", {}))

    good = train_sentencepiece(True).data
    for name, data in (("cut", good[: len(good) // 2]), ("noise", b"\xff" * 50), ("empty", b"")):
        with pytest.raises(ModelFileError, match="is not a SentencePiece model"):
            read(write_directory(tmp_path / name, {}, model=data))

    for name, text in (("syntax", "{"), ("shape", '{"model": 3}'), ("decoder", '{"decoder": {}}')):
        path = write_directory(tmp_path / name, {})
        (path / "tokenizer.json").write_text(text)
        with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
            read(path)


def test_a_tokenizer_saved_by_transformers_reads_the_same(tmp_path: Path) -> None:
    saved = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>")
    path = write_directory(tmp_path / "model", {})
    saved.save_pretrained(path)
    assert json.loads((path / "tokenizer_config.json").read_text())["eos_token"] == "</s>"
    tokenizer = read(path)
    for text in TRICKY_TEXTS:
        assert tokenizer.encode(text) == saved(text)["input_ids"]
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (0, (1,))
