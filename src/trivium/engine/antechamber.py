"""Where requests wait whose grammar is not ready: outside of the scheduler, so that nobody waits for them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec

from trivium.grammar.service import GrammarService, Preparation
from trivium.types.account import Account
from trivium.types.delta import Delta, FinishReason
from trivium.types.errors import InvalidRequestError, TriviumError
from trivium.types.grammar_stats import GrammarStats
from trivium.types.request import Request

# An engine that has nothing else to do listens to the grammar process for so long before it looks round again; seconds.
IDLE_WAIT = 0.005


@dataclass
class Visitor:
    request: Request
    preparation: Preparation
    entered: float  # seconds of CLOCK_MONOTONIC
    cancelled: set[int] = field(default_factory=set)  # sequences of it that were, and that nobody was told of


class Antechamber:
    def __init__(self, grammars: GrammarService) -> None:
        self._grammars = grammars
        self._visitors: dict[str, Visitor] = {}  # by the request's id, in the order in which they came
        self._refusals: list[tuple[str, TriviumError]] = []

    def __bool__(self) -> bool:
        return bool(self._visitors or self._refusals)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._visitors

    def enter(self, request: Request) -> None:
        """Raises what can be said against its grammar at once."""
        grammar = request.sampling.grammar
        assert grammar is not None
        try:
            preparation = self._grammars.prepare(grammar)
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error), param=grammar.param) from None
        self._visitors[request.id] = Visitor(request, preparation, time.monotonic())

    def cancel(self, request_id: str, index: int | None) -> list[Delta]:
        """Its last words, once nothing of it is left."""
        visitor = self._visitors[request_id]
        n = visitor.request.n
        visitor.cancelled |= set(range(n)) if index is None else {index}
        if len(visitor.cancelled) < n:
            return []
        del self._visitors[request_id]
        arrival, now = visitor.request.arrival, time.monotonic()
        waited = Account(arrival, now, handover=visitor.entered - arrival, grammar=now - visitor.entered)
        return [Delta(request_id, ended, finish_reason=FinishReason.CANCELLED, account=waited) for ended in range(n)]

    def leave(self, *, idle: bool) -> list[Visitor]:
        """Those whose grammar is ready, with it in its compiled form. `idle`: there is time to wait for some."""
        if not self._visitors:
            return []
        self._grammars.poll(IDLE_WAIT if idle else 0.0)
        done = [visitor for visitor in self._visitors.values() if visitor.preparation.is_done]
        ready = []
        for visitor in done:
            request, preparation = visitor.request, visitor.preparation
            del self._visitors[request.id]
            if preparation.error is not None:
                self.refuse(request, preparation.error)
                continue
            sampling = msgspec.structs.replace(request.sampling, grammar=preparation.compiled)
            visitor.request = msgspec.structs.replace(request, sampling=sampling)
            ready.append(visitor)
        return ready

    def refuse(self, request: Request, error: TriviumError) -> None:
        if isinstance(error, InvalidRequestError) and error.param is None and request.sampling.grammar is not None:
            error = InvalidRequestError(str(error), param=request.sampling.grammar.param)
        self._refusals.append((request.id, error))

    def stats(self) -> GrammarStats:
        return self._grammars.stats(preparing=len(self._visitors))

    def take_refusals(self) -> list[tuple[str, TriviumError]]:
        refusals, self._refusals = self._refusals, []
        return refusals
