"""The CPU: always present, and the oracle for every other platform."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from typing import Any

from trivium.platform.cgroup import MOUNT, processor_limit
from trivium.platform.contract import (
    CONTRACT_VERSION,
    Conformance,
    Detection,
    DetectionState,
    Device,
    DeviceFacts,
    DTypes,
    ErrorAction,
    FeaturePair,
    Identity,
    ImportedFacts,
    KernelFacts,
    LoadFacts,
    MemoryModel,
    PlatformLimits,
    Profiling,
    RunningFacts,
    Security,
    StaticFacts,
    SupportLevel,
    Telemetry,
    Versions,
    Visibility,
    declared,
    measured,
    probed,
    unknown,
)
from trivium.platform.host_memory import usable_memory
from trivium.platform.prechecks import number_of, run_prechecks
from trivium.platform.requirements import CORE_REQUIREMENTS, core_version
from trivium.types.checks import Check
from trivium.types.decisions import Decision, Keep, Refuse, Wish
from trivium.types.facts import Capabilities, ModelFacts

ENERGY = Path("/sys/class/powercap/intel-rapl:0/energy_uj")
NODES = Path("/sys/devices/system/node")
INTERESTING_FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "sve",
)

# Sums are exact to the order in float32, and the native kernels take float32 activations.
DTYPES = ("float32", "bfloat16", "float16")
MOST_THREADS = 1024  # more are a slip
LEAST_FREE_BYTES = 1 << 30  # the process itself takes a quarter of it
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
# Pieces of more lie between each other as chance will have it, up to 50 MiB apart in two runs of the same steps. Their own
# pages are cleared each time: on a virtual machine the reference takes a quarter longer for a token, and half as long again
# for a prompt of 512. Native steps keep what they need.
LARGE_PIECE_BYTES = 384 << 10
KEPT_SMALL_BYTES = 4 << 20  # at the heap's end


class CpuPlatform:
    name = "cpu"
    contract_version = CONTRACT_VERSION

    def static(self) -> StaticFacts:
        return StaticFacts(
            versions=declared(Versions(CONTRACT_VERSION, core_version(), ""), "part of the core"),
            identity=probed(
                Identity("", platform.machine(), _cpu_model_and_flags()[0], "cpu", "CPU", in_tree=True), "/proc/cpuinfo"
            ),
            requires=declared(CORE_REQUIREMENTS, "pyproject.toml"),
            visibility=declared(
                Visibility(None, "the process's affinity chooses among the machine's cores"), "sched(7)"
            ),
            env=declared((), "none of its own"),
            security=declared(
                Security(
                    opens_sockets=False,
                    uses_network=False,
                    loads_native_code=("trivium._native",),
                    reads=("/proc", f"/{MOUNT}", "/sys/devices/system", "/sys/kernel/mm"),
                ),
                "the source",
            ),
            conformance=declared(
                Conformance(
                    SupportLevel.CONFORMANT, "tests/unit/platform, tests/parity, tests/golden", "", "each CI run"
                ),
                "make test",
            ),
        )

    def detect(self) -> Detection:
        return Detection(DetectionState.PRESENT, f"{platform.machine()} processor")

    def imported(self) -> ImportedFacts:
        return ImportedFacts(
            dtypes=declared(DTypes(DTYPES, DTYPES, "float32", ()), "tests/parity runs each"),
            compile=unknown("nothing is compiled at run time"),
        )

    def probe(self) -> DeviceFacts:
        total, available, source = usable_memory()
        threads, threads_source = usable_threads()
        model, flags = _cpu_model_and_flags()
        device = Device(
            index=0,
            name=model,
            uuid="",
            total_bytes=total,
            free_bytes=available,
            integrated=True,
            compute_units=threads,
            features=tuple(flag for flag in INTERESTING_FLAGS if flag in flags),
            numa_nodes=number_of_nodes(),
            health="ok",
        )
        memory = MemoryModel(
            dedicated=False,
            unified=True,
            pinned=False,
            reserved_bytes=0,
            can_sleep=False,
            out_of_memory="the kernel kills the process, or an allocation fails",
        )
        return DeviceFacts(
            inventory=probed((device,), f"{source}, {threads_source}"),
            memory_model=declared(memory, "Linux"),
            collectives=unknown("one process computes"),
            transfer=unknown("blocks are not moved between engines"),
        )

    def capabilities(self) -> Capabilities:
        total, available, memory_source = usable_memory()
        threads, threads_source = usable_threads()
        model, flags = _cpu_model_and_flags()
        return Capabilities(
            platform="cpu",
            device="cpu",
            name=model,
            dtypes=DTYPES,
            memory_bytes=total,
            available_bytes=available,
            num_threads=threads,
            features=tuple(flag for flag in INTERESTING_FLAGS if flag in flags),
            sources=(("memory", memory_source), ("num_threads", threads_source), ("features", "/proc/cpuinfo")),
        )

    def precheck(self) -> tuple[Check, ...]:
        return run_prechecks((check_memory, check_cpu_threads, check_cpu_load, check_cpu_numa))

    def with_model(self, model: ModelFacts) -> LoadFacts:
        pairs = (
            FeaturePair("prefix caching", "sliding windows", "yes", "tests/golden/test_engine_tokens.py"),
            FeaturePair("prefix caching", "dynamic rope", "partial", "among prompts of the same length"),
            FeaturePair("recorded steps", "experts", "yes", "tests/golden/test_graph_mode.py"),
            FeaturePair("int8 cache", "block or head sizes that are no multiples of 4", "no", "fours lie together"),
        )
        return LoadFacts(
            limits=declared(
                PlatformLimits(max_model_len=model.max_position), "the model's own; memory decides the rest"
            ),
            features=measured(pairs, "the tests named"),
        )

    def negotiate(self, wish: Wish, model: ModelFacts) -> tuple[Decision, ...]:
        if wish.num_threads is not None and wish.num_threads > MOST_THREADS:
            return (
                Refuse(
                    "num_threads",
                    f"num_threads {wish.num_threads} is more than the {MOST_THREADS} that are ever used",
                    "leave --num-threads away: the engine takes the cores that the process may use",
                ),
            )
        return (Keep("num_threads"),)

    def running(self) -> RunningFacts:
        energy = ENERGY.exists() and os.access(ENERGY, os.R_OK)
        return RunningFacts(
            validates_requests=measured(True, "tests/parity/test_native_bounds.py"),
            errors=declared(
                (ErrorAction("MemoryError", "fail_request", "no memory was left for the step"),), "the source"
            ),
            telemetry=probed(Telemetry(("energy",), str(ENERGY)), "it can be read")
            if energy
            else unknown(f"{ENERGY} cannot be read"),
            profiling=declared(Profiling(("CPU",), "torch.profiler, perf"), "torch's own"),
        )

    def kernel_facts(self) -> KernelFacts | None:
        return None

    def make_ops(self, wish: Wish, num_threads: int) -> Any | None:
        return None

    def open(self, num_threads: int) -> None:
        import torch

        torch.set_num_threads(num_threads)
        _give_large_pieces_back()

    def give_back_unused(self) -> None:
        """The allocator keeps what was freed, up to hundreds of MiB; glibc's can be told to give it back."""
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)


