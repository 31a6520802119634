"""API keys, and the file in which each has a name and what it allows."""

from __future__ import annotations

import hashlib
import logging
import re
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from trivium.serve.access.allowance import Rates
from trivium.types.errors import ConfigError

logger = logging.getLogger("trivium.serve")

AtLeastOne = Annotated[int, Meta(ge=1, le=2**31 - 1)]

_SECRET = re.compile(r"[!-~]+")  # what can be sent in a header


class Key(Struct, frozen=True, kw_only=True):
    """Of the secret, only what is needed to know it again."""

    name: str
    digest: bytes  # SHA-256 of the secret
    priority: int | None = None
    rates: Rates = Rates()
    models: frozenset[str] | None = None
    is_admin: bool = True


class _Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._@-]{1,64}$")]
    key: str | None = None
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    requests_per_minute: AtLeastOne | None = None
    tokens_per_minute: AtLeastOne | None = None
    concurrent_requests: AtLeastOne | None = None
    models: list[str] | None = None
    admin: bool = False


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    key: Annotated[list[_Entry], Meta(min_length=1)]


def key_of(secret: str, name: str) -> Key:
    """One that allows everything."""
    return Key(name=name, digest=digest_of(_sendable(secret, name)))


def read_key_file(path: Path) -> list[Key]:
    """TOML with a `[[key]]` for each. Raises ConfigError, in which no secret is named."""
    try:
        file = msgspec.convert(tomllib.loads(path.read_text()), _File)
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error if isinstance(error, tomllib.TOMLDecodeError) else "it is not UTF-8"
        raise ConfigError(f"the key file {path} is not TOML: {reason}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"the key file {path} is not as it should be: {error}") from None
    if path.stat().st_mode & 0o004 and any(entry.key is not None for entry in file.key):
        logger.warning("the key file %s holds keys that every user of this machine can read", path)
    return [_key(entry, path) for entry in file.key]


def _key(entry: _Entry, path: Path) -> Key:
    if (entry.key is None) == (entry.sha256 is None):
        raise ConfigError(f"the key file {path} must give {entry.name!r} either a key or a sha256")
    return Key(
        name=entry.name,
        digest=bytes.fromhex(entry.sha256) if entry.sha256 else digest_of(_sendable(entry.key or "", entry.name)),
        priority=entry.priority,
        rates=Rates(entry.requests_per_minute, entry.tokens_per_minute, entry.concurrent_requests),
        models=None if entry.models is None else frozenset(entry.models),
        is_admin=entry.admin,
    )


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _sendable(secret: str, name: str) -> str:
    if not _SECRET.fullmatch(secret):
        raise ConfigError(f"the API key {name!r} must be printable ASCII without spaces, and not empty")
    return secret
