"""All API keys of a server, and the callers that they stand for."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from trivium.faults import fault_point
from trivium.serve.access.allowance import Allowance
from trivium.serve.access.caller import ANYBODY, Caller
from trivium.serve.access.keys import Key, digest_of, read_key_file
from trivium.types.errors import ConfigError


class Keyring:
    """Without any key, anybody may ask."""

    def __init__(self, keys: Sequence[Key] = (), file: Path | None = None, *, shares_prefixes: bool = False) -> None:
        """`keys` stay; those of the file are read again by `reload`. `shares_prefixes`: callers reuse each other's."""
        self._fixed = tuple(keys)
        self._file = file
        self._shares_prefixes = shares_prefixes
        self._callers: dict[bytes, Caller] = {}  # by the digest of the secret
        self.reload()

    def reload(self) -> None:
        """What each caller has used of its allowance stays used. Where the file is wrong, nothing changes."""
        fault_point("access.read_keys")
        keys = [*self._fixed, *(read_key_file(self._file) if self._file is not None else ())]
        _check_unique(keys)
        known = {caller.name: caller for caller in self._callers.values()}
        self._callers = {key.digest: self._caller(key, known.get(key.name, ANYBODY).allowance) for key in keys}

    def _caller(self, key: Key, allowance: Allowance | None) -> Caller:
        if not key.rates.are_limited:
            allowance = None
        elif allowance is None:
            allowance = Allowance(key.name, key.rates)
        else:
            allowance.change(key.rates)
        return Caller(
            name=key.name,
            priority=key.priority,
            models=key.models,
            is_admin=key.is_admin,
            has_own_prefixes=not self._shares_prefixes,
            allowance=allowance,
        )

    @property
    def is_needed(self) -> bool:
        return bool(self._callers)

    @property
    def has_file(self) -> bool:
        return self._file is not None

    @property
    def names(self) -> list[str]:
        return [caller.name for caller in self._callers.values()]

    def caller_of(self, secrets: Iterable[str]) -> Caller | None:
        """Who knows one of these secrets. How long it takes does not tell how much of one was right."""
        fault_point("access.caller")
        if not self._callers:
            return ANYBODY
        found = None
        for secret in secrets:
            digest = digest_of(secret)
            for known, caller in self._callers.items():
                if hmac.compare_digest(digest, known):
                    found = caller
        return found

    def on_behalf_of(self, name: str) -> Caller:
        """Whoever left work here that is done while they are away. Who does it waits until it may begin."""
        found = {caller.name: caller for caller in self._callers.values()}.get(name)
        if found is not None:
            return replace(found, is_let_in=True)
        if not name:
            return ANYBODY
        return Caller(name=name, is_admin=False, has_own_prefixes=not self._shares_prefixes)


def _check_unique(keys: Sequence[Key]) -> None:
    for what, values in (("name", [key.name for key in keys]), ("secret", [key.digest.hex() for key in keys])):
        if len(set(values)) < len(values):
            twice = next(key.name for key, value in zip(keys, values, strict=True) if values.count(value) > 1)
            raise ConfigError(f"two API keys have the same {what}; one of them is {twice!r}")
