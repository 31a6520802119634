"""One life of a model in memory, from the wish to load it to the end of its process."""

from __future__ import annotations

import asyncio
import time

from trivium.engine.client import EngineState
from trivium.serve.models.offers import Offer
from trivium.serve.models.served import ServedModel
from trivium.types.errors import TriviumError


class Berth:
    def __init__(self, offer: Offer, model: ServedModel, keep_alive: float | None) -> None:
        self.offer = offer
        self.model = model
        self.loading: asyncio.Task[None] | None = None  # never raises
        self.failure: TriviumError | None = None  # why it could not be loaded
        self.users = 0  # requests that wait for it or are answered by it
        self.has_memory = False  # its need is counted
        self.keep_alive = keep_alive  # seconds after the last use; None: for ever
        self.last_used = time.monotonic()
        self.is_unwanted = False  # it goes once nobody uses it, unless it is asked for again

    def touch(self, keep_alive: float | None) -> None:
        self.keep_alive = keep_alive
        self.last_used = time.monotonic()

    @property
    def is_loading(self) -> bool:
        return self.loading is not None and not self.loading.done()

    @property
    def is_dead(self) -> bool:
        """It was loaded, and its process ended for good."""
        return not self.is_loading and self.model.llm.state is EngineState.DEAD

    @property
    def is_idle(self) -> bool:
        """It could go."""
        return not (self.offer.stays or self.users or self.is_loading)

    @property
    def seconds_left(self) -> float | None:
        """Before it goes, if nobody uses it any more; None: for ever."""
        if self.offer.stays or self.keep_alive is None:
            return None
        if self.is_unwanted:
            return 0.0
        since = 0.0 if self.users or self.is_loading else time.monotonic() - self.last_used
        return max(0.0, self.keep_alive - since)
