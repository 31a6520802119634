"""The ways in which a request can end."""

from __future__ import annotations

from enum import StrEnum


class RequestEnd(StrEnum):
    """There are no others."""

    COMPLETE = "complete"
    INVALID = "invalid"  # the client's error
    OVERLOADED = "overloaded"  # refused for now: queue full, draining, engine starting or gone
    FAILED = "failed"  # our error
    CANCELLED = "cancelled"  # the client went away
