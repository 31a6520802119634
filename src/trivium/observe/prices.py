"""What the engine's time costs, from a price file: of the machine by the hour, of energy by the kilowatt-hour."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from trivium.types.errors import InvalidRequestError

SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6


class Cost(Struct, frozen=True, omit_defaults=True):
    amount: float | None = None
    currency: str = ""
    joules: float | None = None  # None: the machine's energy could not be read


class Prices(Struct, frozen=True, forbid_unknown_fields=True):
    currency: str
    machine_hour: float = 0.0  # of the engine's time in steps
    kwh: float = 0.0

    def cost(self, engine_seconds: float, joules: float | None) -> Cost:
        energy = 0.0 if joules is None else joules / JOULES_PER_KWH * self.kwh
        return Cost(engine_seconds / SECONDS_PER_HOUR * self.machine_hour + energy, self.currency, joules)


def read_prices(path: Path) -> Prices:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Prices)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidRequestError(f"the price file {path} cannot be read: {error}", param="price_file") from None
