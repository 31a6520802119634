from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from drawn_seed import drawn_seed

NATIVE = Path(__file__).parents[2] / "native"


@pytest.mark.parametrize("flags", [["-O2"], ["-O1", "-g", "-fsanitize=thread"]], ids=["plain", "thread sanitizer"])
def test_each_task_is_done_once_by_its_own_call(flags: list[str], tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    sources = [str(NATIVE / "test/thread_pool.cpp"), str(NATIVE / "src/thread_pool.cpp")]
    built = subprocess.run(
        [compiler, "-std=c++20", "-pthread", *flags, *sources, "-o", str(tmp_path / "program")], capture_output=True
    )
    if built.returncode != 0 and b"tsan" in built.stderr:
        pytest.skip("this compiler comes without a thread sanitizer")
    assert built.returncode == 0, built.stderr.decode()
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # of another sanitizer
    command = [tmp_path / "program", str(drawn_seed("thread pool"))]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if "FATAL: ThreadSanitizer: unexpected memory mapping" in ran.stderr:
        pytest.skip("the sanitizer cannot lay out its memory under this kernel")
    assert (ran.stdout, ran.returncode) == ("0 wrong\n", 0), ran.stderr
