"""The API keys that `trivium serve` was given: on the command line, in the environment, in a file."""

from __future__ import annotations

import os
from pathlib import Path

from trivium.commands.settings import AccessSettings
from trivium.serve.access.keyring import Keyring
from trivium.serve.access.keys import key_of

VARIABLE = "TRIVIUM_API_KEY"


def read_keys(settings: AccessSettings) -> Keyring:
    """Raises ConfigError where one is none: a server that was to be locked does not open without a lock."""
    keys = [key_of(secret, f"api-key-{number}") for number, secret in enumerate(settings.api_key, 1)]
    secret = os.environ.pop(VARIABLE, None)  # the engine's process does not need to know it
    if secret is not None:
        keys.append(key_of(secret, VARIABLE))
    file = Path(settings.api_key_file).expanduser() if settings.api_key_file is not None else None
    return Keyring(keys, file, shares_prefixes=settings.share_prefixes)