def _give_large_pieces_back() -> None:
    """What is large has pages of its own, which go when it does. glibc would learn to keep pieces of up to 32 MiB among the
    small ones, and a step's values of several sizes then take twice what they need."""
    if (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(M_MMAP_THRESHOLD, LARGE_PIECE_BYTES)
        set_option(M_TRIM_THRESHOLD, KEPT_SMALL_BYTES)


def check_memory(memory: tuple[int, int, str] | None = None) -> Check:
    """`memory`: as of `usable_memory`."""
    total, available, source = memory or usable_memory()
    enough = available >= LEAST_FREE_BYTES
    shown = f"{available >> 20} of {total >> 20} MiB free ({source})"
    remedy = "" if enough else "end what holds the rest, or raise the container's memory limit"
    return Check("memory", "ok" if enough else "warn", shown, f">= {LEAST_FREE_BYTES >> 20} MiB free", remedy)


def check_cpu_threads() -> Check:
    usable, source = usable_threads()
    shown = f"{number_of(usable, 'core')} of {os.cpu_count() or 1} ({source})"
    return Check("cpu-threads", "ok", shown, "what the process may use", "")


def check_cpu_load(load: float | None = None, usable: int | None = None) -> Check:
    load, usable = os.getloadavg()[0] if load is None else load, usable or usable_threads()[0]
    busy = load > 1.5 * usable + 1
    remedy = "others compute here now; timings will be worse than the machine can do" if busy else ""
    return Check("cpu-load", "warn" if busy else "ok", f"load {load:.1f}", f"about {usable} at most", remedy)


def check_cpu_numa(nodes: int | None = None) -> Check:
    nodes = nodes or number_of_nodes()
    remedy = "bind the engine to one node: numactl --cpunodebind=0 --membind=0 trivium …" if nodes > 1 else ""
    return Check("cpu-numa", "warn" if nodes > 1 else "ok", number_of(nodes, "node"), "1 node", remedy)


def number_of_nodes() -> int:
    return max(1, len(list(NODES.glob("node[0-9]*"))))


def usable_threads(root: Path = Path("/")) -> tuple[int, str]:
    """Cores this process may use: the smaller of its affinity and its container's quota, whole ones."""
    affinity, limit = len(os.sched_getaffinity(0)), processor_limit(root)
    if limit is not None and limit.cores < affinity:
        return max(1, int(limit.cores)), limit.file
    return affinity, "affinity"


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
