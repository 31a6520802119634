from fake_device import next_token
from world import World, expected_tokens, request

from trivium.types.delta import FinishReason
from trivium.types.step import SampledRow, StepResult

PROMPT = (1, 2, 3)


def deltas_of(world, *drawn, **asked):
    """What is heard of one request when the device draws these tokens, one tuple for each step."""
    scheduler = world.scheduler
    scheduler.add(request("r", PROMPT, **asked))
    heard = []
    for tokens in drawn:
        step = scheduler.plan(0.0)
        heard += scheduler.commit(StepResult(step.id, (SampledRow(step.work[0].row, tokens),)), 0.0)
    return heard


def test_a_stop_token_ends_the_sequence_and_is_its_last_token():
    deltas = deltas_of(World(), (7,), (9,), max_tokens=10, stop=(9,))
    assert [delta.tokens for delta in deltas] == [(7,), (9,)]
    assert deltas[0].finish_reason is None
    assert (deltas[1].finish_reason, deltas[1].stop_token) == (FinishReason.STOP, 9)


def test_max_tokens_end_the_sequence():
    deltas = deltas_of(World(), (7,), (8,), max_tokens=2)
    assert [delta.finish_reason for delta in deltas] == [None, FinishReason.LENGTH]


def test_a_stop_token_at_the_last_place_counts_as_stop():
    deltas = deltas_of(World(), (7,), (9,), max_tokens=2, stop=(9,))
    assert deltas[-1].finish_reason is FinishReason.STOP


def test_a_stop_token_among_the_first_min_tokens_does_not_end_the_sequence():
    deltas = deltas_of(World(), (9,), (9,), (9,), max_tokens=10, stop=(9,), min_tokens=2)
    assert [delta.finish_reason for delta in deltas] == [None, None, FinishReason.STOP]


def test_of_several_tokens_those_after_the_stop_are_dropped():
    deltas = deltas_of(World(), (5, 9, 6), max_tokens=10, stop=(9,))
    assert (deltas[0].tokens, deltas[0].finish_reason) == ((5, 9), FinishReason.STOP)


def test_of_several_tokens_those_beyond_max_tokens_are_dropped():
    deltas = deltas_of(World(), (4, 5), (6, 7, 8), max_tokens=3)
    assert [delta.tokens for delta in deltas] == [(4, 5), (6,)]
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_after_several_tokens_in_one_step_all_of_them_are_computed():
    world = World()
    world.add(request("r", PROMPT, max_tokens=12, logprobs=0))
    steps = []
    while world.scheduler.has_work:
        steps.append(world.step(num_tokens=lambda work: 3))
    assert [(work.start, work.count) for step in steps for work in step.work] == [(0, 3), (3, 3), (6, 3), (9, 3)]
    world.assert_idle()


def test_an_ended_sequence_gives_its_blocks_back_at_once_and_its_row_with_the_next_step():
    world = World(prefix_caching=False)
    world.add(request("r", PROMPT, max_tokens=1))
    world.step()
    assert world.scheduler.stats().held_blocks == 0
    assert world.device.rows
    assert world.step().ends == (0,)
    assert not world.device.rows


def test_an_ended_row_is_used_again_in_the_very_next_step():
    world = World(max_rows=1)
    world.add(request("a", PROMPT, max_tokens=1))
    world.add(request("b", PROMPT, max_tokens=1))
    world.step()
    step = world.step()
    assert (step.ends, [start.row for start in step.starts]) == ((0,), [0])


def test_a_failed_row_ends_alone_with_its_message():
    world = World()
    world.add(request("good", (1, 2, 3, 4, 5), max_tokens=5))
    world.add(request("bad", (6, 7, 8), max_tokens=5))
    world.step()
    world.step(fails=lambda work: world.device.rows[work.row].request.id == "bad")
    heard = world.heard["bad", 0]
    assert (heard.reason, heard.error) == (FinishReason.ERROR, "the fake failed")
    world.drain()
    world.assert_idle()
    assert world.heard["good", 0].reason is FinishReason.LENGTH
    assert world.scheduler.stats().failed == 1


def test_what_a_failed_step_wrote_is_not_reused():
    world = World()
    prompt = tuple(range(9))
    world.add(request("bad", prompt, max_tokens=5))
    world.step(fails=lambda work: True)
    world.add(request("again", prompt, max_tokens=1))
    world.drain()
    assert world.heard["again", 0].num_cached_tokens == 0


def test_a_row_for_which_the_device_gave_nothing_fails_instead_of_hanging():
    world = World()
    world.add(request("r", PROMPT))
    step = world.scheduler.plan(0.0)
    [delta] = world.scheduler.commit(StepResult(step.id, ()), 0.0)
    assert (delta.finish_reason, delta.error) == (FinishReason.ERROR, "the device gave no token for the sequence")


def test_logprobs_come_with_their_tokens():
    world = World()
    world.add(request("r", PROMPT, max_tokens=3, logprobs=0))
    world.drain()
    first = len(PROMPT)
    assert [entry.token for entry in world.heard["r", 0].logprobs] == [
        next_token(world.requests["r"], 0, first + i) for i in range(3)
    ]


def test_prompt_logprobs_come_once_each_over_chunks():
    world = World(max_chunk_tokens=4)
    prompt = tuple(range(50, 63))
    world.add(request("r", prompt, max_tokens=2, prompt_logprobs=0))
    world.step()
    assert [entry.token for entry in world.heard["r", 0].prompt_logprobs] == [51, 52, 53, 54]
    world.drain()
    assert [entry.token for entry in world.heard["r", 0].prompt_logprobs] == list(prompt[1:])


def test_counts_add_up():
    world = World()
    world.add(request("a", PROMPT, max_tokens=3))
    world.add(request("b", PROMPT, max_tokens=50, stop=tuple(range(8))))
    world.add(request("c", PROMPT, max_tokens=50, n=2))
    world.step()
    world.cancel("c")
    world.drain()
    stats = world.scheduler.stats()
    assert (stats.ended_by_length, stats.ended_by_stop, stats.cancelled, stats.failed) == (1, 1, 2, 0)
    assert stats.prompt_tokens == 9
    assert stats.generated_tokens == sum(len(heard.tokens) for heard in world.heard.values())
    assert stats.queue_seconds == 3 * 0.75  # three requests that arrived at 0 and began in the first step
    assert expected_tokens(world.requests["b"], 0)[0] == world.heard["b", 0].tokens
