"""Energy that the machine has used, where it can be read: the processor's own counters under Linux (RAPL), and those of GPUs
where whoever makes the meter can read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

POWERCAP = Path("/sys/class/powercap")
MICRO = 1e-6


class EnergyMeter:
    """The sum of all processor packages and GPUs. `why_not`: why nothing can be read; "" where it can."""

    def __init__(self, root: Path = POWERCAP, gpus: Callable[[], float | None] | None = None) -> None:
        """`gpus`: joules that they have used since whenever; None: not any more to be read."""
        zones = sorted(root.glob("intel-rapl:[0-9]*")) if root.is_dir() else []
        self._counters: list[_Counter] = [_Zone(zone) for zone in zones if zone.name.count(":") == 1]
        if gpus is not None:
            self._counters.append(_Gpus(gpus))
        self._joules = 0.0
        self.why_not = "" if self._counters else f"no energy counters under {root}, and none of GPUs"
        self.read()
        self._joules = 0.0

    def read(self) -> float | None:
        """Joules since the meter was made; None: they cannot be read."""
        if self.why_not:
            return None
        try:
            self._joules += sum(counter.advance() for counter in self._counters)
        except (OSError, ValueError) as error:
            self.why_not = f"the energy counters cannot be read: {error}"
            return None
        return self._joules


class _Counter(Protocol):
    def advance(self) -> float:
        """Joules since the last call."""


class _Gpus:
    def __init__(self, read: Callable[[], float | None]) -> None:
        self._read = read
        self._last: float | None = None

    def advance(self) -> float:
        now = self._read()
        if now is None:
            raise ValueError("those of the GPUs are not told any more")
        before, self._last = now if self._last is None else self._last, now
        return now - before


class _Zone:
    """A counter that begins again at its range's end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: int | None = None

    def advance(self) -> float:
        now = int((self._path / "energy_uj").read_text())
        before, self._last = now if self._last is None else self._last, now
        if now < before:
            now += int((self._path / "max_energy_range_uj").read_text())
        return (now - before) * MICRO
