"""Energy that the machine has used, where it can be read: the processor's own counters under Linux (RAPL)."""

from __future__ import annotations

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
MICRO = 1e-6


class EnergyMeter:
    """The sum of all processor packages. `why_not`: why nothing can be read; "" where it can."""

    def __init__(self, root: Path = POWERCAP) -> None:
        zones = sorted(root.glob("intel-rapl:[0-9]*")) if root.is_dir() else []
        self._zones = [_Zone(zone) for zone in zones if zone.name.count(":") == 1]
        self._joules = 0.0
        self.why_not = "" if self._zones else f"no energy counters under {root}"
        self.read()
        self._joules = 0.0

    def read(self) -> float | None:
        """Joules since the meter was made; None: they cannot be read."""
        if self.why_not:
            return None
        try:
            self._joules += sum(zone.advance() for zone in self._zones)
        except (OSError, ValueError) as error:
            self.why_not = f"the energy counters cannot be read: {error}"
            return None
        return self._joules


class _Zone:
    """A counter that begins again at its range's end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: int | None = None

    def advance(self) -> float:
        """Joules since the last call."""
        now = int((self._path / "energy_uj").read_text())
        before, self._last = now if self._last is None else self._last, now
        if now < before:
            now += int((self._path / "max_energy_range_uj").read_text())
        return (now - before) * MICRO
