"""Tokenizers from GGUF metadata give the ids of the tokenizer that the file was made from."""

from __future__ import annotations

import heapq
import json
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import (
    CONTROL,
    NORMAL,
    TRICKY_TEXTS,
    USER_DEFINED,
    TrainedSentencePiece,
    gpt2_pre_tokenizer,
    train_byte_level_bpe,
    train_sentencepiece,
    write_byte_level_gguf,
    write_gguf,
)
from tokenizers import Regex, pre_tokenizers

from trivium.formats.source import open_source
from trivium.store import ModelStore
from trivium.text.gguf_pretokenizers import PRE_TOKENIZERS
from trivium.text.tokenizer import Tokenizer
from trivium.types.errors import ModelFileError, UnsupportedModelError


def read(path: Path) -> Tokenizer:
    with open_source(path) as source:
        return Tokenizer.from_source(source)


LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace("{1,3}", "")


def split_then_bytes(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@pytest.mark.parametrize(
    ("pre", "original"),
    [
        ("gpt-2", gpt2_pre_tokenizer()),
        ("smollm", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2_pre_tokenizer()])),
        ("starcoder", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2_pre_tokenizer()])),
        ("smaug-bpe", split_then_bytes(LLAMA3_PATTERN)),
        ("stablelm2", split_then_bytes(QWEN2_PATTERN)),
    ],
)
def test_byte_level_bpe_gives_the_ids_of_the_tokenizer_it_was_made_from(
    tmp_path: Path, pre: str, original: pre_tokenizers.PreTokenizer
) -> None:
    trained = train_byte_level_bpe(original)
    tokenizer = read(write_byte_level_gguf(tmp_path / "model.gguf", trained, pre))
    for text in TRICKY_TEXTS:
        assert tokenizer.encode(text) == trained.encode(text).ids, text
        assert tokenizer.decode(tokenizer.encode(text)) == text


# Words as the models' own tokenizers divide these texts.
PIECES = [
    ("gpt-2", "He'LL say 1234 ok\n\n  x", ["He", "'", "LL", " say", " 1234", " ok", "\n\n ", " x"]),
    ("smollm", "He'LL say 1234 ok\n\n  x", ["He", "'", "LL", " say", " ", "1", "2", "3", "4", " ok", "\n\n ", " x"]),
    ("llama-bpe", "He'LL say 1234 ok\n\n  x", ["He", "'LL", " say", " ", "123", "4", " ok", "\n\n", " ", " x"]),
    ("qwen2", "He'LL say 1234 ok\n\n  x", ["He", "'LL", " say", " ", "1", "2", "3", "4", " ok", "\n\n", " ", " x"]),
    ("qwen2", "ก่า", ["ก", "่า"]),
    ("qwen35", "ก่า", ["ก่า"]),
    ("tekken", "camelCase HTTPServer 42", ["camel", "Case", " HTTPServer", " ", "4", "2"]),
    ("gpt-4o", "camelCase's 1234", ["camel", "Case's", " ", "123", "4"]),
    ("falcon", "a,b 12345", ["a", ",", "b", " ", "123", "45"]),
    ("deepseek-llm", "one two, 中文 12\n", ["one", " two", ",", " ", "中文", " ", "12", "\n"]),
    ("deepseek-coder", "x1, y += 23\n", ["x", "1", ",", " y", " += ", "2", "3", "\n"]),
    ("deepseek-v3", "don't 1234 中文。", ["don", "'t", " ", "123", "4", " ", "中文", "。"]),
    ("default", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
]


@pytest.mark.parametrize(("pre", "text", "words"), PIECES)
def test_words_are_divided_as_the_named_pre_tokenizer_does(pre: str, text: str, words: list[str]) -> None:
    splits = PRE_TOKENIZERS[pre].pre_tokenizer().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in splits] == words


def test_every_pre_tokenizer_keeps_all_of_the_text() -> None:
    for name, pre in PRE_TOKENIZERS.items():
        for text in TRICKY_TEXTS:
            splits = pre.pre_tokenizer().pre_tokenize_str(text)
            assert "".join(text[start:end] for _, (start, end) in splits) == text, name


def test_an_unknown_pre_tokenizer_is_said_aloud_and_the_default_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = train_byte_level_bpe(gpt2_pre_tokenizer())
    odd = read(write_byte_level_gguf(tmp_path / "odd.gguf", trained, "newest-thing"))
    assert "newest-thing" in caplog.text
    default = read(write_byte_level_gguf(tmp_path / "default.gguf", trained, "default"))
    assert [odd.encode(text) for text in TRICKY_TEXTS] == [default.encode(text) for text in TRICKY_TEXTS]


