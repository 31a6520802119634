"""How many files, and so how many connections, a command may have open."""

from __future__ import annotations

import resource


def raise_open_files_limit() -> None:
    """As far as the system lets this process: each client is a connection, and the usual soft limit is far lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
