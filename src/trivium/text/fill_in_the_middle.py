"""Fill-in-the-middle: prompts for models that were taught to write what stands between a prefix and a suffix."""

from __future__ import annotations

from msgspec import Struct

from trivium.text.tokenizer import Tokenizer


class FimTokens(Struct, frozen=True):
    """The tokens that a family writes around the parts; most put the prefix first."""

    prefix: str
    suffix: str
    middle: str
    is_suffix_first: bool = False


FAMILIES = (
    FimTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    FimTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    FimTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    FimTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    FimTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    FimTokens("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    FimTokens("[PREFIX]", "[SUFFIX]", "", is_suffix_first=True),  # Codestral
)
# What ends a middle, beside the model's end tokens.
ENDS = ("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|file_separator|>", "<|repo_name|>", "▁<EOT>", "<EOT>")


class FillInTheMiddle:
    def __init__(self, tokenizer: Tokenizer, family: FimTokens) -> None:
        self._tokenizer = tokenizer
        self._family = family
        self.end_ids = [id for name in ENDS if (id := tokenizer.token_id(name)) is not None]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> FillInTheMiddle | None:
        """None: the model has no tokens for it."""
        for family in FAMILIES:
            marks = [mark for mark in (family.prefix, family.suffix, family.middle) if mark]
            if all(tokenizer.token_id(mark) is not None for mark in marks):
                return cls(tokenizer, family)
        return None

    def prompt(self, prefix: str, suffix: str, add_special_tokens: bool = True) -> list[int]:
        """Tokens after which the model writes what stands between the two."""
        family = self._family
        before = [*self._mark(family.prefix), *self._tokenizer.encode(prefix, add_special_tokens=False)]
        after = [*self._mark(family.suffix), *self._tokenizer.encode(suffix, add_special_tokens=False)]
        parts = [*after, *before] if family.is_suffix_first else [*before, *after]
        return [*self._start(add_special_tokens), *parts, *self._mark(family.middle)]

    def _start(self, add_special_tokens: bool) -> list[int]:
        """The token that begins every text, if the tokenizer puts one there."""
        bos = self._tokenizer.bos_id
        begins = add_special_tokens and bos is not None and self._tokenizer.encode("")[:1] == [bos]
        return [bos] if begins and bos is not None else []

    def _mark(self, name: str) -> list[int]:
        id = self._tokenizer.token_id(name) if name else None
        return [] if id is None else [id]
