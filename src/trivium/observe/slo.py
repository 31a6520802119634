"""What an operator promises of answers, and whether a request got it."""

from __future__ import annotations

from msgspec import Struct

from trivium.observe.request_account import RequestAccount
from trivium.observe.request_end import RequestEnd


class Slo(Struct, frozen=True):
    """Seconds, as the client feels them; None: nothing is promised of that."""

    time_to_first_token: float | None = None
    inter_token_latency: float | None = None  # the mean of a request

    def is_met(self, account: RequestAccount) -> bool | None:
        """Whether the request got all that is promised; what was refused for now, or failed, did not. None: nothing can be said
        of it: its client sent nonsense, went away, or asked for no tokens."""
        match account.end:
            case RequestEnd.INVALID | RequestEnd.CANCELLED:
                return None
            case RequestEnd.OVERLOADED | RequestEnd.FAILED:
                return False
        if account.time_to_first_token is None:
            return None
        return _within(account.time_to_first_token, self.time_to_first_token) and _within(
            account.inter_token_latency, self.inter_token_latency
        )


def _within(seconds: float | None, most: float | None) -> bool:
    return seconds is None or most is None or seconds <= most
