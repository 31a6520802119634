"""Where a sequence's time went, told with its end. The world checks that the causes sum; here, that they are the right ones."""

from __future__ import annotations

import pytest
from world import World, request

from trivium.types.account import Account
from trivium.types.delta import Delta, FinishReason

STEP, PLANNING = 0.25, 0.75  # seconds of a world's step, and of the gap before it
PROMPT = list(range(10))


class Listening(World):
    """A world that keeps the accounts."""

    def __init__(self, **limits: object) -> None:
        super().__init__(**limits)  # type: ignore[arg-type]
        self.accounts: dict[str, Account] = {}

    def hear(self, deltas: list[Delta]) -> None:
        self.accounts |= {delta.request_id: delta.account for delta in deltas if delta.account is not None}
        super().hear(deltas)


def test_a_request_alone_waits_for_the_next_step_then_computes_its_prompt_then_decodes() -> None:
    world = Listening(max_chunk_tokens=4)
    world.now = 100.0
    world.add(request("r", PROMPT, max_tokens=4, arrival=99.0))
    world.drain()
    account = world.accounts["r"]
    assert account.handover == 1.0
    assert (account.queued, account.why_queued, account.num_ahead) == (PLANNING, "", 0)
    assert account.num_chunks == 3 and account.prompt == pytest.approx(3 * STEP)
    assert account.num_steps == account.num_rows == 3 and account.decode == pytest.approx(3 * STEP)
    assert account.waited == pytest.approx(5 * PLANNING), "between the six steps"
    assert account.decode_beside_prompts == account.preempted == account.grammar == 0.0
    assert (account.num_prompt_tokens, account.num_cached_tokens, account.why_missed) == (10, 0, "not seen before")


def test_a_queue_names_what_was_wanting() -> None:
    for limits, why in (
        ({"max_rows": 1}, "a free row"),
        ({"num_blocks": 4}, "free KV blocks"),
        ({"max_batch_tokens": 10}, "tokens of the step's budget"),
    ):
        world = Listening(**limits)
        world.add(request("first", PROMPT, max_tokens=4))
        world.add(request("second", [7, *PROMPT], max_tokens=4))
        world.drain()
        assert world.accounts["first"].why_queued == ""
        assert (world.accounts["second"].why_queued, world.accounts["second"].num_ahead) == (why, 1)
        assert world.accounts["second"].queued > world.accounts["first"].queued


def test_decoding_beside_the_prompts_of_others_is_told_apart() -> None:
    world = Listening()
    world.add(request("r", PROMPT, max_tokens=6))
    world.step()
    world.add(request("other", [5] * 20, max_tokens=1))
    world.drain()
    account = world.accounts["r"]
    assert account.decode_beside_prompts == pytest.approx(STEP) and account.decode == pytest.approx(4 * STEP)
    assert account.num_steps == 5 and account.num_rows == 6


def test_who_was_preempted_knows_for_whom_and_what_it_cost() -> None:
    world = Listening(max_rows=1)
    world.add(request("low", PROMPT, max_tokens=8, priority=5))
    world.step()
    world.step()
    world.add(request("high", PROMPT, max_tokens=3))
    world.drain()
    account = world.accounts["low"]
    assert (account.num_preemptions, account.preempted_by) == (1, "high")
    assert account.preempted > 0 and account.recomputed > 0
    assert account.num_chunks == 1, "what is computed again is not its prompt's cost"
    assert world.accounts["high"].num_preemptions == 0


def test_a_miss_says_whether_the_prefix_was_evicted_or_never_seen() -> None:
    world = Listening(num_blocks=6)
    for name, prompt in (("first", PROMPT), ("other", [9] * 20), ("again", PROMPT), ("hit", PROMPT)):
        world.add(request(name, prompt, max_tokens=1))
        world.drain()
    assert [world.accounts[name].why_missed for name in ("first", "other", "again", "hit")] == [
        "not seen before",
        "not seen before",
        "evicted",
        "",
    ]
    assert world.accounts["hit"].num_cached_tokens == 8


def test_without_prefix_caching_that_is_why() -> None:
    world = Listening(prefix_caching=False)
    world.add(request("r", PROMPT))
    world.drain()
    assert world.accounts["r"].why_missed == "prefix caching is off"


def test_a_token_that_waits_for_its_mask_waits_for_the_grammar() -> None:
    world = Listening(needs_host=lambda request: "a test")
    world.add(request("r", PROMPT, max_tokens=2))
    world.step(is_late=lambda row: True)
    world.step(is_late=lambda row: True)
    world.drain()
    assert world.accounts["r"].grammar == pytest.approx(2 * (STEP + PLANNING))


def test_a_cancelled_request_has_an_account_too() -> None:
    world = Listening(max_rows=1)
    world.add(request("runs", PROMPT, max_tokens=20))
    world.add(request("waits", PROMPT))
    world.step()
    world.step()
    world.cancel("runs")
    world.cancel("waits")
    world.drain()
    assert world.heard["runs", 0].reason is FinishReason.CANCELLED
    assert world.accounts["runs"].decode == pytest.approx(STEP)
    assert world.accounts["waits"].queued == world.accounts["waits"].seconds == pytest.approx(2 * (STEP + PLANNING))


def test_what_the_sequences_cost_is_the_time_of_all_steps() -> None:
    world = Listening(max_chunk_tokens=4, prefix_caching=False)
    for number in range(5):
        world.add(request(str(number), [number] * (3 * number + 1), max_tokens=2 + number))
    steps = world.drain()
    computing = [step for step in steps if step.work]
    assert sum(account.engine_seconds for account in world.accounts.values()) == pytest.approx(STEP * len(computing))
    assert world.accounts["4"].engine_seconds > world.accounts["0"].engine_seconds


def test_who_is_held_back_is_not_charged_for_steps_without_it() -> None:
    """One sequence is in every step, the other's next position cannot be planned before its token is known."""
    world = Listening(steps_ahead=1, needs_host=lambda asked: "a test" if asked.id == "held back" else None)
    world.add(request("ahead", PROMPT, max_tokens=20))
    world.add(request("held back", [7, *PROMPT], max_tokens=8))
    world.drain()
    ahead, held_back = world.accounts["ahead"], world.accounts["held back"]
    assert (ahead.num_steps, held_back.num_steps) == (19, 7), "each computes every token but its last, once"
    assert held_back.waited > 6 * STEP
