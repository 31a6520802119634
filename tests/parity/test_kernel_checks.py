"""The checks of the kernels go red where kernels are wrong, lost or not built."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from trivium.kernels import checks
from trivium.kernels.native import native_state
from trivium.types.errors import ConfigError

needs_native = pytest.mark.skipif("native" not in native_state(), reason="the native kernels were not built")


def not_built(*_: Any, **__: Any) -> Any:
    raise ConfigError("the native kernels were not built")


def test_a_torch_that_multiplies_wrongly_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_torch_op().state == "ok"
    monkeypatch.setattr(torch, "eye", lambda size: torch.ones(size, size))
    check = checks.check_torch_op()
    assert check.state == "fail" and "install torch anew" in check.remedy


@needs_native
def test_a_native_kernel_that_is_wrong_in_its_trial_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_native_kernels().state == "ok"
    monkeypatch.setattr(checks.linear, "reference", lambda x, weight, bias: x @ weight.T + 1.0)
    check = checks.check_native_kernels()
    assert check.state == "fail" and "--kernels reference" in check.remedy


def test_kernels_that_were_not_built_are_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "NativeKernels", not_built)
    monkeypatch.setattr(checks, "load_extension", not_built)
    for check in (checks.check_native_kernels(), checks.check_instruction_sets(frozenset())):
        assert check.state == "warn" and "C++ compiler" in check.remedy


def test_kernels_of_other_sources_are_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trivium._native", ModuleType("trivium._native"))
    for check in (checks.check_native_kernels(), checks.check_instruction_sets(frozenset())):
        assert check.state == "warn" and "built from other sources" in check.measured
        assert "install trivium again" in check.remedy


class FewSets:
    def instruction_sets(self) -> list[tuple[str, bool, str]]:
        return [("baseline", True, ""), ("avx2", False, "its trial gave wrong numbers")]


def test_an_instruction_set_that_the_processor_has_and_nobody_uses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "load_extension", FewSets)
    check = checks.check_instruction_sets(frozenset({"avx2"}))
    assert check.state == "warn" and check.measured == "baseline; not avx2: its trial gave wrong numbers"
    assert checks.check_instruction_sets(frozenset()).state == "ok"
