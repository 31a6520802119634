"""Small tokenizers of each kind, trained here, and the model files that hold them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog didn't mind; it's 12345 o'clock.\n",
    "the theory of the thing is that there are others, then these, then those.\n\n",
    "  indented code:\n    def f(x):\n        return x + 1\n",
    "日本語の文章と中文的句子，還有한국어 문장이 있습니다。\n",
    "naïve café déjà vu – “quotes” … ½ ¾ 🙂🚀👩‍👩‍👧\n",
    "    \t\t   many   spaces      here\n\n\n",
] * 8

# Shapes that tokenizers are known to stumble over.
TRICKY_TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n \n",
    "\t\t",
    "the",
    " the",
    "  the",
    "the theory's they're I'LL",
    "x = 3.14159; y=1234567",
    "didn't  won't",
    "日本語 と 한국어",
    "🙂",
    "👩‍👩‍👧 family",
    "e\u0301 composed é",
    "unseen: ᚠᛇᚻ \U0001f9ff",
    "nul\x00inside",
    "line\r\nends\r\n",
    "trailing spaces   ",
    "½ ٣ ③",
]

CONTROL, NORMAL, USER_DEFINED = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL, gguf.TokenType.USER_DEFINED


def train_byte_level_bpe(
    pre_tokenizer: pre_tokenizers.PreTokenizer, special: Sequence[str] = ("<|end|>", "<|start|>")
) -> tokenizers.Tokenizer:
    """`pre_tokenizer` ends in a byte-level step."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def gpt2_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def write_byte_level_gguf(path: Path, tokenizer: tokenizers.Tokenizer, pre: str, **flags: bool | int) -> Path:
    """`flags` are metadata keys under `tokenizer.ggml.`."""
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return write_gguf(
        path,
        model="gpt2",
        pre=pre,
        pieces=pieces,
        types=[CONTROL if piece in added else NORMAL for piece in pieces],
        merges=[" ".join(merge) for merge in model["merges"]],
        **flags,
    )


def write_gguf(
    path: Path,
    model: str,
    pieces: Sequence[str],
    types: Sequence[int],
    pre: str | None = None,
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    name: str | None = None,
    **flags: bool | int,
) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(pieces))
    writer.add_token_types(list(types))
    if name is not None:
        writer.add_name(name)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    if merges is not None:
        writer.add_token_merges(list(merges))
    if scores is not None:
        writer.add_token_scores(list(scores))
    for key, value in flags.items():
        (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@dataclass(frozen=True)
class TrainedSentencePiece:
    data: bytes
    oracle: sentencepiece.SentencePieceProcessor
    user_symbols: tuple[str, ...]

    def write_gguf(self, path: Path, **flags: bool | int) -> Path:
        oracle = self.oracle
        size = oracle.GetPieceSize()
        kinds = [
            (oracle.IsUnknown, gguf.TokenType.UNKNOWN),
            (oracle.IsControl, CONTROL),
            (oracle.IsByte, gguf.TokenType.BYTE),
            (lambda id: oracle.IdToPiece(id) in self.user_symbols, USER_DEFINED),
        ]
        types = [next((kind for test, kind in kinds if test(id)), NORMAL) for id in range(size)]
        return write_gguf(
            path,
            model="llama",
            # As converters write them: pieces matched in the text have spaces, not marks.
            pieces=[
                piece.replace("▁", " ") if kind == USER_DEFINED else piece
                for piece, kind in zip(map(oracle.IdToPiece, range(size)), types, strict=True)
            ],
            types=types,
            scores=[oracle.GetScore(id) for id in range(size)],
            **flags,
        )


def train_sentencepiece(
    add_dummy_prefix: bool, user_symbols: tuple[str, ...] = (), **options: object
) -> TrainedSentencePiece:
    model = io.BytesIO()
    settings = {
        "model_type": "bpe",
        "vocab_size": 600,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": list(user_symbols),
        "minloglevel": 2,
        **options,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, add_dummy_prefix=add_dummy_prefix, **settings
    )
    oracle = sentencepiece.SentencePieceProcessor()
    oracle.LoadFromSerializedProto(model.getvalue())
    return TrainedSentencePiece(model.getvalue(), oracle, user_symbols)


def write_directory(
    path: Path, files: dict[str, object], tokenizer: tokenizers.Tokenizer | None = None, model: bytes | None = None
) -> Path:
    """A Hugging Face directory; `files` are written as JSON."""
    path.mkdir()
    for name, content in {"config.json": {}, **files}.items():
        (path / name).write_text(json.dumps(content), "utf-8")
    if tokenizer is not None:
        tokenizer.save(str(path / "tokenizer.json"))
    if model is not None:
        (path / "tokenizer.model").write_bytes(model)
    return path
