"""Triton's interpreter, which tests/conftest.py turns on where there is no GPU."""

from __future__ import annotations

import os
from functools import cache

import pytest

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"


@cache
def set_up_interpreter() -> None:
    """Once in a process, whichever of its tests comes first."""
    _let_scalars_be_indices()
    _patch_once_for_each_launch()


def multiply_rows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies by numpy, whose library sums a row in an order that depends on the row's place in the matrix
    on some processors (AVX2 without AVX-512). A GPU's instruction does not, and einsum does not."""
    import numpy
    from triton.runtime import interpreter

    class Numpy:
        def __getattr__(self, name: str):
            return getattr(numpy, name)

        @staticmethod
        def matmul(a, b, dtype):
            return numpy.einsum("...mk,...kn->...mn", a, b, dtype=dtype, casting="unsafe")

    monkeypatch.setattr(interpreter, "np", Numpy())


def _let_scalars_be_indices() -> None:
    """Triton 3.6 makes its scalars arrays of one element, which numpy 2.4 no longer takes for an index of a loop."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patch(tensor, scope) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def _patch_once_for_each_launch() -> None:
    """The language is patched at every launch, which is right, and again at every call of a function within it, where all
    but a file's first change nothing and take a sixth of the time."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang
    patched: set[int] = set()  # files, by their globals, that the launch under way has come through

    def patch(fn):
        if id(fn.__globals__) in patched:
            return None
        patched.add(id(fn.__globals__))
        scope = original(fn)
        restore = scope.restore

        def end_launch() -> None:
            patched.clear()
            restore()

        scope.restore = end_launch
        return scope

    interpreter._patch_lang = patch
