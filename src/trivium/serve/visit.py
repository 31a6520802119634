"""A request for text at an engine's door: it takes a place in the queue, or is refused, before any work goes into it. What is
refused costs neither a template nor tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from trivium.engine.admission import Place
from trivium.serve.access.caller import asking
from trivium.serve.models.served import ServedModel

EDGE_BYTES = 16 * 1024  # of a body's beginning and end, by which those who come again are known


class Visit:
    """One request. Whoever was refused and asks the same again, byte for byte, is the same visitor."""

    def __init__(self) -> None:
        self.visitor: int | None = None
        self.place: Place | None = None

    def recognise(self, body: bytes) -> None:
        self.visitor = hash((asking().name, len(body), body[:EDGE_BYTES], body[-EDGE_BYTES:]))

    def end(self) -> None:
        if self.place is not None:
            self.place.leave()


_current: ContextVar[Visit | None] = ContextVar("visit", default=None)


def current_visit() -> Visit | None:
    """None: what is made belongs to no request."""
    return _current.get()


def current_place() -> Place | None:
    visit = current_visit()
    return None if visit is None else visit.place


@contextmanager
def visiting() -> Iterator[None]:
    """Until the answer's last byte."""
    visit = Visit()
    token = _current.set(visit)
    try:
        yield
    finally:
        _current.reset(token)
        visit.end()


def enter(model: ServedModel, asked_priority: int | None = None) -> None:
    """Raises OverloadedError where the request would be refused whatever its prompt is."""
    visit = current_visit()
    if visit is not None and visit.place is None:
        visit.place = model.llm.knock(asking().priority_of(asked_priority), visit.visitor)
