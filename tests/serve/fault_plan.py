"""The plan of faults of a running server: written to arm it, emptied to disarm it."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any


class FaultPlan:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "faults.json"
        self._fired = directory / "faults.json.fired"
        self._numbers = itertools.count()
        self.disarm()

    @property
    def environment(self) -> dict[str, str]:
        return {"TRIVIUM_FAULTS": str(self.path)}

    def arm(self, *faults: dict[str, Any]) -> None:
        """Each once, unless it says otherwise."""
        self._write([{"id": f"{next(self._numbers)}", **fault} for fault in faults])

    def disarm(self) -> None:
        self._write([])

    def _write(self, faults: list[dict[str, Any]]) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps([*faults]))
        self._before = len(self._lines())  # counted first: a fault may be let loose as soon as the plan lies there
        os.replace(new, self.path)  # no process reads half of it

    def fired(self) -> list[str]:
        """The points of all faults that were let loose since the plan was last written."""
        return [json.loads(line)["point"] for line in self._lines()[self._before :]]

    def _lines(self) -> list[str]:
        return self._fired.read_text().splitlines() if self._fired.exists() else []
