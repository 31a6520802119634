"""Names of records, of the kinds that OpenAI's clients know. They cannot be guessed."""

from __future__ import annotations

import secrets


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(16)
