"""A step's results lie where the last step's lay: memory that the system takes back has to be found and cleared anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trivium.store import ModelStore

PROBE = Path(__file__).with_name("pages_probe.py")


@pytest.mark.parametrize("num_rows", [1, 4, 9])
def test_a_decoding_step_asks_the_system_for_no_pages(num_rows: int) -> None:
    # In a process of its own: in one that has run for long the allocator holds memory of any size.
    command = [sys.executable, str(PROBE), str(ModelStore().resolve("smollm2")), str(num_rows)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert float(told.stdout) <= 8
