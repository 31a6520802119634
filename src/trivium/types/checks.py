"""One look at the environment before anything is started: what was found, what is wanted, and what to do."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

CheckState = Literal["ok", "warn", "fail"]


class Check(Struct, frozen=True):
    """`fail` keeps the engine from starting, or from running right; `warn` costs speed or room."""

    name: str
    state: CheckState
    measured: str
    wanted: str
    remedy: str  # one line; empty where nothing is to be done
