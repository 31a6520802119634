"""NVIDIA GPUs. Facts come from NVIDIA's management library; torch takes the device only once it is chosen."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from trivium.platform.contract import (
    CONTRACT_VERSION,
    Compile,
    Conformance,
    Detection,
    DetectionState,
    Device,
    DeviceFacts,
    DTypes,
    ErrorAction,
    Identity,
    ImportedFacts,
    KernelFacts,
    LoadFacts,
    MemoryModel,
    PlatformLimits,
    Profiling,
    Requirement,
    RunningFacts,
    Security,
    StaticFacts,
    SupportLevel,
    Telemetry,
    Variable,
    Versions,
    Visibility,
    declared,
    measured,
    probed,
    unknown,
)
from trivium.platform.cpu import usable_threads
from trivium.platform.nvml import LIBRARY, Gpu, NvmlError, visible_gpus
from trivium.platform.prechecks import number_of, run_prechecks
from trivium.platform.requirements import CORE_REQUIREMENTS, core_version
from trivium.types.checks import Check
from trivium.types.decisions import Decision, Keep, Refuse, Wish
from trivium.types.errors import ConfigError
from trivium.types.facts import Capabilities, ModelFacts

OLDEST = (8, 0)  # Ampere: the first with bfloat16 in its matrix units
FEATURES = {"bf16": (8, 0), "fp8": (8, 9), "tma": (9, 0), "wgmma": (9, 0)}
DTYPES = ("bfloat16", "float16", "float32")
VISIBLE = "CUDA_VISIBLE_DEVICES"
LEAST_FREE_SHARE = 0.5
DEVICE_FILES = Path("/dev")


class CudaPlatform:
    """One GPU, the first that this process may see."""

    name = "cuda"
    contract_version = CONTRACT_VERSION

    def static(self) -> StaticFacts:
        return StaticFacts(
            versions=declared(Versions(CONTRACT_VERSION, core_version(), ""), "part of the core"),
            identity=declared(
                Identity("NVIDIA", "CUDA", "GPUs from Ampere on", "cuda", "CUDA", in_tree=True), "the source"
            ),
            requires=declared(
                (*CORE_REQUIREMENTS, Requirement("triton", ">=3.6,<3.7", needed=False)), "pyproject.toml"
            ),
            visibility=declared(
                Visibility(VISIBLE, "numbers or beginnings of UUIDs, in the order in which the process counts"),
                "NVIDIA's driver",
            ),
            env=declared((Variable(VISIBLE, "list", "all", "the GPUs that the process may see"),), "NVIDIA's driver"),
            security=declared(
                Security(
                    opens_sockets=False,
                    uses_network=False,
                    loads_native_code=(LIBRARY, "torch's CUDA libraries", "what Triton compiles"),
                    reads=("/dev/nvidia*", "~/.triton"),
                ),
                "the source",
            ),
            conformance=declared(
                Conformance(SupportLevel.CONFORMANT, "tests/gpu, tests/golden", "2026-11", "NVIDIA H200"),
                "make test-gpu",
            ),
        )

    def detect(self) -> Detection:
        try:
            gpus = visible_gpus()
        except NvmlError as error:
            return Detection(DetectionState.ABSENT, str(error))
        if not gpus:
            return Detection(DetectionState.ABSENT, "this process may see no GPU")
        if gpus[0].compute_capability < OLDEST:
            found, least = (".".join(map(str, version)) for version in (gpus[0].compute_capability, OLDEST))
            return Detection(
                DetectionState.BROKEN, f"{gpus[0].name} has compute capability {found}, and {least} is needed"
            )
        import torch

        if torch.version.cuda is None:
            reason = f"{gpus[0].name} is here, but torch {torch.__version__} was built without CUDA"
            return Detection(DetectionState.BROKEN, reason)
        return Detection(DetectionState.PRESENT, gpus[0].name)

    def imported(self) -> ImportedFacts:
        has_triton = importlib.util.find_spec("triton") is not None
        return ImportedFacts(
            dtypes=declared(DTypes(DTYPES, DTYPES, "float32", ()), "tests/gpu runs each"),
            compile=declared(Compile("triton", cached=True, expected_seconds=60.0), "docs/performance-gpu.md")
            if has_triton
            else unknown("triton is not installed"),
        )

    def probe(self) -> DeviceFacts:
        gpus = visible_gpus()
        devices = tuple(
            Device(
                index=gpu.index,
                name=gpu.name,
                uuid="",
                total_bytes=gpu.total_bytes,
                free_bytes=gpu.free_bytes,
                integrated=False,
                compute_units=0,
                features=_features(gpu),
                numa_nodes=1,
                health="ok",
            )
            for gpu in gpus
        )
        memory = MemoryModel(
            dedicated=True,
            unified=False,
            pinned=True,
            reserved_bytes=0,
            can_sleep=False,
            out_of_memory="torch.OutOfMemoryError",
        )
        return DeviceFacts(
            inventory=probed(devices, "NVML"),
            memory_model=declared(memory, "torch's allocator"),
            collectives=unknown("one GPU computes"),
            transfer=unknown("blocks are not moved between engines"),
        )

    def capabilities(self) -> Capabilities:
        gpu = _first_gpu()
        return Capabilities(
            platform="cuda",
            device="cuda:0",
            name=gpu.name,
            dtypes=DTYPES,
            memory_bytes=gpu.total_bytes,
            available_bytes=gpu.free_bytes,
            memory_is_dedicated=True,
            runs_by_itself=True,
            num_threads=usable_threads()[0],
            features=_features(gpu),
            sources=(
                ("memory", f"NVML, driver {gpu.driver}"),
                ("held_by", ", ".join(_holder(process.pid, process.used_bytes) for process in gpu.processes)),
            ),
        )

    def precheck(self) -> tuple[Check, ...]:
        return run_prechecks(
            (
                check_gpu_driver,
                check_gpu_permissions,
                check_gpu_visible,
                check_gpu_torch,
                check_gpu_triton,
                check_gpu_memory,
            )
        )

    def with_model(self, model: ModelFacts) -> LoadFacts:
        return LoadFacts(
            limits=declared(
                PlatformLimits(max_model_len=model.max_position), "the model's own; memory decides the rest"
            ),
            features=unknown("not told pair by pair yet"),
        )

    def negotiate(self, wish: Wish, model: ModelFacts) -> tuple[Decision, ...]:
        if wish.kernels == "native":
            reason = "native kernels run on processors, and a GPU was chosen"
            return (Refuse("kernels", reason, "leave --kernels away, or choose --device cpu"),)
        return (Keep("kernels"),)

    def running(self) -> RunningFacts:
        # As torch's allocator says it, and as the driver does, which wants memory of its own.
        out_of_memory = tuple(
            ErrorAction(code, "fail_request", "no memory of the GPU was left for the step")
            for code in ("OutOfMemoryError", "CUDA error: out of memory")
        )
        lost = ErrorAction("illegal memory access", "restart", "the GPU's context is lost, and the engine starts again")
        return RunningFacts(
            validates_requests=measured(True, "ids are checked before a request queues"),
            errors=declared((*out_of_memory, lost), "CUDA's own names"),
            telemetry=declared(Telemetry(("energy", "power", "temperature", "clocks", "utilisation"), "NVML"), "NVML"),
            profiling=declared(Profiling(("CPU", "CUDA"), "torch.profiler, nsys"), "torch's own"),
        )

    def kernel_facts(self) -> KernelFacts | None:
        return None

    def make_ops(self, wish: Wish, num_threads: int) -> Any | None:
        return None

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


def check_gpu_driver() -> Check:
    wanted = f"{LIBRARY} of NVIDIA's driver"
    try:
        gpus = visible_gpus()
    except NvmlError as error:
        return Check(
            "gpu-driver", "fail", str(error), wanted, "install NVIDIA's driver, or start the container with --gpus all"
        )
    shown = f"driver {gpus[0].driver}" if gpus else "the driver answers"
    return Check("gpu-driver", "ok", shown, wanted, "")


def check_gpu_permissions() -> Check:
    files = sorted(DEVICE_FILES.glob("nvidia[0-9]*"))
    closed = [str(file) for file in files if not os.access(file, os.R_OK | os.W_OK)]
    shown = f"{closed[0]} is closed to this user" if closed else number_of(len(files), "device file")
    remedy = "let the user into the group that owns the file, or start the container with --gpus all"
    good = bool(files) and not closed
    return Check(
        "gpu-permissions", "ok" if good else "fail", shown, "device files that can be opened", "" if good else remedy
    )


def check_gpu_visible() -> Check:
    gpus = visible_gpus()
    shown = f"{number_of(len(gpus), 'GPU')}: {', '.join(gpu.name for gpu in gpus)}" if gpus else "no GPU"
    return Check("gpu-visible", "ok" if gpus else "fail", shown, "1 GPU at least", "" if gpus else f"look at {VISIBLE}")


def check_gpu_torch() -> Check:
    """The list of architectures is torch's own constant; no device is opened for it."""
    import torch

    wanted = "torch built for this GPU"
    if torch.version.cuda is None:
        return Check(
            "gpu-torch", "fail", f"torch {torch.__version__} without CUDA", wanted, "pip install torch (with CUDA)"
        )
    major, minor = _first_gpu().compute_capability
    built = torch._C._cuda_getArchFlags() or ""
    fits = any(int(arch.removeprefix("sm_")[:-1]) == major for arch in built.split() if arch[3:].isdigit())
    fits = fits or f"compute_{major}{minor}" in built
    shown = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {built}"
    remedy = "" if fits else f"install a torch built for compute capability {major}.{minor}"
    return Check("gpu-torch", "ok" if fits else "fail", shown, wanted, remedy)


def check_gpu_triton() -> Check:
    found = importlib.util.find_spec("triton") is not None
    remedy = "" if found else "pip install 'triton>=3.6,<3.7': without it the reference runs, many times slower"
    return Check(
        "gpu-triton", "ok" if found else "warn", "installed" if found else "not installed", "installed", remedy
    )


def check_gpu_memory() -> Check:
    gpu = _first_gpu()
    enough = gpu.free_bytes >= LEAST_FREE_SHARE * gpu.total_bytes
    holders = ", ".join(_holder(process.pid, process.used_bytes) for process in gpu.processes)
    shown = f"{gpu.free_bytes >> 20} of {gpu.total_bytes >> 20} MiB free" + (f"; held by {holders}" if holders else "")
    remedy = "" if enough else "end what holds the rest, or lower --gpu-memory-utilization"
    return Check("gpu-memory", "ok" if enough else "warn", shown, f"{LEAST_FREE_SHARE:.0%} free", remedy)


def _features(gpu: Gpu) -> tuple[str, ...]:
    return tuple(name for name, since in FEATURES.items() if gpu.compute_capability >= since)


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
