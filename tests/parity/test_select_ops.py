"""Which provider runs, and what is said when the wished one cannot."""

import hashlib
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trivium.kernels.native import INTERFACE_VERSION, native_state, usable_instruction_sets
from trivium.kernels.ops import OP_NAMES
from trivium.kernels.select import Kernels, select_ops
from trivium.types.errors import ConfigError


def test_the_reference_runs_when_asked_for() -> None:
    providers = select_ops("reference").providers
    assert {name: provider.name for name, provider in providers.items()} == dict.fromkeys(OP_NAMES, "reference")


def test_auto_takes_the_best_instruction_set_that_passed_its_trial() -> None:
    try:
        best = usable_instruction_sets()[-1]
    except ConfigError as error:
        pytest.skip(str(error))
    assert select_ops("auto", num_threads=1).providers["linear"].name == f"native {best}"
    assert select_ops("native", num_threads=1).providers["linear"].name == f"native {best}"


@pytest.mark.parametrize("kernels", ["auto", "native"])
def test_a_lesser_instruction_set_runs_when_asked_for(kernels: Kernels) -> None:
    assert select_ops(kernels, instruction_set="baseline", num_threads=1).providers["linear"].name == "native baseline"


def test_an_instruction_set_that_cannot_run_is_refused_with_those_that_can() -> None:
    with pytest.raises(ConfigError, match=r"no such instruction set: sse; this machine runs baseline"):
        select_ops("auto", instruction_set="sse", num_threads=1)


def test_an_instruction_set_means_nothing_to_the_reference() -> None:
    with pytest.raises(ConfigError, match="instruction_set=avx2"):
        select_ops("reference", instruction_set="avx2")


def test_without_the_extension_auto_runs_the_reference_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trivium._native", None)
    provider = select_ops("auto").providers["linear"]
    assert provider.name == "reference"
    assert "installed without them" in provider.reason
    assert "installed without them" in native_state() and "reference runs" in native_state()


def test_without_the_extension_native_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trivium._native", None)
    with pytest.raises(ConfigError, match="installed without them"):
        select_ops("native")


def test_an_extension_of_other_sources_is_not_called_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one is that was built before the sources changed: it may lack a function, or take other things."""
    monkeypatch.setitem(sys.modules, "trivium._native", ModuleType("trivium._native"))
    provider = select_ops("auto").providers["linear"]
    assert provider.name == "reference"
    assert "built from other sources" in provider.reason and "install it again" in provider.reason
    assert "built from other sources" in native_state() and "reference runs" in native_state()
    with pytest.raises(ConfigError, match="built from other sources"):
        select_ops("native")


def test_the_interface_of_the_extension_is_that_of_its_version() -> None:
    """A change of what it offers or takes must change INTERFACE_VERSION, or an old one would be called as if it were new."""
    source = (Path(__file__).parents[2] / "native" / "src" / "module.cpp").read_text()
    names = re.findall(r'"(\w+)"', source.partition("NB_MODULE")[2])
    assert (INTERFACE_VERSION, hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]) == (9, "25c747bf3112f870")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_activations_that_the_native_kernels_do_not_take_are_told_before_they_run(dtype: str) -> None:
    reason = f"the native kernels take float32 activations, and these are {dtype}"
    assert {provider.name for provider in select_ops("auto", dtype=dtype).providers.values()} == {"reference"}
    assert select_ops("auto", dtype=dtype).providers["linear"].reason == reason
    with pytest.raises(ConfigError, match=reason):
        select_ops("native", dtype=dtype)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler, hence no native kernels")
def test_where_there_is_a_compiler_the_native_kernels_were_built() -> None:
    """An installation goes on without them, and the tests of native kernels are then skipped: this one is not."""
    assert native_state().startswith("native kernels run with")
