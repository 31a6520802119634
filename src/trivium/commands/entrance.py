"""The entrance that `trivium serve` was told to have, read and checked before anything slow begins."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from trivium.commands.settings import AccessSettings
from trivium.serve.access.access_log import AccessLog
from trivium.serve.access.entrance import Entrance
from trivium.serve.access.keyring import Keyring
from trivium.serve.access.keys import key_of
from trivium.serve.access.tls import Tls
from trivium.serve.listen import is_local

KEY_VARIABLE = "TRIVIUM_API_KEY"


def read_entrance(settings: AccessSettings, listener: socket.socket) -> Entrance:
    """Raises ConfigError where a file or a key cannot be used: a server that was to be locked does not open."""
    return Entrance(
        keyring=_read_keys(settings),
        opens_metrics=settings.open_metrics,
        is_local=is_local(listener),
        hosts=settings.allowed_host,
        origins=settings.cors_origin,
        tls=_read_tls(settings),
        log=AccessLog(settings.access_log) if settings.access_log is not None else None,
    )


def _read_keys(settings: AccessSettings) -> Keyring:
    keys = [key_of(secret, f"api-key-{number}") for number, secret in enumerate(settings.api_key, 1)]
    secret = os.environ.pop(KEY_VARIABLE, None)  # the engine's process does not need to know it
    if secret is not None:
        keys.append(key_of(secret, KEY_VARIABLE))
    return Keyring(keys, _path(settings.api_key_file), shares_prefixes=settings.share_prefixes)


def _read_tls(settings: AccessSettings) -> Tls | None:
    certificate = _path(settings.tls_cert)
    if certificate is None:
        return None
    return Tls(certificate, _path(settings.tls_key), settings.tls_min_version)


def _path(given: str | None) -> Path | None:
    return None if given is None else Path(given).expanduser()
