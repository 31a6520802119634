"""Names of stored models: `smollm2`, `org/name`, `name:tag`. A name is never a path."""

from __future__ import annotations

import re

from msgspec import Struct

from trivium.types.errors import ModelFileError

MAX_NAME_LENGTH = 160

_PIECE = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_NAME = re.compile(rf"(?:{_PIECE}/)?{_PIECE}(?::{_PIECE})?")


class ModelName(Struct, frozen=True):
    text: str

    @classmethod
    def parse(cls, text: str) -> ModelName:
        # `--` is what `/` becomes on disk; with it or `..` in a name, two names could share a directory.
        if len(text) > MAX_NAME_LENGTH or not _NAME.fullmatch(text) or "--" in text or ".." in text:
            raise ModelFileError(
                f"{text[:MAX_NAME_LENGTH]!r} is not a model name: a name is like `smollm2`, `org/name` or `name:tag`,"
                f" of letters, digits, `.`, `_` and `-`, at most {MAX_NAME_LENGTH} long"
            )
        return cls(text)

    @classmethod
    def suggest(cls, text: str) -> ModelName:
        """The nearest name to a file's."""
        cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
        cleaned = re.sub(r"-{2,}", "-", re.sub(r"\.{2,}", ".", cleaned))[:MAX_NAME_LENGTH].strip("._-")
        if not cleaned:
            raise ModelFileError(f"no model name can be made from {text[:MAX_NAME_LENGTH]!r}; give one")
        return cls.parse(cleaned)

    @property
    def directory(self) -> str:
        """One path component, a different one for every name."""
        return self.text.replace("/", "--").replace(":", "@")
