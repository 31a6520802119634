"""A tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

import logging

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from trivium.formats.gguf import GGUFFile
from trivium.text import sentencepiece
from trivium.text.gguf_pretokenizers import DEFAULT_PRE_TOKENIZER, PRE_TOKENIZERS, PreTokenizer
from trivium.text.token_bytes import BYTE_LEVEL_BYTES, SENTENCEPIECE_BYTES, SPACE_MARK, TokenBytes
from trivium.text.tokenizer_parts import TokenizerParts
from trivium.text.vocabulary import PieceType, Vocabulary
from trivium.types.errors import ModelFileError, UnsupportedModelError

logger = logging.getLogger(__name__)

# Control tokens that end a turn, by their text: many files name only one of several under `eos_token_id`.
_END_TOKENS = frozenset(
    (
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<eos>",
        "<EOT>",
        "[EOT]",
        "</s>",
        "<｜end▁of▁sentence｜>",
    )
)
# In this format a message ends with <|end|>, and the turn goes on until one of these.
_HARMONY_TURN_ENDS = ("<|return|>", "<|call|>")

_PHI3_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")

_WORDPIECE_CONTINUATION = "##"
_WORDPIECE_BYTES = TokenBytes(continuation=_WORDPIECE_CONTINUATION, spaces_stripped=1)


def read_gguf_tokenizer(source: GGUFFile) -> TokenizerParts:
    model = source.get_str("tokenizer.ggml.model")
    vocabulary = _read_vocabulary(source)
    match model:
        case "gpt2":
            return _byte_level_bpe(source, vocabulary)
        case "llama":
            return _sentencepiece(source, vocabulary)
        case "bert":
            return _wordpiece(source, vocabulary)
    raise UnsupportedModelError(f"{source.path}: has a tokenizer of kind {model!r}; gpt2, llama and bert are read")


def _byte_level_bpe(source: GGUFFile, vocabulary: Vocabulary) -> TokenizerParts:
    pre = _pre_tokenizer(source)
    ids = vocabulary.ids()
    backend = Tokenizer(models.BPE(ids, _merges(source, ids), ignore_merges=pre.ignore_merges))
    if normalizer := pre.normalizer():
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre.pre_tokenizer()
    bos = _token_id(source, "bos", vocabulary)
    eos = _token_id(source, "eos", vocabulary)
    return _parts(
        source,
        vocabulary,
        backend,
        BYTE_LEVEL_BYTES,
        bos=bos,
        eos=eos,
        first=bos if source.get_bool("tokenizer.ggml.add_bos_token", pre.add_bos) else None,
        last=eos if source.get_bool("tokenizer.ggml.add_eos_token", False) else None,
    )


def _sentencepiece(source: GGUFFile, vocabulary: Vocabulary) -> TokenizerParts:
    if len(vocabulary.scores) != len(vocabulary.pieces):
        raise ModelFileError(
            f"{source.path}: the tokenizer has {len(vocabulary.pieces)} tokens but {len(vocabulary.scores)} scores"
        )
    spaced = source.get_bool("tokenizer.ggml.add_space_prefix", True)
    backend = sentencepiece.build_tokenizer(vocabulary, "every" if spaced else "never", before=None)
    bos = _token_id(source, "bos", vocabulary, default=1)
    eos = _token_id(source, "eos", vocabulary, default=2)
    return _parts(
        source,
        vocabulary,
        backend,
        SENTENCEPIECE_BYTES.stripping(1 if spaced else 0),
        bos=bos,
        eos=eos,
        first=bos if source.get_bool("tokenizer.ggml.add_bos_token", True) else None,
        last=eos if source.get_bool("tokenizer.ggml.add_eos_token", False) else None,
    )


def _wordpiece(source: GGUFFile, vocabulary: Vocabulary) -> TokenizerParts:
    # The file marks pieces that begin a word; WordPiece marks those that continue one.
    pieces = [
        piece.removeprefix(SPACE_MARK)
        if kind != PieceType.NORMAL or piece.startswith(SPACE_MARK)
        else _WORDPIECE_CONTINUATION + piece
        for piece, kind in zip(vocabulary.pieces, vocabulary.types, strict=True)
    ]
    vocabulary = Vocabulary(pieces, vocabulary.types, [])
    unknown = _token_id(source, "unknown", vocabulary, default=100)
    backend = Tokenizer(
        models.WordPiece(
            vocabulary.ids(),
            unk_token=pieces[unknown] if unknown is not None else "[UNK]",
            continuing_subword_prefix=_WORDPIECE_CONTINUATION,
        )
    )
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=source.get_bool("tokenizer.ggml.normalizer.lowercase", True)
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first = _token_id(source, "bos", vocabulary, default=101)
    last = _token_id(source, "seperator", vocabulary, default=102)  # so spelt in the format
    return _parts(source, vocabulary, backend, _WORDPIECE_BYTES, bos=first, eos=last, first=first, last=last)


def _read_vocabulary(source: GGUFFile) -> Vocabulary:
    pieces = source.get_list("tokenizer.ggml.tokens", str)
    types = list(source.get_list("tokenizer.ggml.token_type", int, [])) or [int(PieceType.NORMAL)] * len(pieces)
    if len(types) != len(pieces):
        raise ModelFileError(f"{source.path}: the tokenizer has {len(pieces)} tokens but {len(types)} token types")
    vocabulary = Vocabulary(pieces, types, source.get_list("tokenizer.ggml.scores", float, []))
    for name in ("bos", "eos", "eot", "eom"):  # special whatever type the file gives them
        if (id := _token_id(source, name, vocabulary)) is not None:
            types[id] = PieceType.CONTROL
    return vocabulary


def _merges(source: GGUFFile, ids: dict[str, int]) -> list[tuple[str, str]]:
    lines = source.get_list("tokenizer.ggml.merges", str)
    # A space divides the two; it may also be the first character of the left one.
    merges = [
        (left, right)
        for line in lines
        if (left := line[: (cut := line.find(" ", 1))]) in ids
        and (right := line[cut + 1 :]) in ids
        and left + right in ids
    ]
    if len(merges) != len(lines):
        raise ModelFileError(
            f"{source.path}: {len(lines) - len(merges)} of the tokenizer's {len(lines)} merges are of tokens that are"
            " not in its vocabulary"
        )
    return merges


def _pre_tokenizer(source: GGUFFile) -> PreTokenizer:
    name = source.get_str("tokenizer.ggml.pre", DEFAULT_PRE_TOKENIZER)
    if name not in PRE_TOKENIZERS:
        logger.warning(
            "%s: splits words in a way named %r that is not known; the default is used, and answers may be worse",
            source.path,
            name,
        )
    return PRE_TOKENIZERS.get(name, PRE_TOKENIZERS[DEFAULT_PRE_TOKENIZER])


def _token_id(source: GGUFFile, name: str, vocabulary: Vocabulary, default: int | None = None) -> int | None:
    id = source.get_int(f"tokenizer.ggml.{name}_token_id", default)
    return id if id is not None and 0 <= id < len(vocabulary.pieces) else None


def _parts(
    source: GGUFFile,
    vocabulary: Vocabulary,
    backend: Tokenizer,
    token_bytes: TokenBytes,
    *,
    bos: int | None,
    eos: int | None,
    first: int | None,
    last: int | None,
) -> TokenizerParts:
    added = vocabulary.added_ids()
    swallowing = _is_phi3(source)
    backend.add_tokens(
        [vocabulary.added_token(id, swallowing and vocabulary.pieces[id] not in _PHI3_KEEPS_SPACE) for id in added]
    )
    return TokenizerParts(
        backend=backend,
        token_bytes=token_bytes,
        vocab_size=len(vocabulary.pieces),
        added_ids=frozenset(added),
        special_ids=frozenset(vocabulary.special_ids()),
        bos_id=bos,
        eos_ids=_end_ids(source, vocabulary, eos),
        prefix_ids=() if first is None else (first,),
        suffix_ids=() if last is None else (last,),
    )


def _is_phi3(source: GGUFFile) -> bool:
    """Phi-3's special tokens, but for some, take the white space after them along; the format has no key for it."""
    name = source.get_str("general.name", "").lower()
    return "phi-3" in name or "phi3" in name


def _end_ids(source: GGUFFile, vocabulary: Vocabulary, eos: int | None) -> tuple[int, ...]:
    named = (eos, *(_token_id(source, name, vocabulary) for name in ("eot", "eom")))
    by_text = {
        vocabulary.pieces[id]: id
        for id in vocabulary.special_ids()
        if vocabulary.pieces[id] in _END_TOKENS and vocabulary.types[id] == PieceType.CONTROL
    }
    if all(piece in by_text for piece in _HARMONY_TURN_ENDS):
        by_text.pop("<|end|>", None)
    return tuple(dict.fromkeys(id for id in (*named, *by_text.values()) if id is not None))
