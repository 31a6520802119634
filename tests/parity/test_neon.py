"""The kernels for 64-bit Arm, under an emulator: bit for bit what x86 computes."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from drawn_seed import drawn_seed

NATIVE = Path(__file__).parents[2] / "native"
ARM = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
FLAGS = ["-std=c++20", "-O1", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]

needs_emulator = pytest.mark.skipif(
    platform.machine() != "x86_64" or not (shutil.which(ARM) and shutil.which(EMULATOR)),
    reason=f"{ARM} and {EMULATOR} are not there; make test-neon installs them",
)


def build(directory: Path, compiler: str, units: dict[str, list[str]], *sources: str) -> Path:
    """`units`: sources with flags of their own."""
    objects = []
    for unit, flags in {**units, "src/packed.cpp": ["-ffp-contract=off"]}.items():
        objects.append(str(directory / f"{Path(unit).stem}.o"))
        subprocess.run([compiler, *FLAGS, *flags, "-c", str(NATIVE / unit), "-o", objects[-1]], check=True)
    program = directory / "program"
    paths = [str(NATIVE / source) for source in ("test/fingerprints.cpp", *sources)]
    subprocess.run([compiler, *FLAGS, "-static", *paths, *objects, "-o", str(program)], check=True)
    return program


@pytest.mark.timeout(900)
@needs_emulator
def test_neon_computes_what_avx2_computes_to_the_bit(tmp_path: Path) -> None:
    (tmp_path / "arm").mkdir()
    (tmp_path / "x86").mkdir()
    arm_units = {"src/kernels/baseline.cpp": [], "src/kernels/neon.cpp": ["-march=armv8.2-a+dotprod"]}
    arm = build(tmp_path / "arm", ARM, arm_units, "src/cpu.cpp")
    x86 = build(
        tmp_path / "x86",
        shutil.which(os.environ.get("CXX", "c++")),
        {"src/kernels/avx2.cpp": ["-mavx2", "-mfma", "-mf16c"]},
    )
    seed = str(drawn_seed("neon"))
    emulated = subprocess.run([EMULATOR, arm, seed], check=True, capture_output=True, text=True)
    here = subprocess.run([x86, seed], check=True, capture_output=True, text=True).stdout
    assert emulated.stderr == "neon: the processor has it, and a trial was right\n"
    assert emulated.stdout == here
    assert len(here.splitlines()) > 70
