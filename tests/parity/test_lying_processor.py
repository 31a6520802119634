import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from trivium.kernels.native import load_extension
from trivium.types.errors import ConfigError

NATIVE = Path(__file__).parents[2] / "native"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has instruction sets to probe")
def test_a_processor_that_lies_about_itself_costs_speed_and_not_the_process(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "lying_processor"
    names = ("test/lying_processor.cpp", "src/cpu.cpp", "src/packed.cpp", "src/kernels/baseline.cpp")
    sources = [NATIVE / name for name in names]
    subprocess.run([compiler, "-std=c++20", "-O1", *map(str, sources), "-o", str(program)], check=True)
    result = subprocess.run([program], capture_output=True, text=True, check=True)
    found = dict(line.split(" ", 1) for line in result.stdout.splitlines())
    assert found["baseline"].startswith("1 ")
    assert found["avx2"].startswith("0 ")
    assert found["avx512"].startswith("0 ")
    assert found["avx512_vnni"].startswith("0 ")
    assert found["avx512_bf16"].startswith("0 ")
    assert found["amx"].startswith("0 ")
    try:
        claims = {name: reason for name, _, reason in load_extension().instruction_sets()}
    except ConfigError:
        return
    if "processor has it" in claims["avx2"]:
        assert found["avx2"] == "0 the processor claims it, but computes wrong results"
    if "processor has it" in claims["avx512"]:
        assert found["avx512"] == "0 the processor claims it, but refused an instruction"
    if "processor has it" in claims["avx512_vnni"]:
        assert found["avx512_vnni"] == "0 the processor claims it, but computes wrong results"
    if "processor has it" in claims["avx512_bf16"]:
        assert found["avx512_bf16"] == "0 the processor claims it, but computes wrong results"
    if "processor has it" in claims["amx"]:
        assert found["amx"] == "0 the processor claims it, but computes wrong results"
