"""What stands between the connections of clients and the routes: settings and what was read for them."""

from __future__ import annotations

from msgspec import Struct

from trivium.serve.access.access_log import AccessLog
from trivium.serve.access.keyring import Keyring
from trivium.serve.access.tls import Tls


class Entrance(Struct, frozen=True, kw_only=True):
    keyring: Keyring
    opens_metrics: bool = False  # also to those without a key
    is_local: bool = False  # only this machine reaches the server
    hosts: tuple[str, ...] = ()  # names of a local server beside its own
    origins: tuple[str, ...] = ()  # of pages that browsers may let ask here
    tls: Tls | None = None
    log: AccessLog | None = None

    @property
    def has_files(self) -> bool:
        return self.keyring.has_file or self.tls is not None or self.log is not None

    def reload(self) -> None:
        """Reads its files again. Raises at the first that is wrong, which then stays as it was, and those after it."""
        self.keyring.reload()
        if self.tls is not None:
            self.tls.reload()
        if self.log is not None:
            self.log.reopen()

    def describe(self) -> str:
        """Who may ask, for the start report."""
        if self.keyring.is_needed:
            return f"whoever has one of {len(self.keyring.names)} keys: {', '.join(self.keyring.names)}"
        if self.is_local:
            return "every program on this machine; no API key is set"
        return "EVERYBODY who reaches this address; no API key is set"
