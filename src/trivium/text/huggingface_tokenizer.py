"""A tokenizer from the files of a Hugging Face directory: tokenizer.json, or a SentencePiece tokenizer.model."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from tokenizers import AddedToken, Tokenizer

from trivium.formats.huggingface import HFDirectory
from trivium.text import sentencepiece
from trivium.text.special_tokens import TOKENIZER_CONFIG_FILE, read_special_tokens
from trivium.text.token_bytes import SENTENCEPIECE_BYTES, TokenBytes, token_bytes_of_decoder
from trivium.text.tokenizer_parts import TokenizerParts
from trivium.types.errors import ModelFileError

TOKENIZER_FILE = "tokenizer.json"
ADDED_TOKENS_FILE = "added_tokens.json"
SENTENCEPIECE_FILE = "tokenizer.model"


class _TokenizerJson(msgspec.Struct):
    """What is read of tokenizer.json beside the tokenizer itself."""

    decoder: dict[str, Any] | None = None


class _AddedToken(msgspec.Struct):
    """An entry of `added_tokens_decoder` in tokenizer_config.json."""

    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None  # unless special

    def for_backend(self) -> AddedToken:
        return AddedToken(
            self.content,
            single_word=self.single_word,
            lstrip=self.lstrip,
            rstrip=self.rstrip,
            normalized=not self.special if self.normalized is None else self.normalized,
            special=self.special,
        )


class _Loaded(NamedTuple):
    backend: Tokenizer
    token_bytes: TokenBytes
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]


def read_huggingface_tokenizer(source: HFDirectory) -> TokenizerParts:
    if (source.path / TOKENIZER_FILE).exists():
        loaded = _from_tokenizer_json(source)
    elif (source.path / SENTENCEPIECE_FILE).exists():
        loaded = _from_sentencepiece(source)
    else:
        raise ModelFileError(f"{source.path}: has neither {TOKENIZER_FILE} nor {SENTENCEPIECE_FILE}")
    backend = loaded.backend
    special = read_special_tokens(source)
    _add_tokens(backend, source, special)
    added = backend.get_added_tokens_decoder()
    return TokenizerParts(
        backend=backend,
        token_bytes=loaded.token_bytes,
        vocab_size=max(backend.get_vocab_size(with_added_tokens=True), 1 + max(added, default=-1)),
        added_ids=frozenset(added),
        special_ids=frozenset(id for id, token in added.items() if token.special),
        bos_id=_bos_id(backend, source, special),
        eos_ids=_eos_ids(backend, source, special),
        prefix_ids=loaded.prefix_ids,
        suffix_ids=loaded.suffix_ids,
    )


def _from_tokenizer_json(source: HFDirectory) -> _Loaded:
    path = source.path / TOKENIZER_FILE
    data = path.read_bytes()
    try:
        token_bytes = token_bytes_of_decoder(msgspec.json.decode(data, type=_TokenizerJson).decoder)
        backend = Tokenizer.from_buffer(data)
    except msgspec.MsgspecError as error:
        raise ModelFileError(f"{path}: is not a tokenizer: {error}") from None
    except KeyError as error:
        raise ModelFileError(f"{path}: its decoder has no {error}") from None
    except ValueError as error:  # what the library raises for anything it cannot read
        raise ModelFileError(f"{path}: cannot be read as a tokenizer: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    return _Loaded(backend, token_bytes, *_surroundings(backend))


def _from_sentencepiece(source: HFDirectory) -> _Loaded:
    path = source.path / SENTENCEPIECE_FILE
    model = sentencepiece.read_model(path.read_bytes(), str(path))
    config = source.read_json(TOKENIZER_CONFIG_FILE)
    space: sentencepiece.SpacePrefix = "never"
    if model.add_dummy_prefix:
        # The older behaviour, which is the default, puts a space after each special token too.
        space = "every" if config.get("legacy", True) else "first"
    backend = sentencepiece.build_tokenizer(model.vocabulary, space, sentencepiece.normalizer_of(model))
    backend.add_tokens([model.vocabulary.added_token(id) for id in model.vocabulary.added_ids()])

    special = read_special_tokens(source)
    bos = backend.token_to_id(special.get("bos_token", "<s>")) if config.get("add_bos_token", True) else None
    eos = backend.token_to_id(special.get("eos_token", "</s>")) if config.get("add_eos_token", False) else None
    return _Loaded(
        backend,
        SENTENCEPIECE_BYTES.stripping(1 if model.add_dummy_prefix else 0),
        prefix_ids=() if bos is None else (bos,),
        suffix_ids=() if eos is None else (eos,),
    )


def _add_tokens(backend: Tokenizer, source: HFDirectory, special: dict[str, str]) -> None:
    """Tokens that stand in the smaller files alone: those added after training, and the named special ones."""
    try:
        wanted = {
            id: _AddedToken(content)
            for content, id in msgspec.convert(source.read_json(ADDED_TOKENS_FILE), dict[str, int]).items()
        }
        entries = source.read_json(TOKENIZER_CONFIG_FILE).get("added_tokens_decoder", {})
        wanted |= msgspec.convert(entries, dict[int, _AddedToken], strict=False)
    except msgspec.ValidationError as error:
        raise ModelFileError(f"{source.path}: its lists of added tokens cannot be read: {error}") from None
    for content in special.values():
        if (id := backend.token_to_id(content)) is not None:
            wanted.setdefault(id, _AddedToken(content, special=True))

    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [(id, token) for id, token in sorted(wanted.items()) if token.content not in known]
    backend.add_tokens([token.for_backend() for _, token in missing])
    for id, token in missing:
        if (given := backend.token_to_id(token.content)) != id:
            raise ModelFileError(f"{source.path}: the added token {token.content!r} has id {id}, but {given} is free")


def _bos_id(backend: Tokenizer, source: HFDirectory, special: dict[str, str]) -> int | None:
    if "bos_token" in special:
        return backend.token_to_id(special["bos_token"])
    id = source.generation_config.get("bos_token_id", source.config.get("bos_token_id"))
    return id if isinstance(id, int) else None


def _eos_ids(backend: Tokenizer, source: HFDirectory, special: dict[str, str]) -> tuple[int, ...]:
    configured = source.generation_config.get("eos_token_id", source.config.get("eos_token_id"))
    ids = configured if isinstance(configured, list) else [configured]
    if "eos_token" in special:
        ids = [*ids, backend.token_to_id(special["eos_token"])]
    return tuple(dict.fromkeys(id for id in ids if isinstance(id, int)))


def _surroundings(backend: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the post-processor puts before and after a text."""
    encoding = backend.encode("a")
    inside = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    if not inside:  # a vocabulary that knows no "a" leaves the specials alone: they go before
        return tuple(encoding.ids), ()
    return tuple(encoding.ids[: inside[0]]), tuple(encoding.ids[inside[-1] + 1 :])
