"""What the engine knows of rows whose masks have not come."""

from __future__ import annotations

from trivium.grammar.rows import RowChanges
from trivium.types.request import Grammar, GrammarKind

FORM = Grammar(GrammarKind.REGEX, "a*")


def test_a_process_that_fills_masks_one_after_the_other_is_late_but_not_silent() -> None:
    rows = RowChanges()
    for row in range(3):
        rows.open(row, FORM, ())
    assert rows.silent_seconds(100.0) == 0
    rows.sent(1, now=100.0)
    assert rows.silent_seconds(115.0) == 15
    rows.answered(1, [0], [], now=116.0)
    assert rows.silent_seconds(125.0) == 9
    rows.answered(1, [1], [], now=130.0)
    assert list(rows.awaited) == [2]
    assert rows.silent_seconds(131.0) == 1


def test_silence_begins_with_what_was_asked_and_not_before() -> None:
    rows = RowChanges()
    rows.open(0, FORM, ())
    rows.sent(1, now=100.0)
    rows.answered(1, [0], [], now=101.0)
    rows.advance(0, 7)
    rows.sent(2, now=500.0)
    assert rows.silent_seconds(503.0) == 3
