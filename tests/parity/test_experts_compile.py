"""What the interpreter runs, a compiler may refuse: the experts' kernels are compiled for a card that need not be here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SHARED_BYTES_OF_A_PROGRAM = 227 * 1024  # at most, on compute capability 9.0


def test_experts_compile_for_an_h200_and_fit_its_shared_memory(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    probe = Path(__file__).parent / "experts_compile_probe.py"
    told = subprocess.run([sys.executable, str(probe)], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-3000:]
    compiled = json.loads(told.stdout)
    assert {"_router_parts", "_norm_and_choose", "_sorted_up", "_sorted_down", "_gather"} <= {
        name for name, _ in compiled
    }
    too_large = [(name, size) for name, size in compiled if size > SHARED_BYTES_OF_A_PROGRAM]
    assert too_large == []
