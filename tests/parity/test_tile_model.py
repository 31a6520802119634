import os
import shutil
import subprocess
from pathlib import Path

import pytest
from native_paths import INSTRUCTION_SETS

PROGRAM = Path(__file__).parents[2] / "native" / "test" / "tile_model.cpp"
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"]


@pytest.mark.skipif("avx512" not in INSTRUCTION_SETS, reason="the tile kernels are made of AVX-512 too")
def test_attention_by_tiles_is_attention_by_vectors_to_the_bit(tmp_path: Path) -> None:
    """With the tile instructions modelled in C++, so that it can be tried on a processor without them."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    has_pairs = "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    flags = ["-std=c++20", "-O1", "-ffp-contract=fast", *AVX512, *(["-mavx512bf16"] if has_pairs else [])]
    program = tmp_path / "tile_model"
    subprocess.run([compiler, *flags, str(PROGRAM), "-o", str(program)], check=True, capture_output=True)
    seed = str(int.from_bytes(os.urandom(3)))
    result = subprocess.run([program, seed], capture_output=True, text=True)
    assert result.stdout == f"0 of {48 if has_pairs else 24} differ\n", f"seed {seed}"
