"""TLS: one context for the life of the server, whose certificate can be replaced."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Literal

from trivium.faults import fault_point
from trivium.types.errors import ConfigError

TlsVersion = Literal["1.2", "1.3"]
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class Tls:
    def __init__(self, certificate: Path, key: Path | None, least: TlsVersion) -> None:
        """`certificate`: PEM, the chain with it; `key`: None where it stands in the same file."""
        self._certificate = certificate
        self._key = key
        self._least = least
        self.context = self._read()

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = VERSIONS[self._least]
        context.set_alpn_protocols(["http/1.1"])
        self._load_into(context)
        return context

    def _load_into(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as error:
            reason = error.reason or "the file is not PEM, or its key is locked by a password"
            raise ConfigError(f"the TLS certificate {self._certificate} cannot be used: {reason}") from None
        except OSError as error:
            raise ConfigError(f"the TLS certificate {self._certificate} cannot be read: {error.strerror}") from None

    def reload(self) -> None:
        """New connections get the new certificate; open ones stay as they are. What is wrong changes nothing."""
        self._read()
        fault_point("access.read_certificate")
        self._load_into(self.context)


def _no_password() -> str:
    """Rather than ask for it on a terminal that nobody watches."""
    return ""
