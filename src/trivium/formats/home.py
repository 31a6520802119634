"""Where Trivium keeps what it can fetch or make again."""

from __future__ import annotations

import os
from pathlib import Path


def default_root() -> Path:
    """TRIVIUM_HOME, or `trivium` in the user's cache directory."""
    if home := os.environ.get("TRIVIUM_HOME"):
        return Path(home).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "trivium"
