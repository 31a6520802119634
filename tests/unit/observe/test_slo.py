from __future__ import annotations

import pytest

from trivium.observe.request_account import RequestAccount
from trivium.observe.request_end import RequestEnd
from trivium.observe.slo import Slo


def account(end: RequestEnd, first: float | None = None, between: float | None = None) -> RequestAccount:
    return RequestAccount("r", end, 0.0, 9.0, {}, time_to_first_token=first, inter_token_latency=between)


@pytest.mark.parametrize(
    ("end", "first", "between", "met"),
    [
        (RequestEnd.COMPLETE, 1.0, 0.1, True),
        (RequestEnd.COMPLETE, 1.1, 0.1, False),
        (RequestEnd.COMPLETE, 1.0, 0.2, False),
        (RequestEnd.COMPLETE, 1.0, None, True),  # one token
        (RequestEnd.COMPLETE, None, None, None),  # a vector
        (RequestEnd.FAILED, 0.1, 0.1, False),
        (RequestEnd.OVERLOADED, None, None, False),
        (RequestEnd.INVALID, None, None, None),
        (RequestEnd.CANCELLED, 0.1, 0.1, None),
    ],
)
def test_a_request_meets_what_is_promised_or_does_not_or_cannot_be_judged(
    end: RequestEnd, first: float | None, between: float | None, met: bool | None
) -> None:
    assert Slo(1.0, 0.1).is_met(account(end, first, between)) is met


def test_what_is_not_promised_is_not_asked() -> None:
    slow = account(RequestEnd.COMPLETE, 100.0, 100.0)
    assert Slo().is_met(slow) and Slo(inter_token_latency=100.0).is_met(slow)
    assert not Slo(time_to_first_token=1.0).is_met(slow)
