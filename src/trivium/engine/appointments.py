"""When those who had to be refused may come back, and that there is a place for them when they do.

Each is told a time of its own. Times lie as far apart as ends of sequences do, with some slack, so that those who obey find
a place, one after the other; and since others ask meanwhile who were told nothing, places are kept for those whose time has
come. Whoever comes again is known by what it asks, which is the same both times. Not all come back: times lie closer, by the
share of those who kept theirs of late.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from math import inf

SHARE = 0.85  # of all ends that are promised; the rest takes up what comes in waves, and goes to newcomers otherwise
MOST_SECONDS = 900.0  # that anybody is told to wait because of others: a minute of ten times too much, served
EARLY_SECONDS = 0.1  # by which one may come before its time: clocks differ
GRACE_SECONDS = 3.0  # for which a place is kept: `Retry-After` has whole seconds, and networks take theirs
DRIFT = 1.5  # by which the times given may be off as the pace and the share of those who come change, before they are mended
WEIGHT_OF_LAST = 1 / 16  # in the mean of those who came
LEAST_ATTENDANCE = 0.05
PATIENCE = (
    3  # who are missed one after the other, while nobody keeps a time, before the rest are taken to have gone as well
)
GOLDEN = 0.6180339887498949  # multiples of it, less their whole part, spread evenly over 0 to 1 however many there are


class Appointments:
    """Times are seconds of one clock that goes forward. A visitor is a number, the same whenever the same is asked."""

    def __init__(self) -> None:
        self._times: list[tuple[float, int]] = []  # and whose, in order
        self._of_visitor: dict[int, list[float]] = {}  # in order
        self._last = -inf  # that was given
        self._attendance = 1.0
        self._num_put_off = 0  # beyond the last that could be given
        self._missed_in_a_row = 0
        self.num_kept = 0
        self.num_missed = 0

    def __len__(self) -> int:
        return len(self._times)

    def give(self, visitor: int | None, now: float, between_ends: float, lead: float) -> float:
        """Seconds to wait: until all who are still expected have come, and the places that they take are free again.

        `lead`: before the first place that can be promised. For a visitor that is not known nothing can be kept.
        """
        self._lapse(now)
        spacing = between_ends * self.attendance / SHARE
        before_it = len(self._times) * spacing
        after_the_last = self._last + spacing - now
        seconds = min(max(after_the_last, lead + before_it / DRIFT), lead + before_it * DRIFT)
        if seconds > max(MOST_SECONDS, lead):
            return self._some_time_later()
        self._last = now + seconds
        if visitor is not None:
            insort(self._times, (now + seconds, visitor))
            insort(self._of_visitor.setdefault(visitor, []), now + seconds)
        return seconds

    def _some_time_later(self) -> float:
        """All times are taken for as long as anybody waits. They come back spread over a while, and try their luck."""
        self._num_put_off += 1
        return MOST_SECONDS * (0.5 + 0.5 * (self._num_put_off * GOLDEN % 1.0))

    def is_due(self, visitor: int, now: float) -> bool:
        self._lapse(now)
        times = self._of_visitor.get(visitor)
        return times is not None and times[0] <= now + EARLY_SECONDS

    def keep(self, visitor: int) -> None:
        """It came at its time, whether or not there was a place after all."""
        self._remove(self._of_visitor[visitor][0], visitor)
        self.num_kept += 1
        self._missed_in_a_row = 0
        self._attendance += WEIGHT_OF_LAST * (1.0 - self._attendance)

    def num_expected(self, now: float, seconds: float) -> float:
        """How many are likely to come within the next seconds."""
        self._lapse(now)
        return bisect_right(self._times, (now + seconds, inf)) * self.attendance * self._left_over

    @property
    def attendance(self) -> float:
        """The share of those who come, of those who were told a time."""
        return max(self._attendance, LEAST_ATTENDANCE)

    @property
    def _left_over(self) -> float:
        """Of the share of those who come, by those who did not of late: a crowd that left is soon not waited for any more."""
        return min(1.0, PATIENCE / max(1, self._missed_in_a_row)) ** 2

    def _lapse(self, now: float) -> None:
        while self._times and self._times[0][0] < now - GRACE_SECONDS:
            self._remove(*self._times[0])
            self.num_missed += 1
            self._missed_in_a_row += 1
            self._attendance -= WEIGHT_OF_LAST * self._attendance

    def _remove(self, due: float, visitor: int) -> None:
        del self._times[bisect_right(self._times, (due, visitor)) - 1]
        times = self._of_visitor[visitor]
        times.remove(due)
        if not times:
            del self._of_visitor[visitor]
