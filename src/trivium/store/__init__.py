"""The models on this machine: where they are, where they came from, and how a new one gets here."""

from trivium.store.packaged import DEFAULT_MODEL
from trivium.store.store import ModelStore

__all__ = ["DEFAULT_MODEL", "ModelStore"]
