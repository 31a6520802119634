import os
import shutil
import subprocess
from pathlib import Path

import pytest
from drawn_seed import drawn_seed
from native_paths import INSTRUCTION_SETS

NATIVE = Path(__file__).parents[2] / "native"
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"]
VNNI = ["-mavx512vnni"] if "avx512_vnni" in INSTRUCTION_SETS else ["-include", str(NATIVE / "test/modelled_vnni.h")]
HAS_PAIRS = "avx512_bf16" in INSTRUCTION_SETS

with_avx512 = pytest.mark.skipif("avx512" not in INSTRUCTION_SETS, reason="the tile kernels are made of AVX-512 too")


def what_differs(program: str, directory: Path, *sources: str) -> str:
    """In two ways, as a program of native/test tells. It models tile instructions, so that they can be tried without them."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    flags = ["-std=c++20", "-O1", "-ffp-contract=fast", *AVX512, *VNNI, *(["-mavx512bf16"] if HAS_PAIRS else [])]
    paths = [str(NATIVE / "test" / program), *(str(NATIVE / "src" / source) for source in sources)]
    subprocess.run([compiler, *flags, *paths, "-o", str(directory / "program")], check=True, capture_output=True)
    return subprocess.run([directory / "program", str(drawn_seed(program))], capture_output=True, text=True).stdout


@with_avx512
def test_attention_by_tiles_is_attention_by_vectors_to_the_bit(tmp_path: Path) -> None:
    assert what_differs("tile_model.cpp", tmp_path) == f"0 of {72 if HAS_PAIRS else 48} differ\n"


@with_avx512
@pytest.mark.skipif(not HAS_PAIRS, reason="where there are tiles, there are products of pairs")
def test_float_layers_by_tiles_are_those_by_vectors_to_the_bit(tmp_path: Path) -> None:
    assert what_differs("float_tiles.cpp", tmp_path, "packed.cpp") == "0 of 144 differ\n"


@with_avx512
def test_quantized_layers_by_tiles_are_those_by_vectors_to_the_bit(tmp_path: Path) -> None:
    assert what_differs("quantized_tiles.cpp", tmp_path, "packed.cpp") == "0 of 223 differ\n"


@with_avx512
def test_layers_with_half_of_the_multiplications_are_those_by_vectors_to_the_bit(tmp_path: Path) -> None:
    assert what_differs("halved_layers.cpp", tmp_path, "packed.cpp") == "0 of 75 differ\n"
