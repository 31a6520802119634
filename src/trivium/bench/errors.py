"""What a person is told when something cannot be measured or does not hold."""

from __future__ import annotations

from trivium.types.errors import TriviumError


class BenchError(TriviumError):
    """The measurement could not be made: no server, no trace, no bundle, settings that contradict each other."""
