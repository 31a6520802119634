"""What a platform says of its own errors: each by a part of its name or message, with what is to be done."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from trivium.platform.contract import ErrorAction


class Reaction(StrEnum):
    """As `ErrorAction.action` names them."""

    RETRY = "retry"  # nobody is to blame, and the step is computed again
    FAIL_REQUEST = "fail_request"  # those of the step are run again alone, and who fails alone fails
    DEMOTE = "demote"  # the op that raised is left for the rung below; as FAIL_REQUEST where there is none
    RESTART = "restart"  # of the engine's process: what this one holds of the device is lost
    DRAIN = "drain"  # no process can use the device any more: the server ends, and says so


class KnownErrors:
    def __init__(self, known: Iterable[ErrorAction] = ()) -> None:
        self._known = [(one.code, Reaction(one.action), one.sentence) for one in known]

    def reaction(self, error: BaseException) -> tuple[Reaction, str] | None:
        """With the platform's sentence; None: it does not know the error. The first that fits counts."""
        told = f"{type(error).__name__}: {error}"
        return next(((reaction, sentence) for code, reaction, sentence in self._known if code in told), None)

    def is_ops_fault(self, error: BaseException) -> bool:
        """Whether another op in the place of the one that raised may do better."""
        found = self.reaction(error)
        return found is None or found[0] is Reaction.DEMOTE
