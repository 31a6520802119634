"""Torch is not let to tiles whose shape the machine hides, of which it would die."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trivium.kernels import checks, torch_tiles
from trivium.kernels.torch_tiles import MOST_WITHOUT_TILES, SETTING, keep_torch_from_hidden_tiles, tiles_are_hidden


def processor(folder: Path, flags: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    return path


def extension(tells: bool) -> ModuleType:
    module = ModuleType("trivium._native")
    module.tells_shape_of_tiles = lambda: tells  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize("tells", [False, True])
def test_tiles_are_hidden_where_the_processor_has_them_and_tells_no_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    monkeypatch.setitem(sys.modules, "trivium._native", extension(tells))
    assert tiles_are_hidden(processor(tmp_path, "fpu amx_tile")) is not tells
    assert not tiles_are_hidden(processor(tmp_path, "fpu avx2"))
    assert not tiles_are_hidden(tmp_path / "nowhere")


def test_where_nobody_can_ask_a_virtual_machine_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trivium._native", None)
    assert tiles_are_hidden(processor(tmp_path, "amx_tile hypervisor"))
    assert not tiles_are_hidden(processor(tmp_path, "amx_tile"))


@pytest.mark.parametrize(
    ("hidden", "given", "told"), [(True, None, MOST_WITHOUT_TILES), (True, "AVX2", None), (False, None, None)]
)
def test_torch_is_held_below_hidden_tiles_unless_the_user_said_otherwise(
    monkeypatch: pytest.MonkeyPatch, hidden: bool, given: str | None, told: str | None
) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr(torch_tiles, "tiles_are_hidden", lambda: hidden)
    monkeypatch.setattr(torch_tiles, "ask_library", lambda: seen.append(os.environ.get(SETTING)))
    monkeypatch.delenv(SETTING, raising=False)
    if given is not None:
        monkeypatch.setenv(SETTING, given)
    keep_torch_from_hidden_tiles()
    assert seen == ([] if told is None else [told])
    assert os.environ.get(SETTING) == given, "processes that this one starts would have it too"


def test_products_of_bfloat16_by_torch_do_not_end_the_process() -> None:
    """In a process of its own, as an engine with the reference's kernels has it."""
    program = """
import torch
from trivium.kernels import linear
x, weight = torch.ones(64, 128, dtype=torch.bfloat16), torch.ones(96, 128, dtype=torch.bfloat16)
assert linear.reference(x, weight, None).float().eq(128).all()
"""
    environment = {name: value for name, value in os.environ.items() if name != SETTING}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr


def test_hidden_tiles_are_told_by_doctor() -> None:
    check = checks.check_torch_tiles(are_hidden=True)
    assert check.state == "warn" and "hides the shape of its tiles" in check.remedy
    assert checks.check_torch_tiles(are_hidden=False).state == "ok"
