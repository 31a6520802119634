"""NVIDIA GPUs. Facts come from NVIDIA's management library; torch takes the device only once it is chosen."""

from __future__ import annotations

from trivium.platform.contract import Detection
from trivium.platform.cpu import usable_threads
from trivium.platform.nvml import Gpu, NvmlError, visible_gpus
from trivium.types.errors import ConfigError
from trivium.types.facts import Capabilities

OLDEST = (8, 0)  # Ampere: the first with bfloat16 in its matrix units
FEATURES = {"bf16": (8, 0), "fp8": (8, 9), "tma": (9, 0), "wgmma": (9, 0)}


class CudaPlatform:
    """One GPU, the first that this process may see."""

    name = "cuda"

    def detect(self) -> Detection:
        try:
            gpus = visible_gpus()
        except NvmlError as error:
            return Detection(present=False, reason=str(error))
        if not gpus:
            return Detection(present=False, reason="this process may see no GPU")
        if gpus[0].compute_capability < OLDEST:
            found, least = (".".join(map(str, version)) for version in (gpus[0].compute_capability, OLDEST))
            return Detection(
                present=False, reason=f"{gpus[0].name} has compute capability {found}, and {least} is needed"
            )
        import torch

        if torch.version.cuda is None:
            reason = f"{gpus[0].name} is here, but torch {torch.__version__} was built without CUDA"
            return Detection(present=False, reason=reason)
        return Detection(present=True, reason=gpus[0].name)

    def capabilities(self) -> Capabilities:
        gpu = _first_gpu()
        return Capabilities(
            platform="cuda",
            device="cuda:0",
            name=gpu.name,
            dtypes=("bfloat16", "float16", "float32"),
            memory_bytes=gpu.total_bytes,
            available_bytes=gpu.free_bytes,
            memory_is_dedicated=True,
            runs_by_itself=True,
            num_threads=usable_threads()[0],
            features=tuple(name for name, since in FEATURES.items() if gpu.compute_capability >= since),
            sources=(
                ("memory", f"NVML, driver {gpu.driver}"),
                ("held_by", ", ".join(_holder(process.pid, process.used_bytes) for process in gpu.processes)),
            ),
        )

    def open(self, num_threads: int) -> None:
        import torch

        torch.set_num_threads(num_threads)
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            torch.cuda.set_device(0)
        except RuntimeError as error:
            raise ConfigError(f"torch cannot use {_first_gpu().name}: {error}") from error
        # Products of float32 are exact to float32; models that want speed ask for bfloat16.
        torch.backends.cuda.matmul.allow_tf32 = False

    def give_back_unused(self) -> None:
        import torch

        torch.cuda.empty_cache()


def _first_gpu() -> Gpu:
    try:
        gpus = visible_gpus()
    except NvmlError as error:
        raise ConfigError(str(error)) from error
    if not gpus:
        raise ConfigError("this process may see no GPU")
    return gpus[0]


def _holder(pid: int, used_bytes: int | None) -> str:
    return f"process {pid}" if used_bytes is None else f"process {pid}: {used_bytes >> 20} MiB"
