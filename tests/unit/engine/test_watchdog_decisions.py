from __future__ import annotations

from trivium.engine.watchdog import PATIENCES_TO_END, Action, Watchdog


def test_a_loop_that_turns_is_left_alone() -> None:
    dog = Watchdog(5.0, now=100.0)
    for now in (101.0, 104.0, 108.0):
        dog.hear(now, 0.1)
        assert dog.look(now + 1.0) is Action.NONE


def test_first_the_stacks_and_much_later_the_end() -> None:
    dog = Watchdog(5.0, now=100.0)
    assert dog.look(104.9) is Action.NONE
    assert dog.look(105.1) is Action.DUMP_STACKS
    assert dog.look(105.2) is Action.NONE, "once"
    assert dog.look(100.0 + PATIENCES_TO_END * 5.0) is Action.NONE
    assert dog.look(100.1 + PATIENCES_TO_END * 5.0) is Action.END


def test_a_sign_of_life_after_the_stacks_saves_it() -> None:
    dog = Watchdog(5.0, now=100.0)
    dog.look(106.0)
    dog.hear(106.5, 0.1)
    assert dog.look(109.0) is Action.NONE
    assert dog.look(112.0) is Action.DUMP_STACKS


def test_long_steps_make_it_patient() -> None:
    dog = Watchdog(5.0, now=100.0)
    dog.hear(101.0, longest_step=2.0)
    assert dog.patience == 20.0
    assert dog.look(120.0) is Action.NONE
    assert dog.look(121.5) is Action.DUMP_STACKS