def test_qwen_text_is_composed_before_it_is_split(tmp_path: Path) -> None:
    trained = train_byte_level_bpe(split_then_bytes(QWEN2_PATTERN))
    tokenizer = read(write_byte_level_gguf(tmp_path / "model.gguf", trained, "qwen2"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


@pytest.mark.parametrize(
    ("pre", "flags", "first", "last"),
    [
        ("gpt-2", {}, [], []),
        ("gpt-2", {"add_bos_token": True}, [1], []),
        ("gpt-2", {"add_eos_token": True}, [], [0]),
        ("llama-bpe", {}, [1], []),
        ("llama-bpe", {"add_bos_token": False}, [], []),
    ],
)
def test_bos_and_eos_are_put_where_the_file_says(
    tmp_path: Path, pre: str, flags: dict[str, bool], first: list[int], last: list[int]
) -> None:
    trained = train_byte_level_bpe(gpt2_pre_tokenizer())
    path = write_byte_level_gguf(tmp_path / "model.gguf", trained, pre, bos_token_id=1, eos_token_id=0, **flags)
    tokenizer = read(path)
    plain = tokenizer.encode("the dog", add_special_tokens=False)
    assert tokenizer.encode("the dog") == first + plain + last
    assert tokenizer.bos_id == 1
    assert tokenizer.eos_ids[0] == 0


def test_special_tokens_in_the_text_are_single_ids_and_hidden_in_decoded_text(tmp_path: Path) -> None:
    trained = train_byte_level_bpe(gpt2_pre_tokenizer(), special=("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    tokenizer = read(write_byte_level_gguf(tmp_path / "model.gguf", trained, "gpt-2", eos_token_id=1))
    ids = tokenizer.encode("<|im_start|>the dog<|im_end|>")
    assert (ids[0], ids[-1]) == (0, 1)
    assert tokenizer.decode(ids) == "the dog"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>the dog<|im_end|>"
    assert [id for id in range(tokenizer.vocab_size) if tokenizer.is_special(id)] == [0, 1, 2]
    assert set(tokenizer.eos_ids) == {1, 2}, "a control token that ends turns ends a generation, named or not"


def test_user_defined_tokens_are_matched_as_written_but_shown(tmp_path: Path) -> None:
    trained = train_byte_level_bpe(gpt2_pre_tokenizer(), special=("<think>",))
    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    path = write_gguf(
        tmp_path / "model.gguf",
        model="gpt2",
        pre="gpt-2",
        pieces=pieces,
        types=[USER_DEFINED if piece == "<think>" else NORMAL for piece in pieces],
        merges=[" ".join(merge) for merge in model["merges"]],
    )
    tokenizer = read(path)
    ids = tokenizer.encode("<think>the")
    assert ids[0] == 0
    assert tokenizer.decode(ids) == "<think>the"


def test_a_merge_of_tokens_that_are_not_there_is_a_sentence(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "model.gguf",
        "gpt2",
        ["a", "b", "ab"],
        [NORMAL] * 3,
        pre="gpt-2",
        merges=["a b", "b a", "ab c", "ab"],
    )
    with pytest.raises(ModelFileError, match="3 of the tokenizer's 4 merges"):
        read(path)


def test_lists_of_unequal_lengths_are_a_sentence(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "types.gguf", "gpt2", ["a", "b"], [NORMAL], pre="gpt-2", merges=[])
    with pytest.raises(ModelFileError, match="2 tokens but 1 token types"):
        read(path)
    path = write_gguf(tmp_path / "scores.gguf", "llama", ["a", "b"], [NORMAL] * 2, scores=[0.0])
    with pytest.raises(ModelFileError, match="2 tokens but 1 scores"):
        read(path)


def test_a_tokenizer_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "rwkv", ["a"], [NORMAL])
    with pytest.raises(UnsupportedModelError, match="'rwkv'"):
        read(path)


@pytest.fixture(scope="module")
def spaced() -> TrainedSentencePiece:
    return train_sentencepiece(add_dummy_prefix=True, user_symbols=("<turn>",))


@pytest.fixture(scope="module")
def unspaced() -> TrainedSentencePiece:
    # Gemma has pieces of several spaces, matched before any merging.
    return train_sentencepiece(add_dummy_prefix=False, user_symbols=("<turn>", "▁▁", "▁▁▁▁"))


def test_sentencepiece_gives_the_ids_of_the_sentencepiece_library(tmp_path: Path, spaced: TrainedSentencePiece) -> None:
    tokenizer = read(spaced.write_gguf(tmp_path / "model.gguf"))
    for text in TRICKY_TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False) == spaced.oracle.encode(text), text
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_without_a_space_prefix_as_gemma_has_it(tmp_path: Path, unspaced: TrainedSentencePiece) -> None:
    tokenizer = read(unspaced.write_gguf(tmp_path / "model.gguf", add_space_prefix=False))
    for text in TRICKY_TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False) == unspaced.oracle.encode(text), text
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


@settings(max_examples=200)
@given(text=st.text(alphabet="thequick dog\n日本é🙂ᚠ1", max_size=60))
def test_sentencepiece_agrees_with_the_library_on_any_text(unspaced_tokenizer, text: str) -> None:
    tokenizer, oracle = unspaced_tokenizer
    assert tokenizer.encode(text, add_special_tokens=False) == oracle.encode(text)


@pytest.fixture(scope="module")
def unspaced_tokenizer(tmp_path_factory, unspaced: TrainedSentencePiece):
    path = unspaced.write_gguf(tmp_path_factory.mktemp("spm") / "model.gguf", add_space_prefix=False)
    return read(path), unspaced.oracle


def test_bos_and_space_prefix_surround_special_tokens_in_sentencepiece(
    tmp_path: Path, spaced: TrainedSentencePiece
) -> None:
    tokenizer = read(spaced.write_gguf(tmp_path / "model.gguf", bos_token_id=1, eos_token_id=2))
    turn = spaced.oracle.PieceToId("<turn>")
    the = spaced.oracle.encode("the")
    assert tokenizer.encode("the<turn>the") == [1, *the, turn, *the]
    assert tokenizer.eos_ids == (2,)
    assert tokenizer.decode([1, *the, 2]) == "the"


def merged_by_score(pieces: list[str], scores: list[float], text: str) -> list[str]:
    """The rule itself: join the neighbours whose joined text scores best, leftmost first, until none is a piece."""
    rank = dict(zip(pieces, scores, strict=True))
    parts = list(text)
    while True:
        candidates = [
            (-rank[parts[i] + parts[i + 1]], i) for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in rank
        ]
        if not candidates:
            return parts
        _, i = heapq.nsmallest(1, candidates)[0]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@settings(max_examples=60)
@given(data=st.data())
def test_merging_goes_by_score_whatever_the_scores_are(tmp_path_factory, data: st.DataObject) -> None:
    longer = data.draw(st.lists(st.text("abc", min_size=2, max_size=4), unique=True, max_size=12))
    pieces = ["<unk>", "a", "b", "c", *longer]
    scores = [0.0, 0.0, 0.0, 0.0, *data.draw(st.permutations([-float(i) for i in range(len(longer))]))]
    types = [gguf.TokenType.UNKNOWN, *[NORMAL] * (len(pieces) - 1)]
    path = tmp_path_factory.mktemp("scores") / "model.gguf"
    tokenizer = read(
        write_gguf(path, "llama", pieces, types, scores=scores, add_space_prefix=False, add_bos_token=False)
    )
    text = data.draw(st.text("abc", max_size=20))
    # Two cuts of one piece cannot be ranked equal in a list of merges, so texts that could tell are left out.
    if not any(_overlaps_itself(piece) for piece in longer):
        assert [pieces[id] for id in tokenizer.encode(text)] == merged_by_score(pieces, scores, text)


def _overlaps_itself(piece: str) -> bool:
    return any(piece[:n] == piece[-n:] for n in range(1, len(piece)))


def test_phi3_special_tokens_take_the_white_space_after_them(tmp_path: Path, spaced: TrainedSentencePiece) -> None:
    pieces = ["<unk>", "<s>", "</s>", "<|user|>", "▁", "a", "\n"]
    types = [gguf.TokenType.UNKNOWN, CONTROL, CONTROL, CONTROL, NORMAL, NORMAL, NORMAL]
    written = {"model": "llama", "pieces": pieces, "types": types, "scores": [0.0] * 7, "add_space_prefix": False}
    phi = read(write_gguf(tmp_path / "phi.gguf", name="Phi-3 mini", **written))
    other = read(write_gguf(tmp_path / "other.gguf", name="Llama", **written))
    assert phi.encode("<|user|>\na", add_special_tokens=False) == [3, 5]
    assert other.encode("<|user|>\na", add_special_tokens=False) == [3, 6, 5]


def test_wordpiece_as_bert_files_have_it(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁un", "aff", "able", "▁hello", "▁,"]
    types = [CONTROL, gguf.TokenType.UNKNOWN, CONTROL, CONTROL, *[NORMAL] * 5]
    path = write_gguf(
        tmp_path / "model.gguf", "bert", pieces, types, bos_token_id=2, seperator_token_id=3, unknown_token_id=1
    )
    tokenizer = read(path)
    assert tokenizer.encode("Hello, UNAFFABLE") == [2, 7, 8, 4, 5, 6, 3]
    assert tokenizer.decode(tokenizer.encode("Hello unaffable")) == "hello unaffable"


def test_smollm2_gives_the_ids_that_transformers_gives() -> None:
    try:
        path = ModelStore().get("smollm2").path
    except ModelFileError as error:
        pytest.skip(f"the default model is not in the store: {error}")
    tokenizer = read(path)
    # Made with transformers' own conversion of this GGUF file; it does not set numerals such as ½ apart, as the
    # model's tokenizer does, so texts with them are not among these.
    vectors = json.loads((Path(__file__).parent / "smollm2_ids.json").read_text("utf-8"))
    assert len(vectors) >= 40
    for text, ids in vectors:
        assert tokenizer.encode(text) == ids, text
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (49152, 1, (2, 0))
