from trivium.observe.events import FirstToken, TokensHanded
from trivium.observe.recent_waits import MAX_WAITS, WINDOW_SECONDS, Percentiles, RecentWaits


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_percentiles_are_of_the_last_minute_alone():
    clock = Clock()
    waits = RecentWaits(clock)
    waits.on_event(FirstToken("old", "m", 9.0))
    clock.now += WINDOW_SECONDS + 1
    for hundredths in range(101):
        waits.on_event(FirstToken("new", "m", hundredths / 100))
    assert waits.first_token() == Percentiles(101, 0.5, 0.95)
    clock.now += WINDOW_SECONDS + 1
    assert waits.first_token() is None


def test_tokens_that_come_together_share_their_wait():
    waits = RecentWaits(Clock())
    assert waits.inter_token() is None
    waits.on_event(TokensHanded("a", "m", 0, 4, 0.2))
    assert waits.inter_token() == Percentiles(1, 0.05, 0.05)


def test_what_is_kept_is_bounded():
    waits = RecentWaits(Clock())
    for _ in range(MAX_WAITS + 10):
        waits.on_event(TokensHanded("a", "m", 0, 1, 0.5))
    assert waits.inter_token() == Percentiles(MAX_WAITS, 0.5, 0.5)
