"""Stop strings, searched in text that comes piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.faults import fault_point
from trivium.types.errors import InvalidRequestError


class StopStrings:
    """Ends a text where the first stop string is complete; where two are complete at once, the longer counts.

    That rule does not depend on how the text is cut into pieces. Of text that has come, only an end that may yet
    become a stop string is held back.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False, min_tokens: int = 0) -> None:
        """A stop string that is complete within the text of the first `min_tokens` tokens is ordinary text."""
        if "" in stops:
            raise InvalidRequestError("a stop string must not be empty", param="stop")
        self.matched: str | None = None
        self._stops = tuple(dict.fromkeys(stops))
        self._include = include_in_output
        self._min_tokens = min_tokens
        self._held = ""

    def feed(self, text: str, num_tokens: int) -> str:
        """The text that may be shown now; `num_tokens` have been generated, those of `text` included."""
        fault_point("text.stops")
        if self.matched is not None:
            return ""
        pending = self._held + text
        if num_tokens > self._min_tokens and (match := self._first_match(pending)):
            start, end = match
            self.matched = pending[start:end]
            self._held = ""
            return pending[: end if self._include else start]
        keep = self._longest_beginning(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def finish(self) -> str:
        """The text that was held back, once no more will come."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, pending: str) -> tuple[int, int] | None:
        """Start and end of the match that ends first, and starts first among those, in `pending`.

        What was held back has been searched before: a match must end after it.
        """
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = pending.find(stop, max(0, len(self._held) - len(stop) + 1))
            if start < 0:
                continue
            end = start + len(stop)
            if best is None or (end, start) < (best[1], best[0]):
                best = (start, end)
        return best

    def _longest_beginning(self, pending: str) -> int:
        """Length of the longest end of `pending` that a stop string begins with, but is not whole."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(pending)), 0, -1):
            end = pending[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0
