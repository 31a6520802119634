"""Triton's interpreter, which tests/conftest.py turns on where there is no GPU."""

from __future__ import annotations

import os

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"


def let_scalars_be_indices() -> None:
    """Triton 3.6 makes its scalars arrays of one element, which numpy 2.4 no longer takes for an index of a loop."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patch(tensor, scope) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch
