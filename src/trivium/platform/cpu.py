"""The CPU: always present, and the oracle for every other platform."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from trivium.platform.contract import Detection
from trivium.types.facts import Capabilities

CGROUP = Path("/sys/fs/cgroup")
INTERESTING_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimd", "sve")


class CpuPlatform:
    name = "cpu"

    def detect(self) -> Detection:
        return Detection(present=True, reason=f"{platform.machine()} processor")

    def capabilities(self) -> Capabilities:
        total, available, memory_source = usable_memory()
        threads, threads_source = usable_threads()
        model, flags = _cpu_model_and_flags()
        return Capabilities(
            platform="cpu",
            device="cpu",
            name=model,
            # Sums are exact to the order in float32, and the native kernels take float32 activations.
            dtypes=("float32", "bfloat16", "float16"),
            memory_bytes=total,
            available_bytes=available,
            num_threads=threads,
            features=tuple(flag for flag in INTERESTING_FLAGS if flag in flags),
            sources=(("memory", memory_source), ("num_threads", threads_source), ("features", "/proc/cpuinfo")),
        )

    def open(self, num_threads: int) -> None:
        import torch

        torch.set_num_threads(num_threads)

    def give_back_unused(self) -> None:
        pass  # the allocator does so itself


def usable_memory() -> tuple[int, int, str]:
    """(may use, of these free now, where the number came from), bytes."""
    info = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, value = line.split(":", 1)
        info[key] = int(value.split()[0]) * 1024
    total, available, source = info["MemTotal"], info["MemAvailable"], "/proc/meminfo"
    limit = _read_int(CGROUP / "memory.max")
    used = _read_int(CGROUP / "memory.current")
    if limit is not None and used is not None and limit < total:
        return limit, min(available, max(0, limit - used)), "cgroup memory.max"
    return total, available, source


def usable_threads() -> tuple[int, str]:
    """Cores this process may use: the smaller of its affinity and its cgroup's quota."""
    affinity = len(os.sched_getaffinity(0))
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return affinity, "affinity"
    if quota != "max" and int(quota) / int(period) < affinity:
        return max(1, int(quota) // int(period)), "cgroup cpu.max"
    return affinity, "affinity"


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _cpu_model_and_flags() -> tuple[str, frozenset[str]]:
    model, flags = platform.machine(), frozenset[str]()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = frozenset(value.split())
            break
    return model, flags
