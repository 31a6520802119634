from __future__ import annotations

from trivium.serve.access.caller import Caller, acting_as
from trivium.serve.visit import EDGE_BYTES, Visit, current_visit, visiting


def visitor(body: bytes) -> int | None:
    visit = Visit()
    visit.recognise(body)
    return visit.visitor


def test_who_asks_the_same_again_is_the_same_visitor_and_nobody_else_is() -> None:
    assert visitor(b"Hello") == visitor(b"Hello")
    assert visitor(b"Hello") != visitor(b"Hello!")
    with acting_as(Caller(name="alice")):
        alice = visitor(b"Hello")
    assert alice != visitor(b"Hello")


def test_long_bodies_are_told_apart_by_their_length_and_their_edges() -> None:
    middle = b"-" * 4 * EDGE_BYTES
    assert visitor(b"a" + middle) != visitor(b"b" + middle)
    assert visitor(middle + b"a") != visitor(middle + b"b")
    assert visitor(middle) != visitor(middle + b"-")


def test_a_visit_lasts_as_long_as_its_request() -> None:
    assert current_visit() is None
    with visiting():
        assert current_visit() is not None
    assert current_visit() is None
