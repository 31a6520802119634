"""A tokenizer from the files of a Hugging Face directory: tokenizer.json, or a SentencePiece tokenizer.model."""

from __future__ import annotations

from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer, processors

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


def read_huggingface_tokenizer(source: HFDirectory) -> TokenizerParts:
    if (source.path / TOKENIZER_FILE).exists():
        backend, token_bytes = _from_tokenizer_json(source)
    elif (source.path / SENTENCEPIECE_FILE).exists():
        backend, token_bytes = _from_sentencepiece(source)
    else:
        raise ModelFileError(f"{source.path}: has neither {TOKENIZER_FILE} nor {SENTENCEPIECE_FILE}")
    config = source.read_json(TOKENIZER_CONFIG_FILE)
    _add_tokens(backend, source, config)

    added = backend.get_added_tokens_decoder()
    special = read_special_tokens(source)
    bos = _bos_id(backend, source, special)
    eos = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    prefix, suffix = _surroundings(backend)
    # Where the configuration says so, it overrules the post-processor.
    if (add_bos := config.get("add_bos_token")) is not None:
        prefix = (bos,) if add_bos and bos is not None else ()
    if (add_eos := config.get("add_eos_token")) is not None:
        suffix = (eos,) if add_eos and eos is not None else ()
    return TokenizerParts(
        backend=backend,
        token_bytes=token_bytes,
        vocab_size=max(backend.get_vocab_size(with_added_tokens=True), 1 + max(added, default=-1)),
        added_ids=frozenset(added),
        special_ids=frozenset(id for id, token in added.items() if token.special),
        bos_id=bos,
        eos_ids=_eos_ids(source, eos),
        prefix_ids=prefix,
        suffix_ids=suffix,
    )


def _from_tokenizer_json(source: HFDirectory) -> tuple[Tokenizer, TokenBytes]:
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
    return backend, token_bytes


def _from_sentencepiece(source: HFDirectory) -> tuple[Tokenizer, TokenBytes]:
    path = source.path / SENTENCEPIECE_FILE
    model = sentencepiece.read_model(path.read_bytes(), str(path))
    prefix: sentencepiece.SpacePrefix = "never"
    if model.add_dummy_prefix:
        # The older behaviour, which is the default, puts a space after each special token too.
        prefix = "every" if source.read_json(TOKENIZER_CONFIG_FILE).get("legacy", True) else "first"
    backend = sentencepiece.build_tokenizer(model.vocabulary, prefix, sentencepiece.normalizer_of(model))
    backend.add_tokens([model.vocabulary.added_token(id) for id in model.vocabulary.added_ids()])
    bos = read_special_tokens(source).get("bos_token", "<s>")
    if (bos_id := backend.token_to_id(bos)) is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=None, special_tokens=[(bos, bos_id)]
        )
    return backend, SENTENCEPIECE_BYTES.stripping(1 if model.add_dummy_prefix else 0)


def _add_tokens(backend: Tokenizer, source: HFDirectory, config: dict[str, Any]) -> None:
    """Tokens that stand in the smaller files alone: those added after training, and the named special ones."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    wanted = {content: (id, AddedToken(content)) for content, id in source.read_json(ADDED_TOKENS_FILE).items()}
    for id, entry in config.get("added_tokens_decoder", {}).items():
        flags = {name: entry[name] for name in ("single_word", "lstrip", "rstrip", "normalized") if name in entry}
        token = AddedToken(entry["content"], special=entry.get("special", False), **flags)
        wanted[entry["content"]] = (int(id), token)
    for content in read_special_tokens(source).values():
        if (named := backend.token_to_id(content)) is not None:
            wanted.setdefault(content, (named, AddedToken(content, normalized=False, special=True)))
    missing = sorted((entry for content, entry in wanted.items() if content not in known), key=lambda entry: entry[0])
    backend.add_tokens([token for _, token in missing])
    for id, token in missing:
        if (given := backend.token_to_id(token.content)) != id:
            raise ModelFileError(f"{source.path}: the added token {token.content!r} has id {id}, but {given} is free")


def _bos_id(backend: Tokenizer, source: HFDirectory, special: dict[str, str]) -> int | None:
    if "bos_token" in special:
        return backend.token_to_id(special["bos_token"])
    id = source.generation_config.get("bos_token_id", source.config.get("bos_token_id"))
    return id if isinstance(id, int) else None


def _eos_ids(source: HFDirectory, eos: int | None) -> tuple[int, ...]:
    ids = source.generation_config.get("eos_token_id", source.config.get("eos_token_id"))
    listed = ids if isinstance(ids, list) else [ids]
    return tuple(dict.fromkeys(id for id in (*listed, eos) if isinstance(id, int)))


def _surroundings(backend: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the post-processor puts before and after a text."""
    encoding = backend.encode("a")
    inside = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    if not inside:  # a vocabulary that knows no "a" leaves the specials alone: they go before
        return tuple(encoding.ids), ()
    return tuple(encoding.ids[: inside[0]]), tuple(encoding.ids[inside[-1] + 1 :])
