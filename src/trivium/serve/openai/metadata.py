"""Metadata that clients attach to what they store: a few short strings by name."""

from __future__ import annotations

from collections.abc import Mapping

from trivium.serve.errors import invalid
from trivium.serve.limits import Limits


def check_metadata(metadata: Mapping[str, str] | None, limits: Limits) -> None:
    if not metadata:
        return
    if len(metadata) > limits.metadata_entries:
        raise invalid(
            f"metadata may have {limits.metadata_entries} entries at most, but has {len(metadata)}", "metadata"
        )
    for key, value in metadata.items():
        if len(key) > limits.metadata_key_chars:
            raise invalid(
                f"a key in metadata may have {limits.metadata_key_chars} characters, but one has {len(key)}",
                "metadata",
            )
        if len(value) > limits.metadata_value_chars:
            raise invalid(
                f"a value in metadata may have {limits.metadata_value_chars} characters, but one has {len(value)}",
                "metadata",
            )
