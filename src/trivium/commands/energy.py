"""The meter of a server's energy, and whether it can read what the platform says there is."""

from __future__ import annotations

from collections.abc import Callable

from trivium.observe.energy import EnergyMeter
from trivium.platform.contract import Answer, Telemetry
from trivium.platform.nvml import GpuEnergy, NvmlError
from trivium.types.checks import Check

EXPORTED = "energy"  # of a platform's readings, the one that answers and metrics tell


def energy_meter() -> EnergyMeter:
    return EnergyMeter(gpus=_gpu_energy())


def check_telemetry(told: Answer[Telemetry], meter: EnergyMeter) -> Check | None:
    """None: the platform promises no energy, and so nobody misses it."""
    if told.value is None or EXPORTED not in told.value.readings:
        return None
    wanted = f"{EXPORTED} by {told.value.source}, as the platform says"
    if meter.why_not:
        return Check("telemetry", "warn", meter.why_not, wanted, "let the server's user read the counters")
    rest = [reading for reading in told.value.readings if reading != EXPORTED]
    exported = f"{EXPORTED} is read and exported" + (f"; {', '.join(rest)} are not" if rest else "")
    return Check("telemetry", "ok", exported, wanted, "")


def _gpu_energy() -> Callable[[], float | None] | None:
    """None: there are no GPUs, or they do not tell."""
    try:
        return GpuEnergy().read
    except NvmlError:
        return None
