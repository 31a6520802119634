"""The rate at which this machine's threads read memory, by a loop in C++ that is compiled when it is first asked for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "read_loop.cpp"


def read_bandwidth(nbytes: int, threads: int, folder: Path) -> float:
    """Bytes a second, the best of some passes over so many bytes."""
    program = folder / SOURCE.stem
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CXX", "c++")
        flags = ["-std=c++20", "-O3", "-march=native", "-pthread"]
        subprocess.run([compiler, *flags, str(SOURCE), "-o", str(program)], check=True)
    result = subprocess.run([str(program), str(nbytes), str(threads)], check=True, capture_output=True, text=True)
    return float(result.stdout.split()[0])
